/* SPDX-License-Identifier: Apache-2.0 */
/* --help, the man page and the tables of docs/, all from options.def and metrics.def. */
#ifndef KVROUTE_HELP_H
#define KVROUTE_HELP_H

#include <stdio.h>
#include <kvroute/base.h>

void help_main(FILE *out);  /* kvroute --help */
void help_serve(FILE *out); /* kvroute serve --help */
void help_man(FILE *out);   /* kvroute --dump-man: kvroute.1 */
/* kvroute --dump-docs options|metrics: a page of docs/. False for another name. */
bool help_docs(FILE *out, const char *page);

#endif
