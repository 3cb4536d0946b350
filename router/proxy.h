/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path: what the files worker.c, client.c, route.c, relay.c, reply.c and account.c share. Nobody
 * else includes this but the control side, which makes workers and reads their counters.
 *
 *   client.c   reads requests from clients, in every state notices when they leave
 *   identify.c what the request says of itself: prompt, model, session, workload
 *   route.c    decision, queue
 *   send.c     connection, sending, tries that failed
 *   relay.c    the answer back to the client
 *   reply.c    the router's own answers and errors
 *   account.c  the end of a request: settlement, log, metrics
 *   worker.c   thread, listeners, pool of upstream connections
 *
 * One request is an exchange. Its way, and who moves it on (struct exchange, state):
 *
 *   BODY ──► READY ─┬─► CONNECTING ──► WAITING ──► RELAYING ──► (finished)
 *                   │       │  ▲          │ no byte reached the client:
 *                   ▼       ▼  └──────────┘ another replica, never the same
 *                 QUEUED ───┘
 *   TUNNEL after 101. From every state the client may leave: exchange_abort.
 *
 * Rules: an exchange has at most one ticket and one upstream connection at a time; exchange_end is the only
 * way out and settles, logs and counts exactly once. Everything here belongs to one worker's thread.
 */
#ifndef KVROUTE_ROUTER_PROXY_H
#define KVROUTE_ROUTER_PROXY_H

#include <kvroute/kvroute.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "capture.h"
#include "config.h"
#include "decisions.h"
#include "engine/usage.h"
#include "families.h"
#include "log.h"
#include "metrics.h"
#include "net/conn.h"
#include "net/deadline.h"
#include "proto/http1.h"
#include "proto/sse.h"
#include "proto/text.h"
#include "shadow.h"
#include "target.h"
#include "tokens.h"
#include "workload.h"

#define CLIENT_INPUT_MAX \
        (HTTP1_HEAD_BYTES_MAX + NET_READ_BYTES) /* bytes held of a head or of pipelined requests */
#define HELD_BYTES_MAX 8192                     /* of an answer whose first event is not complete yet */
#define REQUEST_ID_MAX 128                      /* longer or odd request ids are replaced */
#define FIN_PROBE_MS   100                      /* see client.c: is a client that sent FIN still there? */
#define TICK_MS        50                       /* queue, and limits without a deadline of their own */
#define POOL_BUCKETS   64

struct worker;
struct exchange;

/* What all workers share. */
struct proxy {
        struct kvr_router *router;
        struct kvr_ledger *ledger; /* NULL: off */
        struct families families;  /* the control thread's */
        struct shadow *shadow;     /* NULL: off */
        struct capture *capture;   /* NULL: off */
        bool mirror;               /* copies of requests come in, and nothing goes on */
        struct decisions *decisions;
        struct tokens *tokens;           /* NULL: prompts are not tokenized */
        struct adapters *adapters;       /* NULL: requests for adapters go to one replica like others */
        struct workload_names workloads; /* that clients have named */
        struct fleet *fleet;
        _Atomic(const struct router_config *)
                config; /* replaced by a reload; old ones are kept until the end */
        struct metrics *metrics;
        struct logger *log;
        int access_fd; /* -1: none */
        uint64_t seed;
        uint64_t start_unix_ms;
        atomic_bool unready; /* about to stop, but still taking requests (shutdown-delay) */
        atomic_bool draining;
        atomic_uint cut;          /* answers that were cut because the router ended */
        atomic_bool abandon;      /* the drain time is over: what still runs is cut */
        atomic_uint leave_count;  /* raised when requests should leave a replica: it hangs, or its drain time
                                     is over */
        atomic_ullong body_bytes; /* of all request bodies held */
        atomic_uint connections;  /* of clients */
        unsigned connections_max;
        atomic_uint queued;       /* requests in all queues */
        atomic_ullong id_counter; /* for request ids */
        uint64_t id_prefix;
        atomic_uint running;           /* worker threads that have not ended */
        struct net_loop *control_loop; /* woken when one ends */
        struct worker *workers;
        unsigned worker_count;
};

