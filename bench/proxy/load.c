/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closed-loop load for measuring a proxy: some keep-alive connections, each with one request at a time,
 * distinct chat prompts in groups (bodies.h), every answer checked against what the back end sends (wire.h).
 *
 *     load PORT REQUESTS BYTES [stream] [--connections N] [--groups N] [--share PERCENT] [--first NUMBER]
 *
 * NUMBER is that of the first prompt: runs with other numbers send other prompts. Prints one JSON object;
 * exit status 1 if any answer was wrong.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bodies.h"
#include "proto/http1.h"
#include "wire.h"

#define CONNS_MAX    1024
#define EVENTS_MAX   64
#define HEAD_MAX     16384
#define READ_BYTES   65536
#define STALL_MS     30000 /* nothing at all for that long: the run has failed */
#define REQUESTS_MAX 100000000ull
#define ERRORS_SHOWN 5

struct load;

struct conn {
        struct load *load;
        int fd;
        uint64_t start_ns;
        struct body body;
        char head[512];
        struct iovec out[1 + BODIES_PIECES];
        unsigned out_at; /* pieces before it are sent */
        bool wants_room, busy;
        struct http1_parser parser;
        bool head_read;
        size_t in_len;         /* of a partial head */
        size_t content, wrong; /* bytes of the answer's body */
        char last[16];         /* its last bytes */
        char in[HEAD_MAX];
};

struct load {
        struct sockaddr_in addr;
        int epoll;
        struct bodies *bodies;
        size_t body_bytes;
        bool stream;
        size_t content_expected;
        uint64_t requests, first, issued, done, errors;
        uint64_t *took_ns;
        unsigned conn_count;
        struct conn *conns;
        struct http1_head answer;
        char read_buf[READ_BYTES];
};

static uint64_t now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
        perror(what);
        exit(1);
}

static void watch(struct conn *conn, int op, uint32_t events)
{
        struct epoll_event event = {.events = events, .data.ptr = conn};

        if (epoll_ctl(conn->load->epoll, op, conn->fd, &event))
                die("epoll_ctl");
}

static void conn_open(struct conn *conn)
{
        int one = 1;

        conn->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (conn->fd < 0 || connect(conn->fd, (struct sockaddr *)&conn->load->addr, sizeof conn->load->addr))
                die("connect");
        (void)setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conn->wants_room = false;
        watch(conn, EPOLL_CTL_ADD, EPOLLIN);
}

static void conn_send(struct conn *conn);

static void request_next(struct conn *conn)
{
        struct load *load = conn->load;
        int len;

        conn->busy = load->issued < load->requests;
        if (!conn->busy)
                return;
        bodies_get(load->bodies, load->first + load->issued++, &conn->body);
        len = snprintf(conn->head, sizeof conn->head,
                       "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nUser-Agent: bench\r\n"
                       "Accept: */*\r\nAuthorization: Bearer sk-bench\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\n\r\n",
                       ntohs(load->addr.sin_port), load->body_bytes);
        conn->out[0] = (struct iovec){conn->head, (size_t)len};
        memcpy(conn->out + 1, conn->body.pieces, sizeof conn->body.pieces);
        conn->out_at = 0;
        conn->head_read = false;
        conn->in_len = conn->content = 0;
        memset(conn->last, 0, sizeof conn->last);
        http1_init(&conn->parser, HTTP1_RESPONSE);
        conn->start_ns = now_ns();
        conn_send(conn);
}

/* The answer is complete, or never will be. */
static void request_done(struct conn *conn, const char *error)
{
        struct load *load = conn->load;
        bool reopen = error || !conn->head_read || !load->answer.keep_alive;

        load->took_ns[load->done++] = now_ns() - conn->start_ns;
        if (error && load->errors++ < ERRORS_SHOWN)
                fprintf(stderr, "load: %s\n", error);
        if (reopen) {
                close(conn->fd);
                conn_open(conn);
        }
        request_next(conn);
}

