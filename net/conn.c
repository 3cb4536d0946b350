/* SPDX-License-Identifier: Apache-2.0 */
#include "conn.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FREE_CONNS_MAX    256  /* closed connections kept for reuse per loop */
#define LISTEN_BACKLOG    4096 /* the kernel cuts it to somaxconn */
#define KEEPALIVE_SECONDS 60

static void on_async(uv_async_t *async)
{
        struct net_loop *loop = async->data;

        if (loop->on_wake)
                loop->on_wake(loop);
}

int net_loop_init(struct net_loop *loop)
{
        int error;

        memset(loop, 0, sizeof *loop);
        loop->read_buf = malloc(NET_READ_BYTES);
        if (!loop->read_buf)
                return UV_ENOMEM;
        error = uv_loop_init(&loop->uv);
        if (error) {
                free(loop->read_buf);
                return error;
        }
        error = uv_async_init(&loop->uv, &loop->async, on_async);
        if (error) {
                (void)uv_loop_close(&loop->uv);
                free(loop->read_buf);
                return error;
        }
        loop->async.data = loop;
        return 0;
}

void net_loop_fini(struct net_loop *loop)
{
        uv_close((uv_handle_t *)&loop->async, NULL);
        uv_run(&loop->uv, UV_RUN_DEFAULT);
        (void)uv_loop_close(&loop->uv);
        while (loop->free_list) {
                struct net_conn *conn = loop->free_list;

                loop->free_list = conn->next_free;
                free(conn);
        }
        free(loop->read_buf);
        loop->read_buf = NULL;
}

void net_loop_wake(struct net_loop *loop)
{
        (void)uv_async_send(&loop->async);
}

static struct net_conn *conn_new(struct net_loop *loop)
{
        struct net_conn *conn = loop->free_list;

        if (conn) {
                loop->free_list = conn->next_free;
                loop->free_count--;
                memset(conn, 0, sizeof *conn);
        } else {
                conn = calloc(1, sizeof *conn);
                if (!conn)
                        return NULL;
        }
        if (uv_tcp_init(&loop->uv, &conn->tcp)) {
                free(conn);
                return NULL;
        }
        conn->loop = loop;
        conn->tcp.data = conn;
        loop->conn_count++;
        return conn;
}

static void on_conn_closed(uv_handle_t *handle)
{
        struct net_conn *conn = handle->data;
        struct net_loop *loop = conn->loop;

        free(conn->out);
        free(conn->flight);
        loop->conn_count--;
        if (loop->free_count < FREE_CONNS_MAX) {
                conn->next_free = loop->free_list;
                loop->free_list = conn;
                loop->free_count++;
        } else {
                free(conn);
        }
}

void net_close(struct net_conn *conn)
{
        if (conn->closing)
                return;
        conn->closing = true;
        conn->ops = NULL;
        conn->owner = NULL;
        uv_close((uv_handle_t *)&conn->tcp, on_conn_closed);
}

/* Small chunks must leave at once, and a peer that vanished without a word must be noticed some day. */
static void conn_tune(struct net_conn *conn)
{
        (void)uv_tcp_nodelay(&conn->tcp, 1);
        (void)uv_tcp_keepalive(&conn->tcp, 1, KEEPALIVE_SECONDS);
}

static void on_connected(uv_connect_t *req, int status)
{
        struct net_conn *conn = req->data;

        if (conn->closing)
                return;
        conn->connecting = false;
        if (status == 0)
                conn_tune(conn);
        conn->ops->on_connect(conn, status);
}

