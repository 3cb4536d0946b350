/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP connections and listeners on a libuv loop. One loop belongs to one thread; everything here is owner
 * thread only, except net_loop_wake.
 *
 * Lifetime, in numbered sentences:
 *  1. A connection is made by net_connect or handed to a listener's on_accept; it lives in memory of the
 * loop.
 *  2. Exactly one owner holds it (conn->owner, conn->ops may be replaced at any time: pools do so).
 *  3. net_close ends it: the descriptor is closed before net_close returns, no callback comes afterwards, the
 * pointer is void. It may be called from inside any callback of the connection.
 *  4. After on_end nothing more arrives; writing may still work after a FIN (error 0). The owner must call
 * net_close.
 *  5. Unread input at net_close makes the kernel send a reset, which is meant: a peer must notice at once.
 * Reading: bytes come in the loop's shared buffer (or where on_alloc says) and are valid during on_data only.
 * Writing: what the socket does not take at once is copied and kept in order; net_pending tells how much.
 * Callers stop reading from the other side while it is not 0, so a connection never holds more than one
 * read's worth.
 */
#ifndef KVROUTE_NET_CONN_H
#define KVROUTE_NET_CONN_H

#include <kvroute/base.h>
#include <netinet/in.h>
#include <uv.h>

#define NET_READ_BYTES (64 * 1024) /* shared read buffer of a loop */

struct net_conn;

struct net_ops {
        void (*on_data)(struct net_conn *conn, char *data, size_t len);
        /* error 0: the peer sent FIN; else a negative uv error code. An error may follow a FIN, when writing
         * fails. */
        void (*on_end)(struct net_conn *conn, int error);
        /* Everything queued was written (only after net_write or net_write_ref left something pending).
         * Optional. */
        void (*on_drain)(struct net_conn *conn);
        /* Result of net_connect: 0 or a negative uv error code (then call net_close). */
        void (*on_connect)(struct net_conn *conn, int error);
        /*
         * Input, an end or an error is there while nobody reads: said once, and left in the socket. Not asked
         * for where reading is stopped only for a while. Optional.
         */
        void (*on_moved)(struct net_conn *conn);
        /* Where the next bytes should go; leave *ret_len 0 for the shared buffer. Optional. */
        void (*on_alloc)(struct net_conn *conn, char **ret_data, size_t *ret_len);
};

struct net_loop {
        uv_loop_t uv;
        uv_async_t async;
        void (*on_wake)(struct net_loop *loop); /* after net_loop_wake, once for any number of wakes */
        void *owner;
        struct net_conn *free_list;
        unsigned free_count;
        unsigned conn_count; /* connections alive or closing */
        char *read_buf;
};

struct net_conn {
        uv_tcp_t tcp; /* first: handle and connection are one allocation */
        const struct net_ops *ops;
        void *owner;
        struct net_loop *loop;
        uv_connect_t connect_req;
        uv_write_t write_req;
        bool connecting;
        bool writing; /* write_req is in use */
        bool reading;
        bool armed;  /* libuv reads: it is told to stop only when input comes that nobody wants */
        bool full;   /* the last read filled its buffer, so libuv will look for more */
        bool enough; /* net_read_enough */
        bool closing;
        bool ended;
        char *out; /* bytes behind those that write_req writes */
        size_t out_len, out_cap;
        char *flight; /* copied bytes that write_req is writing, NULL for net_write_ref */
        size_t flight_len;
        struct net_conn *next_free;
};

KVR_MUST_USE int net_loop_init(struct net_loop *loop); /* 0 or a negative uv error */
void net_loop_fini(struct net_loop *loop);             /* every handle closed before */
void net_loop_wake(struct net_loop *loop);             /* any thread */
static inline uint64_t net_now_ms(const struct net_loop *loop)
{
        return uv_now(&loop->uv);
}

/*
 * Connects; result by ops->on_connect, never from inside this call. NULL when out of memory or descriptors.
 */
KVR_MUST_USE struct net_conn *net_connect(struct net_loop *loop, const struct sockaddr *addr,
                                          const struct net_ops *ops, void *owner);

/* Starts and stops reading. Accepted and connected connections do not read until told to. */
void net_read_start(struct net_conn *conn);
void net_read_stop(struct net_conn *conn);
/*
 * In on_data: all that is expected for now has come, so that a buffer that was filled to its end is no reason to
 * ask the socket again at once. Reading goes on, with the next event.
 */
static inline void net_read_enough(struct net_conn *conn)
{
        conn->enough = conn->full;
}

/*
 * Writes all buffers in order: at once what the socket takes, the rest is copied and written later.
 * 0 or a negative uv error (the connection is broken; on_end does not come for it: close it).
 */
KVR_MUST_USE int net_write(struct net_conn *conn, const uv_buf_t *bufs, unsigned count);
/* The same without the copy: what is left is referenced until on_drain or net_close. Nothing may be pending
 * before. */
KVR_MUST_USE int net_write_ref(struct net_conn *conn, const uv_buf_t *bufs, unsigned count);
/* Bytes not yet handed to the kernel. */
size_t net_pending(const struct net_conn *conn);
/*
 * Whether an idle connection (not reading) has input, end-of-file or an error waiting: then it must not be
 * reused. net_moved knows what the loop has seen so far and costs nothing; net_stale asks the kernel.
 */
bool net_moved(const struct net_conn *conn);
bool net_stale(const struct net_conn *conn);
/* Whether bytes wait to be read, and not just an end or an error: asks the kernel. */
bool net_has_input(const struct net_conn *conn);

/* Ends our sending half, when nothing is pending: the peer can read what was sent while its own bytes are
 * discarded. */
void net_shutdown(struct net_conn *conn);
/* After a FIN: whether the peer has meanwhile refused what we sent it (reset), so that it is gone and not
 * half-closed. */
bool net_dead(const struct net_conn *conn);

void net_close(struct net_conn *conn);

/* A listening socket with SO_REUSEPORT, so that each thread can have its own on the same port. */
struct net_listener {
        uv_tcp_t tcp;
        struct net_loop *loop;
        void (*on_accept)(struct net_listener *listener, struct net_conn *conn);
        void (*on_closed)(struct net_listener *listener);
        void *owner;
};
/*
 * Sockets with SO_REUSEPORT share a port without a word, also with another process that means something else.
 * 0 if nobody listens there yet (or the port is 0), else a negative uv error.
 */
KVR_MUST_USE int net_port_is_free(const struct sockaddr_storage *addr);
/*
 * *addr's port 0 is replaced by the one bound. 0 or a negative uv error. The listener's memory must stay
 * until on_closed (after a failure: until the loop has turned once).
 */
KVR_MUST_USE int net_listen(struct net_listener *listener, struct net_loop *loop,
                            struct sockaddr_storage *addr,
                            void (*on_accept)(struct net_listener *, struct net_conn *), void *owner);
void net_listener_close(struct net_listener *listener, void (*on_closed)(struct net_listener *));

/* "host:port", "[v6]:port" -> address; host names are resolved, blocking. 0 or a negative uv error. */
KVR_MUST_USE int net_resolve(const char *host, uint16_t port, struct sockaddr_storage *ret);

#endif