enum deadline_kind { /* numbers of the worker's kinds, in order of creation */
                     DEADLINE_HEAD,
                     DEADLINE_KEEP_ALIVE,
                     DEADLINE_CONNECT,
                     DEADLINE_FIRST_BYTE,
                     DEADLINE_IDLE,
                     DEADLINE_FIN_PROBE,
                     DEADLINE_POOL,
                     DEADLINE_TICK,
                     DEADLINE_HEARTBEAT,
                     DEADLINE_LINGER,
                     DEADLINE_CLIENT_IDLE, /* as DEADLINE_IDLE, but of a client: each kind has one type of
                                              object */
                     DEADLINE_KIND_COUNT,
};

enum client_state {
        CLIENT_IDLE,    /* between requests, or with a part of a head */
        CLIENT_BUSY,    /* an exchange is on its way */
        CLIENT_CLOSING, /* the last answer is being written */
};

struct client {
        struct net_conn *conn;
        struct worker *worker;
        struct client *prev, *next;   /* in the worker's list */
        struct net_deadline deadline; /* head, keep-alive, idle, linger */
        struct net_deadline fin_probe;
        struct text input; /* a partial head, or what came behind the current request */
        struct exchange *exchange;
        enum client_state state;
        bool fin;     /* it sent FIN: it may be gone, or wait for its answer */
        bool linger;  /* parts of a request are unread: discard them for a while, or the close would eat the
                         answer */
        bool running; /* client_run is on the stack: frees are left to it */
        bool closed;
        unsigned fin_probes;
        char address[INET6_ADDRSTRLEN]; /* for the access log; empty without one */
};

struct upstream {
        struct net_conn *conn;
        struct worker *worker;
        struct target *target;
        struct exchange *exchange;    /* NULL: idle in the pool */
        struct upstream *prev, *next; /* in the pool's bucket */
        struct net_deadline deadline;
        unsigned addr_version; /* of the target's address that it is connected to */
        unsigned requests;
        uint64_t idle_since_ms;   /* in the pool */
        uint64_t sent_ms;         /* when its last request was sent */
        metrics_series_id reused; /* series of its being taken again, + 1; 0 not looked up yet */
};

enum exchange_state {
        EXCHANGE_BODY,   /* the client is sending the body */
        EXCHANGE_READY,  /* being routed */
        EXCHANGE_QUEUED, /* every candidate is full or paused */
        EXCHANGE_CONNECTING,
        EXCHANGE_WAITING,  /* sent, no answer yet */
        EXCHANGE_RELAYING, /* the answer's head was read */
        EXCHANGE_TUNNEL,   /* 101: bytes both ways */
};

/* How a try fails. The names are those of upstream_errors_total{kind}. */
enum failure {
        FAIL_CONNECT,  /* refused, unreachable, no connection in time */
        FAIL_RESET,    /* closed or reset before the answer */
        FAIL_TIMEOUT,  /* first-byte-timeout, idle-timeout */
        FAIL_PROTOCOL, /* not HTTP */
        FAIL_STATUS,   /* 500, 502, 504 */
        FAIL_STREAM,   /* an error event, or a cut in the middle */
        FAIL_STALL,    /* the replica hangs */
        FAIL_PUSHBACK, /* 429, 503: no fault */
        FAIL_OWN,      /* out of memory here: not the replica's fault */
        FAIL_NAME,     /* its host name is not resolved: known already */
};

enum framing {
        FRAME_NONE,   /* no body */
        FRAME_LENGTH, /* Content-Length as the replica said */
        FRAME_CHUNKED,
        FRAME_CLOSE, /* to an HTTP/1.0 client: until the end of the connection */
};

/*
 * Bytes [at, at + remove) of the body are replaced by a piece of edit_text. The body itself is never touched.
 */
#define BODY_EDITS_MAX 3
struct body_edit {
        size_t at, remove, text_at, text_len;
        bool known; /* sent to every engine, also to one that refuses members it does not know */
};

struct exchange {
        struct client *client;
        struct worker *worker;
        enum exchange_state state;