struct net_conn *net_connect(struct net_loop *loop, const struct sockaddr *addr, const struct net_ops *ops,
                             void *owner)
{
        struct net_conn *conn = conn_new(loop);

        if (!conn)
                return NULL;
        conn->ops = ops;
        conn->owner = owner;
        conn->connect_req.data = conn;
        conn->connecting = true;
        /* libuv reports refusals in the callback; what fails here is the lack of descriptors and the like. */
        if (uv_tcp_connect(&conn->connect_req, &conn->tcp, addr, on_connected)) {
                net_close(conn);
                return NULL;
        }
        return conn;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
        struct net_conn *conn = handle->data;
        char *data = NULL;
        size_t len = 0;

        (void)suggested;
        if (!conn->reading || conn->enough) { /* libuv then reads nothing and calls on_read with an error */
                *ret = uv_buf_init(NULL, 0);
                return;
        }
        if (conn->ops->on_alloc)
                conn->ops->on_alloc(conn, &data, &len);
        if (len == 0) {
                data = conn->loop->read_buf;
                len = NET_READ_BYTES;
        }
        *ret = uv_buf_init(data, (unsigned)(len > UINT32_MAX / 2 ? UINT32_MAX / 2 : len));
}

static void disarm(struct net_conn *conn)
{
        conn->armed = false;
        (void)uv_read_stop((uv_stream_t *)&conn->tcp);
}

static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buf)
{
        struct net_conn *conn = stream->data;

        if (got > 0) {
                conn->full = (size_t)got == buf->len;
                conn->ops->on_data(conn, buf->base, (size_t)got);
                return;
        }
        if (got == 0) /* EAGAIN */
                return;
        if (got == UV_ENOBUFS && conn->enough) {
                conn->enough = false;
                if (conn->reading)
                        return;
        }
        disarm(conn);
        if (!conn->reading) { /* nothing was taken from the socket: it comes again when reading starts */
                if (conn->ops->on_moved)
                        conn->ops->on_moved(conn);
                return;
        }
        conn->reading = false;
        conn->ended = true;
        conn->ops->on_end(conn, got == UV_EOF ? 0 : (int)got);
}

void net_read_start(struct net_conn *conn)
{
        if (conn->reading || conn->ended || conn->closing)
                return;
        if (!conn->armed)
                conn->armed = uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read) == 0;
        conn->reading = conn->armed;
}

/*
 * A request stops and starts reading on its way; each real stop costs two system calls when reading starts
 * again. So the descriptor stays with epoll, and only input that comes meanwhile makes the stop real
 * (on_read).
 */
void net_read_stop(struct net_conn *conn)
{
        conn->reading = false;
}

static void write_next(struct net_conn *conn);

static void on_written(uv_write_t *req, int status)
{
        struct net_conn *conn = req->data;

        conn->writing = false;
        free(conn->flight);
        conn->flight = NULL;
        conn->flight_len = 0;
        if (conn->closing)
                return;
        if (status < 0) {
                net_read_stop(conn);
                conn->ended = true;
                conn->ops->on_end(conn, status);
                return;
        }
        if (conn->out_len) {
                write_next(conn);
                return;
        }
        if (conn->ops->on_drain)
                conn->ops->on_drain(conn);
}

/* Hands everything gathered in `out` to libuv as one write. */
static void write_next(struct net_conn *conn)
{
        uv_buf_t buf;

        conn->flight = conn->out;
        conn->flight_len = conn->out_len;
        conn->out = NULL;
        conn->out_len = conn->out_cap = 0;
        buf = uv_buf_init(conn->flight, (unsigned)conn->flight_len);
        conn->write_req.data = conn;
        conn->writing = true;
        /* With one live buffer and an open handle this cannot fail before it is queued. */
        (void)uv_write(&conn->write_req, (uv_stream_t *)&conn->tcp, &buf, 1, on_written);
}

static int out_append(struct net_conn *conn, const char *data, size_t len)
{
        if (conn->out_cap - conn->out_len < len) {
                size_t cap = conn->out_cap ? conn->out_cap * 2 : 4096;
                char *out;

                while (cap - conn->out_len < len)
                        cap *= 2;
                out = realloc(conn->out, cap);
                if (!out)
                        return UV_ENOMEM;
                conn->out = out;
                conn->out_cap = cap;
        }
        memcpy(conn->out + conn->out_len, data, len);
        conn->out_len += len;
        return 0;
}

