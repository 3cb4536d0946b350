/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is not forwarded while tenants are kept apart (tenant-salt): every request that could reach an
 * engine's cache with a salt of the client's choice, because the router's own cannot be put into it.
 */
#ifndef KVROUTE_ROUTER_TENANT_H
#define KVROUTE_ROUTER_TENANT_H

#include "proxy.h"

/* By its head alone. True: the request was answered with an error. Does nothing without tenant-salt. */
KVR_MUST_USE bool tenant_refuses_head(struct exchange *exchange);
/* When the body is there and decoded, before it is read as a prompt. True: as above. */
KVR_MUST_USE bool tenant_refuses_body(struct exchange *exchange);

#endif
