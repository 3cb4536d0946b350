/* SPDX-License-Identifier: Apache-2.0 */
/* `kvroute serve`: puts the parts together, starts and stops them. */
#ifndef KVROUTE_ROUTER_SERVE_H
#define KVROUTE_ROUTER_SERVE_H

/* argv without the program's name and the command. Returns the exit status. */
int serve_main(int argc, char *const *argv);

#endif
