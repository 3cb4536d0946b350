/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the admin API share:
 *
 *   admin.c          the listener, who may ask, which path is whose
 *   admin_replicas.c the replicas: list, add, remove, drain
 *   admin_guard.c    whether what changes something may do so
 *   admin_explain.c  what would become of a request
 *   admin_ledger.c   what became of the prompts
 *   admin_shadow.c   what kv would have made of them
 *   admin_page.c     the dashboard, and the last requests for it
 *   admin_status.c   metrics, settings, alarms
 */
#ifndef KVROUTE_ROUTER_ADMIN_INT_H
#define KVROUTE_ROUTER_ADMIN_INT_H

#include "admin.h"

struct admin {
        struct admin_options options;
        struct net_server *server;
        struct kvr_parser *parser;
        char host_name[256], host_name_short[256]; /* of this machine; may be empty */
};

/* ---- admin.c ---- */
/* ,"key":value. A number that is negative or not finite is unknown: null. */
void admin_add_number(struct text *out, const char *key, double value);
void admin_add_string(struct text *out, const char *key, const char *value);
/* Takes what is in json. */
void admin_respond_json(struct net_exchange *exchange, unsigned status, struct text *json);
void admin_respond_error(struct net_exchange *exchange, unsigned status, const char *code,
                         const char *message);

/* ---- admin_status.c ---- */
/* NAN until a prediction there was checked. */
double admin_trust(const struct kvr_replica_info *info);

/* ---- admin_page.c ---- */
/* Answers if the path is one of the dashboard's, else false. */
bool admin_page(struct net_exchange *exchange);

/* ---- admin_shadow.c ---- */
/* ,"shadow":{...}, or null where there is none. */
void admin_add_shadow(const struct proxy *proxy, struct text *out, uint64_t now_ns);
void admin_shadow_metrics(const struct proxy *proxy);

/* ---- the answers ---- */
void admin_list_replicas(struct admin *admin, struct net_exchange *exchange);
void admin_add_replica(struct admin *admin, struct net_exchange *exchange);
void admin_remove_replica(struct admin *admin, struct net_exchange *exchange, struct kvr_slice name);
void admin_drain_replica(struct admin *admin, struct net_exchange *exchange, struct kvr_slice name,
                         bool draining);
void admin_explain(struct admin *admin, struct net_exchange *exchange);
/* 405, with a line to copy. */
void admin_explain_usage(struct net_exchange *exchange);
void admin_metrics(struct admin *admin, struct net_exchange *exchange);
void admin_config(struct admin *admin, struct net_exchange *exchange);
void admin_ledger(struct admin *admin, struct net_exchange *exchange);
/* Sets what /metrics has of the ledger. Does nothing without one. */
void admin_ledger_metrics(struct proxy *proxy);
void admin_alarms(struct admin *admin, struct net_exchange *exchange);
void admin_decisions(struct admin *admin, struct net_exchange *exchange);

#endif
