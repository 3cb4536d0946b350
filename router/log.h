/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages for people who run the router: one line each, on standard error as a rule, as text or JSON. A
 * message with a key is said once and then counted: the next one with that key after LOG_REPEAT_NS tells how
 * many were left out, so a fault that repeats a thousand times a second does not fill a disk. Any thread.
 * Never give it prompt text or keys of clients.
 */
#ifndef KVROUTE_LOG_H
#define KVROUTE_LOG_H

#include <kvroute/base.h>

#define LOG_LINE_MAX  2048 /* longer messages are cut */
#define LOG_KEYS_MAX  512  /* messages remembered for counting; the oldest make room */
#define LOG_REPEAT_NS (60ull * 1000000000ull)

/* Same order as the words of --log-level. */
enum log_level {
        LOG_ERROR,
        LOG_WARN,
        LOG_INFO,
        LOG_DEBUG,
};

struct logger;

struct log_options {
        enum log_level level;
        bool json;
        int fd;                              /* kept open, not closed */
        uint64_t (*now_ns)(void *ctx);       /* monotonic, for repeats */
        uint64_t (*unix_time_ms)(void *ctx); /* for the time stamp */
        void *ctx;
};

/* The two clocks of the system, for log_options. */
uint64_t log_now_ns(void *ctx);
uint64_t log_unix_time_ms(void *ctx);

KVR_MUST_USE struct logger *log_new(const struct log_options *options); /* NULL when out of memory */
void log_free(struct logger *logger);
void log_set_level(struct logger *logger, enum log_level level);
bool log_enabled(const struct logger *logger, enum log_level level);

/*
 * key: NULL for a message that is always said. Else it makes, together with the format text, what counts as
 * the same message: log_say(log, LOG_WARN, name, "replica %s: is down", name). A NULL logger is fine: nothing
 * is said.
 */
__attribute__((cold)) void log_say(struct logger *logger, enum log_level level, const char *key,
                                   const char *format, ...) KVR_PRINTF(4, 5);
/* What that message was about is over: the next one with this key and format is said at once. */
void log_clear(struct logger *logger, const char *key, const char *format);

#endif
