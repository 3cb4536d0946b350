/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cheap engines for measuring a proxy in front of them: several ports, one thread, raw epoll, request bodies
 * counted and thrown away in the kernel (MSG_TRUNC), so that next to nothing of the machine is used here.
 *
 *     backend [PORTS [GAP_US]]
 *
 * Prints the ports it bound on one line. GAP_US: between two events of a stream, each of which is one write;
 * they would coalesce without it and the proxy would have less to do. Ends with SIGTERM, or when its standard
 * input closes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/http1.h"
#include "wire.h"

#define PORTS_MAX   16
#define CONNS_MAX   1024
#define HEAD_MAX    8192
#define EVENTS_MAX  64
#define DISCARD_MAX (1u << 20)

struct conn {
        int fd; /* 0: free */
        bool in_body, stream;
        uint32_t len;
        uint64_t body_left, body_len;
        unsigned sent;   /* events of the running stream */
        uint64_t due_ns; /* of the next one; 0: no stream is running */
        char in[HEAD_MAX];
};

struct backend {
        int epoll;
        int listeners[PORTS_MAX];
        unsigned listener_count;
        uint64_t gap_ns;
        struct http1_head head;
        struct conn conns[CONNS_MAX];
        unsigned conns_used; /* none behind it was ever used */
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

static void conn_close(struct conn *conn)
{
        close(conn->fd);
        conn->fd = 0;
        conn->due_ns = 0;
}

/* Answers are smaller than any send buffer and each waits for the next request: a short write is a broken
 * connection. */
static void reply(struct conn *conn, const char *data, size_t len)
{
        if (conn->fd && send(conn->fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
                conn_close(conn);
}

static void reply_body(struct conn *conn, unsigned status, const char *type, const char *body, size_t len)
{
        char out[2048];
        int n = snprintf(out, sizeof out,
                         "HTTP/1.1 %u %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%.*s", status,
                         status == 200 ? "OK" : "Not Found", type, len, (int)len, body);

        reply(conn, out, (size_t)n);
}

static void reply_chat(struct conn *conn)
{
        unsigned prompt = (unsigned)(conn->body_len / WIRE_BYTES_PER_TOKEN);
        unsigned cached = prompt * 3 / 4 / 16 * 16;
        char body[1024];
        int len = snprintf(body, sizeof body, WIRE_ANSWER, prompt, prompt + 2, cached);

        reply_body(conn, 200, "application/json", body, (size_t)len);
}

static void stream_begin(const struct backend *backend, struct conn *conn)
{
        static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                                   "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";

        reply(conn, head, sizeof head - 1);
        conn->sent = 0;
        conn->due_ns = now_ns() + backend->gap_ns;
}

static void stream_step(const struct backend *backend, struct conn *conn, uint64_t now)
{
        char event[512], out[1024];
        int len, n;

        if (conn->sent < WIRE_EVENTS) {
                len = snprintf(event, sizeof event, WIRE_EVENT, conn->sent++);
                n = snprintf(out, sizeof out, "%x\r\n%s\r\n", (unsigned)len, event);
                conn->due_ns = now + backend->gap_ns;
        } else {
                n = snprintf(out, sizeof out, "%zx\r\n%s\r\n0\r\n\r\n", sizeof WIRE_DONE - 1, WIRE_DONE);
                conn->due_ns = 0;
        }
        reply(conn, out, (size_t)n);
}

static bool path_is(const struct http1_head *head, const char *path)
{
        return head->path.len == strlen(path) && memcmp(head->path.data, path, head->path.len) == 0;
}

/* The whole request is here. */
static void answer(const struct backend *backend, struct conn *conn, const struct http1_head *head)
{
        static const char models[] =
                "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"created\":1,"
                "\"owned_by\":\"bench\"}]}";

        if (head && path_is(head, "/v1/models"))
                reply_body(conn, 200, "application/json", models, sizeof models - 1);
        else if (head && path_is(head, "/health"))
                reply_body(conn, 200, "text/plain", "", 0);
        else if (head && !path_is(head, "/v1/chat/completions"))
                reply_body(conn, 404, "text/plain", "no", 2);
        else if (conn->stream)
                stream_begin(backend, conn);
        else
                reply_chat(conn);
}

/* Bytes of a head, and perhaps the first of its body, are in conn->in. */
static void take_head(struct backend *backend, struct conn *conn)
{
        struct http1_parser parser;
        struct http1_head *head = &backend->head;
        size_t used = 0, here;

        http1_init(&parser, HTTP1_REQUEST);
        switch (http1_head(&parser, conn->in, conn->len, head, &used)) {
        case HTTP1_DONE:
                break;
        case HTTP1_MORE:
                if (conn->len == HEAD_MAX)
                        conn_close(conn);
                return;
        default:
                fprintf(stderr, "backend: %s\n", parser.error);
                conn_close(conn);
                return;
        }
        here = conn->len - used;
        conn->len = 0;
        conn->body_len = head->content_length > 0 ? (uint64_t)head->content_length : 0;
        conn->body_left = conn->body_len - here;
        if (head->chunked || here > conn->body_len) {
                fprintf(stderr, "backend: a framing that nothing here sends\n");
                conn_close(conn);
                return;
        }
        /* It stands near the beginning of the body; a head that came alone leaves it to the first read. */
        conn->stream = here && memmem(conn->in + used, here, "\"stream\":true", 13);
        conn->in_body = conn->body_left > 0;
        if (!conn->in_body)
                answer(backend, conn, head);
}

static void on_input(struct backend *backend, struct conn *conn)
{
        ssize_t got;

        if (!conn->in_body) {
                got = recv(conn->fd, conn->in + conn->len, HEAD_MAX - conn->len, 0);
        } else if (conn->body_left == conn->body_len) {
                got = recv(conn->fd, conn->in, conn->body_left < HEAD_MAX ? conn->body_left : HEAD_MAX, 0);
                conn->stream = got > 0 && memmem(conn->in, (size_t)got, "\"stream\":true", 13);
        } else {
                got = recv(conn->fd, NULL, conn->body_left < DISCARD_MAX ? conn->body_left : DISCARD_MAX,
                           MSG_TRUNC);
        }
        if (got <= 0) {
                if (got == 0 || errno != EAGAIN)
                        conn_close(conn);
                return;
        }
        if (!conn->in_body) {
                conn->len += (uint32_t)got;
                take_head(backend, conn);
                return;
        }
        conn->body_left -= (uint64_t)got;
        if (conn->body_left == 0) {
                conn->in_body = false;
                answer(backend, conn, NULL);
        }
}

static void on_connection(struct backend *backend, int listener)
{
        int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN};
        unsigned i = 0;

        if (fd < 0)
                return;
        while (i < CONNS_MAX && backend->conns[i].fd)
                i++;
        if (i == CONNS_MAX) {
                close(fd);
                return;
        }
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        memset(&backend->conns[i], 0, offsetof(struct conn, in));
        backend->conns[i].fd = fd;
        if (i >= backend->conns_used)
                backend->conns_used = i + 1;
        event.data.u64 = PORTS_MAX + i;
        if (epoll_ctl(backend->epoll, EPOLL_CTL_ADD, fd, &event))
                die("epoll_ctl");
}

static void listen_on(struct backend *backend)
{
        struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof addr;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = backend->listener_count};

        if (fd < 0 || bind(fd, (struct sockaddr *)&addr, len) || listen(fd, 511) ||
            getsockname(fd, (struct sockaddr *)&addr, &len) ||
            epoll_ctl(backend->epoll, EPOLL_CTL_ADD, fd, &event))
                die("listen");
        backend->listeners[backend->listener_count++] = fd;
        printf("%u ", ntohs(addr.sin_port));
}

/* Sends what is due; returns when the next is, or 0. */
static uint64_t run_streams(struct backend *backend)
{
        uint64_t now = now_ns(), first = 0;

        for (unsigned i = 0; i < backend->conns_used; i++) {
                struct conn *conn = &backend->conns[i];

                if (conn->due_ns && conn->due_ns <= now)
                        stream_step(backend, conn, now);
                if (conn->due_ns && (!first || conn->due_ns < first))
                        first = conn->due_ns;
        }
        return first;
}

static void turn(struct backend *backend)
{
        struct epoll_event events[EVENTS_MAX];
        uint64_t due = run_streams(backend), now = now_ns(), wait = due > now ? due - now : 0;
        struct timespec limit = {.tv_sec = (time_t)(wait / 1000000000u),
                                 .tv_nsec = (long)(wait % 1000000000u)};
        int count = epoll_pwait2(backend->epoll, events, EVENTS_MAX, due ? &limit : NULL, NULL);

        for (int i = 0; i < count; i++) {
                uint64_t who = events[i].data.u64;

                if (who == UINT64_MAX)
                        exit(0); /* whoever started us is gone */
                if (who < PORTS_MAX)
                        on_connection(backend, backend->listeners[who]);
                else if (backend->conns[who - PORTS_MAX].fd)
                        on_input(backend, &backend->conns[who - PORTS_MAX]);
        }
}

int main(int argc, char **argv)
{
        static struct backend backend;
        unsigned long ports = argc > 1 ? strtoul(argv[1], NULL, 10) : 4;
        struct epoll_event event = {.events = EPOLLHUP, .data.u64 = UINT64_MAX};

        if (ports == 0 || ports > PORTS_MAX) {
                fprintf(stderr, "backend: 1 to %d ports\n", PORTS_MAX);
                return 2;
        }
        backend.gap_ns = (argc > 2 ? strtoul(argv[2], NULL, 10) : 1000) * 1000;
        backend.epoll = epoll_create1(0);
        if (backend.epoll < 0)
                die("epoll_create1");
        (void)epoll_ctl(backend.epoll, EPOLL_CTL_ADD, STDIN_FILENO,
                        &event); /* fails for a file: then only SIGTERM ends us */
        for (unsigned long i = 0; i < ports; i++)
                listen_on(&backend);
        printf("\n");
        fflush(stdout);
        for (;;)
                turn(&backend);
}