        /* the request */
        uint64_t start_ns, decision_start_ns, routed_ns, sent_ns, first_token_ns;
        uint64_t heard_ns;     /* when the replica's bytes came that are being worked on */
        uint64_t queued_ns;    /* when it entered the queue, 0 if it never did */
        struct kvr_slice path; /* in target */
        char method[24];
        char tenant_salt[33];      /* with tenant-salt: what the prompt's salt refers to */
        struct task *adapter_task; /* it is told to all replicas, and their answers are awaited; or NULL */
        size_t body_reserved;      /* in proxy->body_bytes */
        bool body_over;            /* the budget has no room for it */
        int64_t body_left;         /* of a body with a length */
        enum kvr_api api;
        bool head_request, http10, keep_alive, upgrade, body_chunked, expects;
        uint8_t encoding; /* enum decode_coding */
        char request_id[REQUEST_ID_MAX + 1];
        uint64_t affinity_key_len; /* of affinity; 0 none */
        char workload[64];
        bool send_decoded;
        int32_t priority;
        bool stream, several;
        bool usage_injected; /* we asked for the usage chunk, the client did not: hide it */
        unsigned edit_count;

        /* the way to a replica */
        struct target *replica; /* reference while a ticket or an upstream is held */
        struct kvr_ticket *ticket;
        struct kvr_decision decision;
        struct shadow_flight *shadow;  /* the same request on the virtual fleet, or NULL */
        struct capture_entry *capture; /* what is kept of its prompt for the capture, or NULL */
        kvr_replica_id pinned;
        kvr_replica_id tried[KVR_TRIED_MAX];
        uint32_t tried_count, tries;
        bool fresh_only;      /* a pooled connection was stale: take new ones, whatever the replica */
        unsigned fail_status; /* what to answer when no other replica can be tried */
        const char *fail_code, *fail_message;
        bool reached; /* some replica took a connection */
        bool counted_waiting;
        struct upstream *upstream;
        struct exchange *queue_prev, *queue_next;
        uint64_t queue_due_ns;

        /* the answer */
        uint16_t status;
        enum framing framing;
        bool heard; /* the replica sent something, if only an interim answer */
        bool head_read;
        bool head_held; /* rendered, not sent: the client has seen nothing */
        bool head_sent;
        bool early_head; /* sent by a heartbeat, before the replica said anything */
        bool committed; /* a byte of the replica's answer reached the client: no other replica can help now */
        bool sse, answer_keep_alive;
        bool error_event; /* the engine reported an error inside the stream */
        bool cut;         /* the answer broke off */
        struct net_deadline heartbeat;
        uint64_t body_in, body_out;
        bool tapped;
        bool booked; /* settled for good: usage and settlement are known */

        /* From here on nothing is cleared for the next request: each is set before it is looked at. */
        struct sse_scanner scanner;
        struct http1_parser body_parser; /* of a chunked body */
        struct http1_parser answer_parser;
        char model[KVR_NAME_MAX];      /* as the client wrote it, cut */
        char real_model[KVR_NAME_MAX]; /* after aliases */
        char affinity[256];            /* session key, affinity_key_len bytes */
        char upgrade_to[64];           /* value of the Upgrade field */
        char content_encoding[64];     /* value of that field; sent on unless the decoded body is */
        struct body_edit
                edits[BODY_EDITS_MAX]; /* what options change in the body, edit_count, in order of place */
        struct usage_tap tap;          /* if tapped */
        struct usage usage;            /* these two if booked */
        struct kvr_settlement settlement;
        const char *own_code; /* code of the router's own error, or NULL */
        struct exchange *next_free;
        /* Emptied for the next request, which finds their memory. */
        struct text target;      /* as sent: "/v1/chat/completions?x=1" */
        struct text fields;      /* end-to-end header fields without those below, rendered */
        struct text credentials; /* authorization and x-api-key fields, rendered */
        struct text rank_fields; /* the client's own choice of a rank, where the router makes none */
        struct text body;
        struct text decoded; /* of a compressed body: for routing, and sent on with --forward-decoded */
        struct text edit_text;
        struct text request_head; /* as sent to the replica */
        struct text answer_input; /* a partial head */
        struct text answer_head;  /* rendered for the client, until it is sent */
        struct text held;         /* body bytes that wait with it */
};

#define REASONS_MAX 16 /* at least as many as enum kvr_reason has */

