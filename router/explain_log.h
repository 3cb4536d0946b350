/* SPDX-License-Identifier: Apache-2.0 */
/* At --log-level debug every decision is explained in the log: what each candidate would have cost. */
#ifndef KVROUTE_ROUTER_EXPLAIN_LOG_H
#define KVROUTE_ROUTER_EXPLAIN_LOG_H

#include "proxy.h"

#define EXPLAIN_LOG_CANDIDATES 16 /* the first ones that are told of; there may be more */

/* Before the decision on this request; costs nothing unless debug messages are asked for. Its loop's thread. */
void explain_log(struct exchange *exchange, const struct kvr_request *request);

#endif
