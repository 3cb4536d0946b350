/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events as bytes in, event boundaries out. The scanner finds where each event ends and tells
 * what kind it is from its first bytes, by looking, not by parsing JSON; the proxy forwards the bytes
 * untouched. No allocation, no clock, constant memory whatever the peer sends.
 *
 *     bytes      : ping \n\n data: {...} \n\n event: error \n data: {...} \n\n data: [DONE] \n\n
 *     events     |_COMMENT__|____DATA________|___________ERROR________________|______DONE_______|
 *
 * Lines end with LF or CRLF (no engine sends a bare CR; a stream that did would be one endless event, passed
 * through). Reading:
 *
 *     size_t pos = 0;
 *     struct sse_event ev;
 *     while (sse_next(&scanner, data, len, &pos, &ev))
 *             ... ev.start .. ev.end are the event's bytes within data ...
 *
 * after which all of data is consumed and the scanner remembers the beginning of an unfinished event. To hide
 * events while relaying use sse_filter, which also holds back unfinished ones.
 */
#ifndef KVROUTE_SSE_H
#define KVROUTE_SSE_H

#include <kvroute/base.h>

#define SSE_KEEP_BYTES 4096 /* of an event split over reads; what lies beyond does not influence its kind */
#define SSE_NAME_MAX   64   /* bytes of an event name that are compared */

enum sse_kind {
        SSE_COMMENT, /* nothing but comments, ids, retry hints or blank lines: keeps a connection alive */
        SSE_DATA,    /* data of the answer */
        SSE_EARLY,   /* data, but sent before the first token: response.created, response.queued,
                        response.in_progress, ping, prompt progress */
        SSE_USAGE, /* the extra chunk that stream_options.include_usage adds: empty choices and a usage object
                    */
        SSE_DONE,  /* data: [DONE] */
        SSE_ERROR, /* event: error, response.failed, or data that is an error object (vLLM sends [DONE] after
                      it) */
};
const char *sse_kind_name(enum sse_kind kind);

struct sse_event {
        enum sse_kind kind;
        bool first_token; /* the stream's first event that shows a token; true once per stream */
        bool carried;   /* began in an earlier buffer: start is 0 and the earlier bytes are not in this one */
        bool truncated; /* longer than SSE_KEEP_BYTES and split: judged by its beginning */
        size_t start, end;     /* within the buffer given; end is just behind the blank line */
        struct kvr_slice name; /* value of `event:`, or empty; valid until the next call */
        struct kvr_slice data; /* the first data line's value (as far as kept); valid until the next call */
};

/* All zero is a fresh scanner (sse_init does that). Plain memory: embed it, no fini. Owner thread only. */
struct sse_scanner {
        uint64_t events;      /* complete events seen, all kinds */
        uint64_t data_events; /* of these DATA, EARLY and USAGE */
        bool first_token_seen;
        bool done_seen;
        bool error_seen;
        /* private */
        bool held;          /* keep[] holds bytes that sse_filter has not let out */
        bool line_started;  /* the unfinished line has a byte other than one CR */
        bool line_cr;       /* the unfinished line is one CR so far */
        bool event_started; /* bytes of an unfinished event were seen */
        bool truncated;     /* ... and more of them than keep[] takes */
        uint32_t keep_len;
        char keep[SSE_KEEP_BYTES];
};

void sse_init(struct sse_scanner *scanner);

/*
 * The next event that ends within data[*pos .. len). True: *ret_event is filled and *pos moved behind it.
 * False: no further event ends here; the rest was remembered as the beginning of one and *pos is len. Data is
 * borrowed. Cost: one pass with memchr plus a look at the beginning of each event, below 100 ns for a usual
 * one.
 */
bool sse_next(struct sse_scanner *scanner, const char *data, size_t len, size_t *pos,
              struct sse_event *ret_event);

/* Whether everything fed so far ends with a complete event (also before the first byte): a comment may be put
 * here. */
bool sse_at_boundary(const struct sse_scanner *scanner);

/*
 * The same for a relay that hides events: calls on_event (may be NULL) for each event, which returns true to
 * let it pass; and out for the bytes that pass, in order, one call per run of passing events. The beginning
 * of an unfinished event is held back (in the scanner, at most SSE_KEEP_BYTES; a longer one passes). Do not
 * mix with sse_next.
 */
void sse_filter(struct sse_scanner *scanner, const char *data, size_t len,
                bool (*on_event)(void *ctx, const struct sse_event *event),
                void (*out)(void *ctx, const char *data, size_t len), void *ctx);
/* The stream ended: gives out what was held back. */
void sse_filter_end(struct sse_scanner *scanner, void (*out)(void *ctx, const char *data, size_t len),
                    void *ctx);

#endif