/*
 * What uv_try_write does, without its detours, without glibc's cancellation point (two locked instructions in a
 * program with threads) and without the file layer's lock of the position: this is called twice per request and
 * once per event of a stream.
 */
static ssize_t write_now(struct net_conn *conn, const uv_buf_t *bufs, unsigned count)
{
        /* uv_buf_t is laid out as struct iovec. */
        struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)bufs, .msg_iovlen = count};
        uv_os_fd_t fd;
        ssize_t sent;

        if (conn->connecting || conn->tcp.write_queue_size)
                return 0;
        if (uv_fileno((const uv_handle_t *)&conn->tcp, &fd))
                return UV_EBADF;
        do
                sent = syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent >= 0)
                return sent;
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? 0
                                                                           : uv_translate_sys_error(errno);
}

int net_write(struct net_conn *conn, const uv_buf_t *bufs, unsigned count)
{
        ssize_t sent = 0;
        bool idle = !conn->writing;
        int error;

        if (conn->closing)
                return UV_ECANCELED;
        if (idle) {
                sent = write_now(conn, bufs, count);
                if (sent < 0)
                        return (int)sent;
        }
        for (unsigned i = 0; i < count; i++) {
                size_t skip = (size_t)sent < bufs[i].len ? (size_t)sent : bufs[i].len;

                sent -= (ssize_t)skip;
                if (skip == bufs[i].len)
                        continue;
                error = out_append(conn, bufs[i].base + skip, bufs[i].len - skip);
                if (error)
                        return error;
        }
        if (idle && conn->out_len)
                write_next(conn);
        return 0;
}

int net_write_ref(struct net_conn *conn, const uv_buf_t *bufs, unsigned count)
{
        uv_buf_t rest[8];
        unsigned rest_count = 0;
        ssize_t sent;

        if (conn->closing)
                return UV_ECANCELED;
        if (conn->writing || count > sizeof rest / sizeof *rest)
                return UV_EINVAL;
        sent = write_now(conn, bufs, count);
        if (sent < 0)
                return (int)sent;
        for (unsigned i = 0; i < count; i++) {
                size_t skip = (size_t)sent < bufs[i].len ? (size_t)sent : bufs[i].len;

                sent -= (ssize_t)skip;
                if (skip < bufs[i].len)
                        rest[rest_count++] = uv_buf_init(bufs[i].base + skip, (unsigned)(bufs[i].len - skip));
        }
        if (rest_count == 0)
                return 0;
        conn->write_req.data = conn;
        conn->writing = true;
        return uv_write(&conn->write_req, (uv_stream_t *)&conn->tcp, rest, rest_count, on_written);
}

size_t net_pending(const struct net_conn *conn)
{
        return conn->out_len + conn->tcp.write_queue_size;
}

bool net_moved(const struct net_conn *conn)
{
        /* What came while nobody reads has made the stop real. */
        return conn->closing || conn->ended || !conn->armed;
}