static void conn_send(struct conn *conn)
{
        while (conn->out_at < 1 + BODIES_PIECES) {
                struct msghdr message = {.msg_iov = conn->out + conn->out_at,
                                         .msg_iovlen = 1 + BODIES_PIECES - conn->out_at};
                ssize_t sent = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (sent < 0 && errno == EAGAIN)
                        break;
                if (sent < 0) {
                        request_done(conn, strerror(errno));
                        return;
                }
                for (struct iovec *piece = &conn->out[conn->out_at]; conn->out_at < 1 + BODIES_PIECES;
                     piece++) {
                        size_t part = (size_t)sent < piece->iov_len ? (size_t)sent : piece->iov_len;

                        piece->iov_base = (char *)piece->iov_base + part;
                        piece->iov_len -= part;
                        sent -= (ssize_t)part;
                        if (piece->iov_len)
                                break;
                        conn->out_at++;
                }
        }
        if (conn->wants_room != (conn->out_at < 1 + BODIES_PIECES)) {
                conn->wants_room = !conn->wants_room;
                watch(conn, EPOLL_CTL_MOD, EPOLLIN | (conn->wants_room ? EPOLLOUT : 0));
        }
}

/* Keeps count and the last bytes. */
static void on_content(void *ctx, const char *data, size_t len)
{
        struct conn *conn = ctx;

        conn->content += len;
        if (len >= sizeof conn->last) {
                memcpy(conn->last, data + len - sizeof conn->last, sizeof conn->last);
        } else {
                memmove(conn->last, conn->last + len, sizeof conn->last - len);
                memcpy(conn->last + sizeof conn->last - len, data, len);
        }
}

static const char *verdict(const struct conn *conn)
{
        static const char stream_end[] = WIRE_DONE;
        const char *end = conn->load->stream ? stream_end : "}}}";
        size_t len = strlen(end);

        if (conn->content != conn->load->content_expected)
                return "the answer has another length than the back end sent";
        if (memcmp(conn->last + sizeof conn->last - len, end, len) != 0)
                return "the answer does not end as the back end's does";
        if (conn->out_at < 1 + BODIES_PIECES)
                return "the answer came before the request was sent";
        return NULL;
}

static void take_body(struct conn *conn, const char *data, size_t len)
{
        size_t used = 0;

        switch (http1_body(&conn->parser, data, len, on_content, conn, &used)) {
        case HTTP1_MORE:
                return;
        case HTTP1_DONE:
                request_done(conn, used == len ? verdict(conn) : "bytes behind the answer");
                return;
        default:
                request_done(conn, "malformed answer body");
        }
}

static void take_head(struct conn *conn, const char *data, size_t len)
{
        struct load *load = conn->load;
        size_t used = 0;

        if (conn->in_len + len > sizeof conn->in) {
                request_done(conn, "an answer head without end");
                return;
        }
        memcpy(conn->in + conn->in_len, data, len);
        conn->in_len += len;
        switch (http1_head(&conn->parser, conn->in, conn->in_len, &load->answer, &used)) {
        case HTTP1_MORE:
                return;
        case HTTP1_DONE:
                break;
        default:
                request_done(conn, "malformed answer head");
                return;
        }
        conn->head_read = true;
        if (load->answer.status != 200) {
                fprintf(stderr, "load: %.*s\n", (int)conn->in_len, conn->in);
                request_done(conn, "a status other than 200");
                return;
        }
        take_body(conn, conn->in + used, conn->in_len - used);
}

static void on_input(struct conn *conn)
{
        ssize_t got = recv(conn->fd, conn->load->read_buf,
                           conn->head_read ? READ_BYTES : HEAD_MAX - conn->in_len, MSG_DONTWAIT);

        if (got < 0 && errno == EAGAIN)
                return;
        if (!conn->busy)
                die("an idle connection was closed");
        if (got <= 0)
                request_done(conn, "the connection was closed in the middle of a request");
        else if (conn->head_read)
                take_body(conn, conn->load->read_buf, (size_t)got);
        else
                take_head(conn, conn->load->read_buf, (size_t)got);
}

static void run(struct load *load)
{
        struct epoll_event events[EVENTS_MAX];

        for (unsigned i = 0; i < load->conn_count; i++) {
                load->conns[i].load = load;
                conn_open(&load->conns[i]);
        }
        for (unsigned i = 0; i < load->conn_count; i++)
                request_next(&load->conns[i]);
        while (load->done < load->requests) {
                int count = epoll_wait(load->epoll, events, EVENTS_MAX, STALL_MS);

                if (count == 0) {
                        fprintf(stderr, "load: no answer for %d s\n", STALL_MS / 1000);
                        exit(1);
                }
                for (int i = 0; i < count; i++) {
                        struct conn *conn = events[i].data.ptr;

                        if (events[i].events & EPOLLOUT)
                                conn_send(conn);
                        if (events[i].events & ~(uint32_t)EPOLLOUT)
                                on_input(conn);
                }
        }
}

