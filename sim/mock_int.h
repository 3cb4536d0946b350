/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the mock engine share: mock.c (life, clock), mock_infer.c (requests), mock_pages.c,
 * mock_control.c. */
#ifndef KVROUTE_SIM_MOCK_INT_H
#define KVROUTE_SIM_MOCK_INT_H

#include "mock.h"
#include "net/server.h"
#include "record.h"
#include "request.h"

#define MOCK_ID_MAX     80
#define MOCK_STORED_MAX 1024 /* Responses that are remembered */
#define MOCK_JSON       "application/json"
#define MOCK_SERVER     "server: uvicorn\r\n"
#define MOCK_BUCKETS    24

/* Why a request is on the list of those that wait for the clock. */
enum mock_wait {
        MOCK_WAIT_NOTHING,
        MOCK_WAIT_HEAD,  /* delay_head_ms */
        MOCK_WAIT_CHUNK, /* chunk_delay_ms */
        MOCK_WAIT_STALL, /* stall_ms */
        MOCK_WAIT_EVER,  /* hang, or a stall without end */
};

struct mock_request {
        struct mock_request *prev, *next;
        struct sim_mock *mock;
        struct net_exchange *exchange;
        struct sim_job *job;     /* NULL before it is submitted and after its end */
        uint64_t record;         /* its number */
        struct sim_fault *fault; /* NULL: none */
        struct sim_request parsed;
        struct sim_answer answer;
        char *model_json; /* owned: the answer's */
        enum mock_wait wait;
        uint64_t due_ms;
        uint64_t arrival_ns; /* wall clock */
        uint64_t token_ns;   /* of the latest token, virtual */
        uint64_t seed;       /* of the answer's text */
        uint32_t prompt_len; /* tokens computed: without further prompts of the request */
        uint32_t planned;    /* tokens of the answer */
        uint32_t ready;      /* of these, produced by the engine */
        uint32_t sent;       /* of these, written */
        bool engine_done, began, stalled;
        char id[MOCK_ID_MAX];
};

struct mock_histogram {
        uint64_t counts[MOCK_BUCKETS];
        uint64_t count;
        double sum;
};

struct mock_stored {
        char id[MOCK_ID_MAX];
        uint32_t *ids;
        size_t count;
        char *document;
        size_t document_len;
};

struct sim_mock {
        struct net_loop *loop;
        struct net_server *server; /* NULL while connections are refused */
        struct sockaddr_storage addr;
        struct sim_mock_options options;
        struct sim_engine *engine;
        struct mock_events *events; /* NULL: none */
        struct sim_fault fault;
        struct sim_buf frozen; /* the metrics page while it is frozen */
        struct sim_records records;
        struct mock_request requests; /* sentinel: generating requests under way */
        struct sim_buf buf;           /* scratch for answers */
        uint64_t *keys;               /* scratch for block keys */
        size_t keys_cap;
        uv_timer_t timer;
        uint64_t epoch_ns; /* wall clock of virtual 0 */
        int64_t started;   /* Unix seconds */
        char *base_model;  /* the first name of options.models */
        bool pumping;
        bool closing, server_closing;
        uint64_t refuse_until_ms; /* 0: not refusing */
        uint64_t probes;          /* requests that were not for generation */
        uint64_t ids;
        struct mock_histogram ttft, itl, e2e, queue;
        struct mock_stored *stored; /* MOCK_STORED_MAX, or NULL */
        uint64_t stored_count;
        void (*on_closed)(void *ctx);
        void *closed_ctx;
};

extern const double mock_ttft_bounds[], mock_itl_bounds[], mock_e2e_bounds[];
void mock_observe(struct mock_histogram *histogram, const double *bounds, double value);

/* mock.c */
uint64_t mock_virtual_ns(const struct sim_mock *mock);
double mock_wall_s(const struct sim_mock *mock);
void mock_pump(struct sim_mock *mock); /* runs the model up to now and everything that is due */
void mock_respond(struct sim_mock *mock, struct net_exchange *exchange, unsigned status,
                  struct sim_buf *body);
void mock_refuse(struct sim_mock *mock, uint32_t ms);

/* mock_arrive.c */
void mock_infer(struct sim_mock *mock, struct net_exchange *exchange, enum sim_api api);
void mock_proceed(struct mock_request *request); /* after what was to delay it */

/* mock_infer.c */
void mock_infer_event(struct sim_mock *mock, const struct sim_event *event);
void mock_infer_due(struct mock_request *request); /* what it waited for has come */
void mock_infer_gone(struct mock_request *request);
struct sim_record *mock_record_of(struct mock_request *request); /* NULL: forgotten */
/* Books the end and frees the request; the exchange is the caller's, to be ended right after. */
struct net_exchange *mock_request_end(struct mock_request *request, enum sim_record_state state,
                                      unsigned status);
void mock_refuse_request(struct mock_request *request, unsigned status, const char *type, const char *param,
                         const char *message);
struct sim_fault *mock_pick_fault(struct sim_mock *mock); /* gives a copy, NULL: none for this request */
void mock_wait_for(struct mock_request *request, enum mock_wait wait, uint32_t ms);
void mock_cut(struct mock_request *request);
void mock_answer_status(struct mock_request *request);
void mock_push(struct mock_request *request);
/* The answer depends on the prompt alone: equal prompts get equal answers from every replica. */
const char *mock_word_of(const struct mock_request *request, uint32_t token);
void mock_stored_clear(struct sim_mock *mock);
/* NULL if unknown. */
const struct mock_stored *mock_stored_find(const struct sim_mock *mock, struct kvr_slice id);
/* The namespace of a model name; false: not served here. */
bool mock_space(const struct sim_mock *mock, struct kvr_slice model, struct kvr_slice salt, uint64_t *ret);
uint64_t *mock_keys(struct sim_mock *mock, size_t count); /* scratch, NULL: no memory */

/* mock_pages.c and mock_control.c: false if the path is none of theirs. */
bool mock_pages(struct sim_mock *mock, struct net_exchange *exchange);
void mock_metrics_write(struct sim_mock *mock, struct sim_buf *buf);
bool mock_control(struct sim_mock *mock, struct net_exchange *exchange);

#endif