bool net_stale(const struct net_conn *conn)
{
        uv_os_fd_t fd;
        char byte;
        ssize_t got;

        if (conn->closing || conn->ended || uv_fileno((const uv_handle_t *)&conn->tcp, &fd))
                return true;
        got = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        return !(got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

bool net_has_input(const struct net_conn *conn)
{
        uv_os_fd_t fd;
        char byte;

        return !conn->closing && uv_fileno((const uv_handle_t *)&conn->tcp, &fd) == 0 &&
               recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void net_shutdown(struct net_conn *conn)
{
        uv_os_fd_t fd;

        if (!conn->closing && uv_fileno((const uv_handle_t *)&conn->tcp, &fd) == 0)
                (void)shutdown(fd, SHUT_WR);
}

bool net_dead(const struct net_conn *conn)
{
        struct tcp_info info;
        socklen_t len = sizeof info;
        uv_os_fd_t fd;

        if (conn->closing || uv_fileno((const uv_handle_t *)&conn->tcp, &fd) ||
            getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
                return true;
        return info.tcpi_state == TCP_CLOSE;
}

static void on_connection(uv_stream_t *stream, int status)
{
        struct net_listener *listener = stream->data;
        struct net_conn *conn;

        if (status < 0)
                return;
        conn = conn_new(listener->loop);
        if (!conn)
                return;
        if (uv_accept(stream, (uv_stream_t *)&conn->tcp)) {
                net_close(conn);
                return;
        }
        conn_tune(conn);
        listener->on_accept(listener, conn);
}

/* libuv 1.44 cannot ask for SO_REUSEPORT, so the socket is made here. */
static int reuseport_socket(const struct sockaddr_storage *addr, int *ret_fd)
{
        int one = 1, fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        socklen_t len =
                addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

        if (fd < 0)
                return uv_translate_sys_error(errno);
        if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
            setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) ||
            bind(fd, (const struct sockaddr *)addr, len)) {
                int error = uv_translate_sys_error(errno);

                close(fd);
                return error;
        }
        *ret_fd = fd;
        return 0;
}

static socklen_t addr_len(const struct sockaddr_storage *addr)
{
        return addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

int net_port_is_free(const struct sockaddr_storage *addr)
{
        int one = 1, error = 0, fd = socket(addr->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return uv_translate_sys_error(errno);
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (const struct sockaddr *)addr, addr_len(addr)) || listen(fd, 1))
                error = uv_translate_sys_error(errno);
        close(fd);
        return error;
}

int net_listen(struct net_listener *listener, struct net_loop *loop, struct sockaddr_storage *addr,
               void (*on_accept)(struct net_listener *, struct net_conn *), void *owner)
{
        int fd = -1, error, len = sizeof *addr;

        listener->loop = loop;
        listener->on_accept = on_accept;
        listener->owner = owner;
        error = reuseport_socket(addr, &fd);
        if (error)
                return error;
        error = uv_tcp_init(&loop->uv, &listener->tcp);
        if (error) {
                close(fd);
                return error;
        }
        listener->tcp.data = listener;
        error = uv_tcp_open(&listener->tcp, fd);
        if (error) {
                close(fd);
        } else {
                error = uv_listen((uv_stream_t *)&listener->tcp, LISTEN_BACKLOG, on_connection);
                if (!error)
                        error = uv_tcp_getsockname(&listener->tcp, (struct sockaddr *)addr, &len);
        }
        if (error)
                uv_close((uv_handle_t *)&listener->tcp, NULL);
        return error;
}

static void on_listener_closed(uv_handle_t *handle)
{
        struct net_listener *listener = handle->data;

        if (listener->on_closed)
                listener->on_closed(listener);
}

void net_listener_close(struct net_listener *listener, void (*on_closed)(struct net_listener *))
{
        listener->on_closed = on_closed;
        uv_close((uv_handle_t *)&listener->tcp, on_listener_closed);
}

int net_resolve(const char *host, uint16_t port, struct sockaddr_storage *ret)
{
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *list = NULL;
        int error;

        memset(ret, 0, sizeof *ret);
        if (uv_ip4_addr(host, port, (struct sockaddr_in *)ret) == 0 ||
            uv_ip6_addr(host, port, (struct sockaddr_in6 *)ret) == 0)
                return 0;
        error = getaddrinfo(host, NULL, &hints, &list);
        if (error)
                return error == EAI_MEMORY ? UV_ENOMEM : UV_EAI_NONAME;
        memcpy(ret, list->ai_addr, list->ai_addrlen);
        freeaddrinfo(list);
        if (ret->ss_family == AF_INET)
                ((struct sockaddr_in *)ret)->sin_port = htons(port);
        else
                ((struct sockaddr_in6 *)ret)->sin6_port = htons(port);
        return 0;
}