static int by_value(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return x < y ? -1 : x > y;
}

static double percentile_us(const uint64_t *sorted, size_t count, unsigned percent)
{
        size_t at = count * percent / 100;

        return (double)sorted[at] / 1e3;
}

static void report(struct load *load, uint64_t took_ns)
{
        size_t n = (size_t)load->requests;

        qsort(load->took_ns, n, sizeof *load->took_ns, by_value);
        printf("{\"requests\":%llu,\"errors\":%llu,\"seconds\":%.3f,\"requests_per_s\":%.0f,\"p50_us\":%.1f,"
               "\"p99_us\":%.1f}\n",
               (unsigned long long)load->requests, (unsigned long long)load->errors, (double)took_ns / 1e9,
               (double)load->requests * 1e9 / (double)took_ns, percentile_us(load->took_ns, n, 50),
               percentile_us(load->took_ns, n, 99));
}

static size_t expected_content(bool stream)
{
        if (!stream)
                return (size_t)snprintf(NULL, 0, WIRE_ANSWER, 0u, 0u, 0u);
        return (size_t)snprintf(NULL, 0, WIRE_EVENT, 0u) * WIRE_EVENTS + sizeof WIRE_DONE - 1;
}

static unsigned long long number(const char *text, const char *what, unsigned long long min,
                                 unsigned long long max)
{
        char *end;
        unsigned long long value;

        errno = 0;
        value = strtoull(text, &end, 10);
        if (errno || *end || end == text || value < min || value > max) {
                fprintf(stderr, "load: %s: %s is not a number from %llu to %llu\n", what, text, min, max);
                exit(2);
        }
        return value;
}

static void read_options(struct load *load, struct bodies_settings *bodies, int argc, char **argv)
{
        static const struct option options[] = {{"connections", required_argument, NULL, 'c'},
                                                {"groups", required_argument, NULL, 'g'},
                                                {"share", required_argument, NULL, 's'},
                                                {"first", required_argument, NULL, 'f'},
                                                {NULL, 0, NULL, 0}};
        int option;

        while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
                if (option == 'c')
                        load->conn_count = (unsigned)number(optarg, "--connections", 1, CONNS_MAX);
                else if (option == 'g')
                        bodies->groups = (unsigned)number(optarg, "--groups", 1, 4096);
                else if (option == 's')
                        bodies->share_percent = (unsigned)number(optarg, "--share", 50, 75);
                else if (option == 'f')
                        load->first = number(optarg, "--first", 0, 1ull << 40);
                else
                        exit(2);
        }
        if (argc - optind < 3) {
                fprintf(stderr, "load PORT REQUESTS BYTES [stream] [--connections N] [--groups N] [--share "
                                "%%] [--first N]\n");
                exit(2);
        }
        load->addr.sin_port = htons((uint16_t)number(argv[optind], "PORT", 1, 65535));
        load->requests = number(argv[optind + 1], "REQUESTS", 1, REQUESTS_MAX);
        load->body_bytes = bodies->bytes =
                (size_t)number(argv[optind + 2], "BYTES", BODIES_BYTES_MIN, BODIES_BYTES_MAX);
        load->stream = bodies->stream = argc - optind > 3 && strcmp(argv[optind + 3], "stream") == 0;
}

int main(int argc, char **argv)
{
        struct bodies_settings settings = {.groups = 64, .share_percent = 75, .seed = 1};
        struct load *load = calloc(1, sizeof *load);
        uint64_t start;
        bool failed;

        if (!load)
                die("calloc");
        load->conn_count = 16;
        load->addr.sin_family = AF_INET;
        load->addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        read_options(load, &settings, argc, argv);
        load->content_expected = expected_content(load->stream);
        load->bodies = bodies_new(&settings);
        load->conns = calloc(load->conn_count, sizeof *load->conns);
        load->took_ns = malloc((size_t)load->requests * sizeof *load->took_ns);
        load->epoll = epoll_create1(0);
        if (!load->bodies || !load->conns || !load->took_ns || load->epoll < 0)
                die("load");
        start = now_ns();
        run(load);
        report(load, now_ns() - start);
        failed = load->errors > 0;
        for (unsigned i = 0; i < load->conn_count; i++)
                close(load->conns[i].fd);
        bodies_free(load->bodies);
        free(load->conns);
        free(load->took_ns);
        close(load->epoll);
        free(load);
        return failed;
}