struct worker {
        struct net_loop loop;
        struct proxy *proxy;
        unsigned number;
        pthread_t thread;
        struct net_listener *listeners;
        unsigned listener_count;
        bool listening, stopping;
        struct net_deadlines deadlines;
        struct net_deadline tick;
        struct fleet_snapshot *fleet;
        const struct router_config *config;
        struct kvr_parser *parser;
        struct http1_head head; /* scratch of whoever parses a head right now */
        struct text scratch, scratch2;
        struct client clients;              /* list head */
        struct upstream pool[POOL_BUCKETS]; /* list heads */
        uint32_t pool_count[POOL_BUCKETS];  /* connections in each */
        struct exchange queue;              /* list head, most urgent first */
        unsigned queue_len;
        unsigned leaves_seen;
        struct exchange *free_exchanges;
        unsigned free_exchange_count;
        size_t kept_body_bytes;                 /* of large bodies' buffers in free_exchanges */
        metrics_series_id reasons[REASONS_MAX]; /* series of decisions, + 1; 0 not looked up yet */
};

/* ---- worker.c ---- */
KVR_MUST_USE int worker_init(struct worker *worker, struct proxy *proxy, unsigned number);
/* Binds listener `index` of the worker; *addr's port 0 is replaced. */
KVR_MUST_USE int worker_listen(struct worker *worker, unsigned index, struct sockaddr_storage *addr);
KVR_MUST_USE int worker_start(struct worker *worker);
void worker_fini(struct worker *worker);
/* Any thread: have the worker look at config, draining and its queue. */
void worker_wake(struct worker *worker);
void count_connection(struct worker *worker, const struct target *target, const char *kind);
struct upstream *pool_take(struct worker *worker, struct target *target);
/* Keeps the connection for the next request, or closes it if there are enough. Takes it. */
void pool_give(struct upstream *upstream);
void upstream_close(struct upstream *upstream);
/*
 * The replica sent bytes that nobody asked for: on its connections answers could be taken for those of other
 * requests, so for POOL_DISTRUST_MS none is used a second time. Counts, and says it once.
 */
__attribute__((cold)) void pool_distrust(struct worker *worker, struct target *target);
/* Something came on a connection that nobody reads: closes it if it is an idle one and it were bytes. */
void pool_moved(struct upstream *upstream);
bool upstream_is_current(const struct upstream *upstream);
struct exchange *exchange_new(struct worker *worker);
void exchange_free(struct exchange *exchange);
/* Adds to a counter and a histogram under the worker's number. n 0 makes no series. */
void worker_count(struct worker *worker, enum metric_id id, const struct kvr_slice *labels, uint64_t n);
void worker_observe(struct worker *worker, enum metric_id id, const struct kvr_slice *labels, double seconds);
static inline struct kvr_slice slice_of(const char *string)
{
        return (struct kvr_slice){string, strlen(string)};
}

/* ---- client.c ---- */
void client_accept(struct worker *worker, struct net_conn *conn);
/* Closes and forgets the client; its exchange, if any, must have ended. */
__attribute__((cold)) void client_close(struct client *client);
/* The answer was written completely: next request or close. */
void client_answered(struct client *client, bool keep_alive);
__attribute__((cold)) void client_refuse_draining(struct client *client);
void client_on_deadline(struct net_deadline *deadline);
void client_on_fin_probe(struct net_deadline *deadline);
extern const struct net_ops client_ops;
/* The key the client authenticated with; empty: none. */
struct kvr_slice exchange_client_key(const struct exchange *exchange);
/* The value of a field in rendered lines (exchange->fields, exchange->credentials); data NULL: absent. */
struct kvr_slice exchange_field(const struct text *lines, const char *name);

/* ---- route.c ---- */
/* The body is complete: read the prompt and route. */
void route_begin(struct exchange *exchange);
/* Chooses and goes there; answers an error itself when nothing can be done. */
void route_try(struct exchange *exchange);
/* Whether another replica than those tried (and the present one) could take the request now. */
bool route_has_other(struct exchange *exchange);

