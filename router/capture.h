/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The capture: one line per computed request with keys, lengths and times, never text, in the form that `kvroute
 * simulate` and `analyze` read (docs/capture.md).
 *
 *     worker: capture_begin ──► entry ──► capture_end ──► queue ──► a thread of its own: line, file, rotation
 *             copies the prompt's keys     never waits
 *
 * What does not fit into memory or on the disk is dropped and counted; every line tells the count so far.
 */
#ifndef KVROUTE_ROUTER_CAPTURE_H
#define KVROUTE_ROUTER_CAPTURE_H

#include "capture_line.h"
#include "log.h"

#define CAPTURE_MEMORY_MAX ((size_t)64 * 1024 * 1024) /* of all entries, under way and queued */
#define CAPTURE_NAME_MAX   128 /* bytes of a model's or workload's name; longer ones are cut */

struct capture;
struct capture_entry;

struct capture_options {
        const char *path;
        uint64_t file_bytes; /* of one file */
        unsigned files;      /* kept, the present one included */
        uint32_t block_tokens;
        struct siphash_key key;
        uint64_t start_ns; /* the monotonic time that timestamps count from */
        struct logger *log;
};

/* Opens the file and starts the thread. NULL: *ret_why is a text for people, of ret_size bytes. */
KVR_MUST_USE struct capture *capture_new(const struct capture_options *options, char *ret_why,
                                         size_t ret_size);
/* Writes what is queued, and ends. Every entry was given back. NULL is fine. */
void capture_free(struct capture *capture);

/* A secret for ids: from the deployment's seed, so that routers with one seed give the same ids, or new. */
struct siphash_key capture_key(bool seed_given, uint64_t seed, uint64_t (*random64)(void *ctx), void *ctx);

/* Borrows the prompt. NULL: without keys, or dropped (and counted). Any thread. */
struct capture_entry *capture_begin(struct capture *capture, const struct kvr_prompt *prompt,
                                    struct kvr_slice session, uint64_t arrived_ns);
/*
 * Takes the entry to the queue. Of facts, times of arrival and session are filled here; names are copied, `end` is
 * kept as it is. Any thread.
 */
void capture_end(struct capture *capture, struct capture_entry *entry, const struct capture_facts *facts);
/* Takes the entry and forgets it: nothing was computed. */
void capture_forget(struct capture *capture, struct capture_entry *entry);

/* The file was moved away, or its limits changed: takes effect before the next line. */
void capture_reopen(struct capture *capture);
void capture_set_limits(struct capture *capture, uint64_t file_bytes, unsigned files);

struct capture_counts {
        uint64_t lines, dropped; /* written; lost for memory or the disk */
};
void capture_counts(const struct capture *capture, struct capture_counts *ret);

#endif
