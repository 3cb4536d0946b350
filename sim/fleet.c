/* SPDX-License-Identifier: Apache-2.0 */
#include "fleet.h"
#include "wait.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_TIMEOUT_NS 15000000000u
#define STOP_TIMEOUT_NS  5000000000u
#define POLL_NS          5000000

extern char **environ;

/* ---- mock engines ------------------------------------------------------------------------------------- */

struct sim_fleet {
        struct net_loop loop;
        pthread_t thread;
        uint32_t count;
        struct sim_mock *mocks[SIM_FLEET_MAX];
        uint16_t ports[SIM_FLEET_MAX];
        struct sim_cpu cpu;
};

/* On the fleet's thread: somebody wants it to end. */
static void on_wake(struct net_loop *loop)
{
        struct sim_fleet *fleet = loop->owner;

        for (uint32_t i = 0; i < fleet->count; i++)
                sim_mock_close(fleet->mocks[i], NULL, NULL);
        fleet->count = 0;
        uv_unref((uv_handle_t *)&loop->async);
}

static double cpu_seconds(const struct rusage *usage)
{
        return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
               (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) * 1e-6;
}

static void *run_fleet(void *arg)
{
        struct sim_fleet *fleet = arg;
        struct rusage usage;

        uv_run(&fleet->loop.uv, UV_RUN_DEFAULT);
        if (getrusage(RUSAGE_THREAD, &usage) == 0)
                fleet->cpu.used_s = cpu_seconds(&usage);
        fleet->cpu.waited_s = sim_wait_thread_s();
        return NULL;
}

static void fleet_close(struct sim_fleet *fleet)
{
        on_wake(&fleet->loop);
        uv_run(&fleet->loop.uv, UV_RUN_DEFAULT);
        net_loop_fini(&fleet->loop);
        free(fleet);
}

struct sim_fleet *sim_fleet_start(const struct sim_mock_options *options, uint32_t count, char *message,
                                  size_t size)
{
        struct sim_fleet *fleet = calloc(1, sizeof(*fleet));
        int error = UV_ENOMEM;

        if (!fleet || net_loop_init(&fleet->loop)) {
                free(fleet);
                snprintf(message, size, "out of memory");
                return NULL;
        }
        fleet->loop.owner = fleet;
        fleet->loop.on_wake = on_wake;
        for (uint32_t i = 0; i < count; i++) {
                struct sockaddr_storage addr;

                error = net_resolve("127.0.0.1", 0, &addr);
                fleet->mocks[i] = error ? NULL : sim_mock_new(&fleet->loop, &addr, options, &error);
                if (!fleet->mocks[i])
                        break;
                fleet->ports[i] = ntohs(((const struct sockaddr_in *)&addr)->sin_port);
                fleet->count++;
        }
        if (fleet->count == count)
                error = -pthread_create(&fleet->thread, NULL, run_fleet, fleet);
        if (error) {
                snprintf(message, size, "cannot start mock engines: %s", uv_strerror(error));
                fleet_close(fleet);
                return NULL;
        }
        return fleet;
}

uint16_t sim_fleet_port(const struct sim_fleet *fleet, uint32_t number)
{
        return fleet->ports[number];
}

void sim_fleet_stop(struct sim_fleet *fleet, struct sim_cpu *ret_cpu)
{
        net_loop_wake(&fleet->loop);
        (void)pthread_join(fleet->thread, NULL);
        *ret_cpu = fleet->cpu;
        net_loop_fini(&fleet->loop);
        free(fleet);
}

/* ---- the router --------------------------------------------------------------------------------------- */

/* A nameless file: a pipe would block the router once nobody reads it. */
static int log_file(void)
{
        const char *dir = getenv("TMPDIR");
        char path[512];
        int fd;

        snprintf(path, sizeof(path), "%s/kvroute-demo-XXXXXX", dir && *dir ? dir : "/tmp");
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0)
                (void)unlink(path);
        return fd;
}

/* The end of the log, for messages. */
static void log_tail(int fd, char *ret, size_t size)
{
        off_t len = lseek(fd, 0, SEEK_END);
        off_t from = len > (off_t)size - 1 ? len - ((off_t)size - 1) : 0;
        ssize_t got = len > 0 ? pread(fd, ret, size - 1, from) : 0;

        ret[got > 0 ? got : 0] = 0;
}