/* ---- send.c ---- */
/* Connects to exchange->replica, or takes a pooled connection, and sends. */
void send_begin(struct exchange *exchange);
/* Counts a failure in the metrics and, as far as it is one, against the replica's health. */
__attribute__((cold)) void count_failure(struct exchange *exchange, enum failure failure);
/*
 * The try failed before the client saw anything. Goes elsewhere, or answers status/code. retryable false: no
 * other replica is tried.
 */
__attribute__((cold)) void route_failed(struct exchange *exchange, enum failure failure, bool retryable,
                                        unsigned status, const char *code, const char *message);
/* No replica is left: answers why. */
__attribute__((cold)) void route_refuse(struct exchange *exchange);
void route_add_tried(struct exchange *exchange, kvr_replica_id id);
/* Lets waiting requests look again. */
void queue_run(struct worker *worker);
void queue_remove(struct exchange *exchange);
/*
 * A pooled connection died before the answer began: the same replica again, on a new connection. Happens once
 * to an exchange, as it takes no pooled connection after that.
 */
__attribute__((cold)) void route_again(struct exchange *exchange);
void route_connected(struct upstream *upstream, int error);
void route_on_connect_deadline(struct net_deadline *deadline);

/* ---- relay.c ---- */
extern const struct net_ops upstream_ops;
void relay_on_deadline(struct net_deadline *deadline); /* first byte and idle limit of an upstream */
void relay_on_heartbeat(struct net_deadline *deadline);
void relay_arm_heartbeat(struct exchange *exchange);
/* Writes body bytes in the client's framing, `last` ends the body. False: the client is gone and the exchange
 * over. */
bool relay_write(struct exchange *exchange, struct kvr_slice data, bool last);
/* The answer ends here, by our own will: elsewhere if the client has seen nothing, else cut. */
__attribute__((cold)) void relay_cut(struct exchange *exchange, const char *why);
/* Adds the answer headers that are the router's own. */
void relay_own_fields(struct exchange *exchange, struct text *head);
/* The client took what was pending: read on. */
void relay_resume(struct exchange *exchange);
/* A byte of framing that changes nothing, to learn whether the client is still there; false: not possible
 * here. */
bool relay_probe_client(struct exchange *exchange);

/* ---- reply.c ---- */
/* Answers an error in the API's shape and ends the exchange. retry_after_s 0: none. */
__attribute__((cold)) void reply_error(struct exchange *exchange, unsigned status, const char *code,
                                       const char *message, uint64_t retry_after_s);
/* The same, naming the request field at fault. */
__attribute__((cold)) void reply_error_field(struct exchange *exchange, unsigned status, const char *code,
                                             const char *message, const char *field);
/* Answers a whole body and ends the exchange. */
void reply_body(struct exchange *exchange, unsigned status, const char *content_type, struct kvr_slice body);
/* For requests that never became an exchange: answers and closes. */
__attribute__((cold)) void reply_bad_head(struct client *client, unsigned status, const char *code,
                                          const char *message);
/* /healthz and /readyz, which need no key. True: done. */
bool reply_health(struct exchange *exchange);
/* Other requests the router answers or refuses itself. True: done. */
bool reply_local(struct exchange *exchange);
const char *reply_reason_phrase(unsigned status);

/* ---- account.c ---- */
/* Settles, logs, counts, gives everything back and frees the exchange. Closes the upstream unless it was
 * pooled. */
void exchange_end(struct exchange *exchange, enum kvr_end end);
/*
 * Reads the usage and settles the ticket for good. Done before the answer's last byte is written: the
 * client's next request may be here before we return, and must find what this one taught.
 */
void exchange_book(struct exchange *exchange, enum kvr_end end);
/* Gives what is kept for the capture away, with sizes that were not counted; without tokens it is forgotten. */
void account_capture(struct exchange *exchange, const char *end, uint32_t input_tokens,
                     uint32_t output_tokens);
/* Settles the current ticket only (a try that failed). */
void exchange_settle(struct exchange *exchange, enum kvr_end end);
/* The client left: exchange_end with everything closed at once. */
__attribute__((cold)) void exchange_abort(struct exchange *exchange);
void exchange_release_replica(struct exchange *exchange);
void count_waiting(struct exchange *exchange, bool waiting);

#endif
