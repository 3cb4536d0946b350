/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "siphash.h"

#define SPARE_DESCRIPTORS 256 /* for all that is not a client and its replica */

/* The time of the event that the thread is working on; 0 none. */
static _Thread_local uint64_t held_ns;

uint64_t host_now_ns(void *ctx)
{
        (void)ctx;
        return held_ns ? held_ns : uv_hrtime();
}

void host_hold_time(uint64_t now_ns)
{
        held_ns = now_ns;
}

#define SPLITMIX_STEP 0x9e3779b97f4a7c15u

static uint64_t splitmix(uint64_t z)
{
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
}

uint64_t host_random64(void *ctx)
{
        static _Thread_local uint64_t state;

        (void)ctx;
        while (state == 0) {
                if (getrandom(&state, sizeof state, 0) != sizeof state)
                        state = uv_hrtime() ^ (uint64_t)(uintptr_t)&state;
        }
        return splitmix(state += SPLITMIX_STEP);
}

/* The seed is a secret (it is the prompt keys' too), and choices can be watched. */
void host_chance_init(struct host_chance *chance, uint64_t seed, const char *who)
{
        static const struct siphash_key domain = {0x63686f6963652d31ull, 0x6b65792d6f662d69ull};

        atomic_init(&chance->state, siphash_pair(&domain, seed, siphash(&domain, who, strlen(who))));
}

uint64_t host_chance64(void *ctx)
{
        struct host_chance *chance = ctx;

        return splitmix(atomic_fetch_add_explicit(&chance->state, SPLITMIX_STEP, memory_order_relaxed) +
                        SPLITMIX_STEP);
}

void host_notify(const char *message)
{
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        size_t len = path ? strlen(path) : 0;
        int fd;

        if (len < 2 || len >= sizeof addr.sun_path || (path[0] != '/' && path[0] != '@'))
                return;
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return;
        memcpy(addr.sun_path, path, len);
        if (path[0] == '@')
                addr.sun_path[0] = '\0';
        (void)!sendto(fd, message, strlen(message), MSG_NOSIGNAL, (struct sockaddr *)&addr,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
        close(fd);
}

/*
 * A connection of a client and one to a replica each take a descriptor: asks for as many as we may have.
 * Returns how many clients there is room for.
 */
unsigned host_room_for_connections(struct logger *log, uint64_t connections)
{
        struct rlimit limit;
        rlim_t wanted = (rlim_t)connections * 2 + SPARE_DESCRIPTORS;
        uint64_t room;

        if (getrlimit(RLIMIT_NOFILE, &limit))
                return (unsigned)connections;
        if (limit.rlim_cur < wanted) {
                limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
                (void)setrlimit(RLIMIT_NOFILE, &limit);
        }
        /* Idle clients need no second one, so three of four descriptors may be clients'. */
        room = limit.rlim_cur > 2 * SPARE_DESCRIPTORS ? (limit.rlim_cur - SPARE_DESCRIPTORS) / 4 * 3
                                                      : SPARE_DESCRIPTORS / 2;
        if (room >= connections)
                return (unsigned)connections;
        log_say(log, LOG_INFO, NULL,
                "the limit of open files (%llu) leaves room for %llu client connections, fewer than "
                "max-connections: raise it (ulimit -n, LimitNOFILE=) for more",
                (unsigned long long)limit.rlim_cur, (unsigned long long)room);
        return (unsigned)room;
}

/* Those this process may run on, which in a container can be fewer than the machine has. */
unsigned host_cores(void)
{
        cpu_set_t set;

        if (sched_getaffinity(0, sizeof set, &set) || CPU_COUNT(&set) < 1)
                return 1;
        return (unsigned)CPU_COUNT(&set);
}
