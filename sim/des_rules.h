/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of other routers, under their own names, for comparison in the same fleet. Each is the published rule
 * in its simplest form, not the program: what it believes to be cached is a history of what it sent, an LRU
 * as large as the engines' caches; its loads are its own counts, exact and at once.
 */
#ifndef KVROUTE_SIM_DES_RULES_H
#define KVROUTE_SIM_DES_RULES_H

#include <kvroute/base.h>

/* name, how it chooses (in des_rules.c), whether it counts the blocks in flight, what it does */
#define SIM_DES_RULE_LIST(X)                                                                              \
        X("sglang_cache_aware", sglang, false,                                                            \
          "longest match above 0.3 of the prompt, else, or with loads 64 and 1.5 apart, fewest requests") \
        X("lmetric", lmetric, false, "least product of tokens to compute and requests in flight")         \
        X("longest_prefix_50", longest_prefix_50, false,                                                  \
          "longest match from half of the prompt on, else fewest tokens to compute")                      \
        X("hash_block2", hash_block2, false, "by the hash of the second block")                           \
        X("bounded_hash", bounded_hash, false,                                                            \
          "hash_block2, going on while a replica has over 1.25 times its share of requests")              \
        X("dynamo_kv", dynamo, true, "fewest blocks to compute plus blocks in use")                       \
        X("preble_e2", preble, false,                                                                     \
          "longest match if over half of the prompt, else least of recent work, own work and eviction")   \
        X("llmd_prefix", llmd, false, "highest sum of scores for match (3), queue (2) and free cache (2)")

struct sim__des;
struct sim__des_request;
struct sim__des_rules;

size_t sim_des_rule_count(void);
const char *sim_des_rule_name(size_t number);
const char *sim_des_rule_help(size_t number);
bool sim_des_rule_exists(const char *name);

/* The state of the rule that des->options->policy names. NULL: out of memory. */
KVR_MUST_USE struct sim__des_rules *sim__des_rules_new(struct sim__des *des);
void sim__des_rules_free(struct sim__des_rules *rules);
/* Chooses and books: sets replica and prediction. */
void sim__des_rules_choose(struct sim__des_rules *rules, struct sim__des_request *request);
void sim__des_rules_first_token(struct sim__des_rules *rules, const struct sim__des_request *request);
void sim__des_rules_end(struct sim__des_rules *rules, const struct sim__des_request *request);

#endif
