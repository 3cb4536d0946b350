/* SPDX-License-Identifier: Apache-2.0 */
/* libkvroute: route LLM requests by KV cache. See docs/ARCHITECTURE.md for the map and examples/ for a first
 * program. */
#ifndef KVROUTE_KVROUTE_H
#define KVROUTE_KVROUTE_H

#include "base.h"
#include "events.h"
#include "ledger.h"
#include "prompt.h"
#include "router.h"

#endif