/* Settings for somebody's own router must not steer the demo's. */
static char **clean_environment(void)
{
        size_t count = 0, kept = 0;
        char **copy;

        while (environ[count])
                count++;
        copy = calloc(count + 1, sizeof(*copy));
        for (size_t i = 0; copy && i < count; i++) {
                if (strncmp(environ[i], "KVROUTE_", 8) != 0)
                        copy[kept++] = environ[i];
        }
        return copy;
}

static int spawn(struct sim_router *router, const char *program, const char *const *args)
{
        const char *argv[2 * SIM_FLEET_MAX + 40] = {"kvroute", "serve"};
        char **env = clean_environment();
        pid_t parent = getpid(), pid;

        for (size_t i = 0; args[i] && i + 3 < sizeof(argv) / sizeof(argv[0]); i++)
                argv[i + 2] = args[i];
        pid = env ? fork() : -1;
        if (pid == 0) {
                /* Only what is safe between fork and exec in a program with threads. */
                (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
                if (getppid() != parent)
                        _exit(1);
                (void)dup2(router->log_fd, STDERR_FILENO);
                (void)dup2(router->log_fd, STDOUT_FILENO);
                (void)execve(program, (char *const *)(uintptr_t)argv, env);
                _exit(127);
        }
        free(env);
        return pid;
}

static bool find_url(const char *log, const char *before, char *ret, size_t size)
{
        const char *at = strstr(log, before);
        size_t len = at ? strcspn(at + strlen(before), " ),\n") : 0;

        if (len == 0 || len >= size)
                return false;
        memcpy(ret, at + strlen(before), len);
        ret[len] = 0;
        return true;
}

static bool is_gone(struct sim_router *router)
{
        siginfo_t info = {0};

        /* Looks without reaping: the times are fetched at the end. */
        return waitid(P_PID, (id_t)router->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

static void nap(void)
{
        const struct timespec pause = {.tv_nsec = POLL_NS};

        (void)nanosleep(&pause, NULL);
}

bool sim_router_start(struct sim_router *router, const char *program, const char *const *args, char *message,
                      size_t size)
{
        char log[4096];
        struct sim_cpu ignored;

        *router = (struct sim_router){.log_fd = log_file(), .start_ns = uv_hrtime()};
        if (router->log_fd < 0) {
                snprintf(message, size, "cannot make a temporary file: %s", strerror(errno));
                return false;
        }
        router->pid = spawn(router, program, args);
        if (router->pid <= 0) {
                snprintf(message, size, "cannot start the router: %s", strerror(errno));
                close(router->log_fd);
                return false;
        }
        while (uv_hrtime() - router->start_ns < READY_TIMEOUT_NS && !is_gone(router)) {
                log_tail(router->log_fd, log, sizeof(log));
                if (find_url(log, "ready on ", router->url, sizeof(router->url))) {
                        if (!find_url(log, "(admin ", router->admin, sizeof(router->admin)))
                                router->admin[0] = 0;
                        return true;
                }
                nap();
        }
        log_tail(router->log_fd, log, size > 600 ? 500 : size / 2);
        snprintf(message, size, "the router (%s serve) %s; it said: %s", program,
                 is_gone(router) ? "ended at once" : "did not get ready", log[0] ? log : "nothing");
        (void)sim_router_stop(router, &ignored, log, sizeof(log));
        return false;
}

bool sim_router_stop(struct sim_router *router, struct sim_cpu *ret_cpu, char *message, size_t size)
{
        uint64_t began = uv_hrtime();
        struct rusage usage = {0};
        bool died = is_gone(router), killed = false;
        int status = 0;

        if (router->pid <= 0)
                return true;
        ret_cpu->waited_s = sim_wait_process_s(router->pid);
        if (!died)
                (void)kill(router->pid, SIGTERM);
        while (wait4(router->pid, &status, WNOHANG, &usage) == 0) {
                if (!killed && uv_hrtime() - began > STOP_TIMEOUT_NS) {
                        (void)kill(router->pid, SIGKILL);
                        killed = true;
                }
                nap();
        }
        ret_cpu->used_s = cpu_seconds(&usage);
        if (died)
                log_tail(router->log_fd, message, size);
        close(router->log_fd);
        router->pid = 0;
        return !died;
}
