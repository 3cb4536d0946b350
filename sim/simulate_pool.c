/* SPDX-License-Identifier: Apache-2.0 */
/* Cells on several threads. */
#include "simulate.h"
#include "run.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define THREADS_MAX 256
#define SHOW_NS     200000000L
#define PARTS       1000u /* of the whole in which progress is told */

struct state {
        const struct sim_pool *pool;
        _Atomic uint32_t next;
        _Atomic uint64_t progress;
        _Atomic bool failed;
        pthread_mutex_t lock;
        pthread_cond_t ended;
        uint32_t running; /* threads, under the lock */
};

static void *work(void *arg)
{
        struct state *state = arg;
        const struct sim_pool *pool = state->pool;

        while (!atomic_load(&state->failed)) {
                uint32_t number = atomic_fetch_add(&state->next, 1);

                if (number >= pool->tasks)
                        break;
                if (!pool->run(pool->ctx, number, &state->progress))
                        atomic_store(&state->failed, true);
        }
        pthread_mutex_lock(&state->lock);
        state->running--;
        pthread_cond_signal(&state->ended);
        pthread_mutex_unlock(&state->lock);
        return NULL;
}

static uint32_t parts_done(struct state *state)
{
        uint64_t total = state->pool->total ? state->pool->total : 1, done = atomic_load(&state->progress);

        return (uint32_t)((double)(done < total ? done : total) / (double)total * PARTS);
}

/* Until all threads have ended, showing how far they are. */
static void wait_all(struct state *state)
{
        struct sim_progress progress;

        sim_progress_init(&progress, state->pool->title, state->pool->quiet);
        pthread_mutex_lock(&state->lock);
        while (state->running) {
                struct timespec until;

                clock_gettime(CLOCK_REALTIME, &until);
                until.tv_nsec += SHOW_NS;
                if (until.tv_nsec >= 1000000000L) {
                        until.tv_nsec -= 1000000000L;
                        until.tv_sec++;
                }
                pthread_cond_timedwait(&state->ended, &state->lock, &until);
                sim_progress_show(&progress, parts_done(state), PARTS);
        }
        pthread_mutex_unlock(&state->lock);
        sim_progress_end(&progress);
}

bool sim_pool_run(const struct sim_pool *pool)
{
        struct state state = {.pool = pool};
        pthread_t threads[THREADS_MAX] = {0};
        uint32_t count = pool->threads < pool->tasks ? pool->threads : pool->tasks, made = 0;

        count = count > THREADS_MAX ? THREADS_MAX : count;
        pthread_mutex_init(&state.lock, NULL);
        pthread_cond_init(&state.ended, NULL);
        state.running = count;
        while (made < count && pthread_create(&threads[made], NULL, work, &state) == 0)
                made++;
        if (made < count) {
                /* Fewer threads do it too; none at all does not. */
                pthread_mutex_lock(&state.lock);
                state.running -= count - made;
                pthread_mutex_unlock(&state.lock);
        }
        wait_all(&state);
        for (uint32_t i = 0; i < made; i++)
                pthread_join(threads[i], NULL);
        pthread_cond_destroy(&state.ended);
        pthread_mutex_destroy(&state.lock);
        return !atomic_load(&state.failed) && (made > 0 || pool->tasks == 0);
}
