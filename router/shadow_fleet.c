/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual replicas, and what is passed on to them of the real ones. */
#include <math.h>
#include <stdlib.h>

#include "shadow_int.h"

#define LOOK_NS    250000000ull /* between two looks at what was learned of a replica */
#define SLOTS_MORE 16

/* ---- slots ---- */

struct shadow_slot *shadow__slot_real(struct shadow *shadow, kvr_replica_id id)
{
        for (size_t i = 0; i < shadow->slot_count; i++)
                if (shadow->slots[i]->real == id)
                        return shadow->slots[i];
        return NULL;
}

struct shadow_slot *shadow__slot_virt(struct shadow *shadow, kvr_replica_id id)
{
        for (size_t i = 0; i < shadow->slot_count; i++)
                if (shadow->slots[i]->virt == id)
                        return shadow->slots[i];
        return NULL;
}

/* What waits takes as long as is known of the speed by now, not as was guessed from the first few answers. */
static void speed_set(struct shadow *shadow, struct shadow_slot *slot, double token_s)
{
        for (int role = 0; role < SHADOW_ROLES && slot->token_s > 0; role++) {
                uint64_t *free_ns = &slot->free_ns[role];

                if (*free_ns > shadow->now_ns)
                        *free_ns = shadow->now_ns +
                                   (uint64_t)((double)(*free_ns - shadow->now_ns) * token_s / slot->token_s);
        }
        if (slot->token_s <= 0 && token_s > 0)
                shadow->adopted_ns = 0; /* the first word of its speed is news */
        slot->token_s = token_s;
}

void shadow__slot_look(struct shadow *shadow, struct shadow_slot *slot)
{
        struct kvr_replica_info info;
        bool lost;

        /* Of a mirror's replicas nothing is learned: they compute as fast as they are told to. */
        if (shadow->options.mirror || (slot->token_s > 0 && shadow->now_ns < slot->looked_ns + LOOK_NS))
                return;
        if (kvr_replica_info(shadow->options.real, slot->real, &info) != KVR_OK)
                return;
        lost = slot->looked_ns && info.resets != slot->resets;
        slot->looked_ns = shadow->now_ns;
        slot->resets = info.resets;
        speed_set(shadow, slot, info.prefill_tokens_per_second > 0 ? 1 / info.prefill_tokens_per_second : 0);
        if (lost)
                (void)kvr_replica_forget(shadow->brain, slot->virt);
}

double shadow__slot_token_s(const struct shadow *shadow, const struct shadow_slot *slot)
{
        return shadow->options.mirror ? 1 / shadow->options.prefill_speed : slot->token_s;
}

void shadow__slot_use(struct shadow_slot *slot, enum shadow_role role)
{
        slot->users++;
        slot->flight[role]++;
        if (slot->flight[role] > slot->peak[role])
                slot->peak[role] = slot->flight[role];
}

static void slot_drop(struct shadow *shadow, struct shadow_slot *slot)
{
        if (slot->present || slot->users)
                return;
        for (size_t i = 0; i < shadow->slot_count; i++) {
                if (shadow->slots[i] != slot)
                        continue;
                shadow->slots[i] = shadow->slots[--shadow->slot_count];
                break;
        }
        free(slot);
}

void shadow__slot_leave(struct shadow *shadow, struct shadow_slot *slot, enum shadow_role role)
{
        slot->users--;
        slot->flight[role]--;
        slot_drop(shadow, slot);
}

uint64_t shadow__slot_queue(struct shadow *shadow, struct shadow_slot *slot, enum shadow_role role,
                            uint32_t uncached)
{
        double token_s = shadow__slot_token_s(shadow, slot);
        uint64_t begin_ns = slot->free_ns[role] > shadow->now_ns ? slot->free_ns[role] : shadow->now_ns;
        uint64_t latest_ns = shadow->now_ns + SHADOW_BACKLOG_NS;
        double own_ns = uncached * token_s * 1e9;
        uint64_t first_ns = own_ns < (double)SHADOW_BACKLOG_NS ? begin_ns + (uint64_t)own_ns : latest_ns;

        slot->free_ns[role] = first_ns < latest_ns ? first_ns : latest_ns;
        return slot->free_ns[role];
}

void shadow__fleet_free(struct shadow *shadow)
{
        for (size_t i = 0; i < shadow->slot_count; i++)
                free(shadow->slots[i]);
        free(shadow->slots);
}

/* ---- as the real router is told ---- */

static bool room_for_slot(struct shadow *shadow)
{
        struct shadow_slot **slots;

        if (shadow->slot_count < shadow->slot_room)
                return true;
        slots = realloc(shadow->slots, (shadow->slot_room + SLOTS_MORE) * sizeof(struct shadow_slot *));
        if (!slots)
                return false;
        shadow->slots = slots;
        shadow->slot_room += SLOTS_MORE;
        return true;
}

enum kvr_status shadow_replica_add(struct shadow *shadow, kvr_replica_id id,
                                   const struct kvr_replica_spec *spec, struct kvr_error *err)
{
        struct shadow_slot *slot;
        enum kvr_status status = KVR_E_NOMEM;

        if (!shadow)
                return KVR_OK;
        slot = calloc(1, sizeof *slot);
        pthread_mutex_lock(&shadow->lock);
        if (slot && room_for_slot(shadow))
                status = kvr_replica_add(shadow->brain, spec, &slot->virt, err);
        if (status == KVR_OK) {
                slot->real = id;
                slot->present = true;
                shadow->slots[shadow->slot_count++] = slot;
                slot = NULL;
        }
        pthread_mutex_unlock(&shadow->lock);
        free(slot);
        return status;
}

/* Runs body with the virtual replica of a real one, if there is one. */
#define WITH_SLOT(shadow, id, body)                                       \
        do {                                                              \
                if (!(shadow))                                            \
                        break;                                            \
                pthread_mutex_lock(&(shadow)->lock);                      \
                struct shadow_slot *slot = shadow__slot_real(shadow, id); \
                if (slot && slot->present) {                              \
                        body;                                             \
                }                                                         \
                pthread_mutex_unlock(&(shadow)->lock);                    \
        } while (0)

void shadow_replica_remove(struct shadow *shadow, kvr_replica_id id)
{
        WITH_SLOT(shadow, id, {
                (void)kvr_replica_remove(shadow->brain, slot->virt);
                slot->present = false;
                slot_drop(shadow, slot);
        });
}

void shadow_replica_configure(struct shadow *shadow, kvr_replica_id id, const struct kvr_replica_spec *spec)
{
        WITH_SLOT(shadow, id, (void)kvr_replica_configure(shadow->brain, slot->virt, spec));
}

enum kvr_status shadow_replica_set_models(struct shadow *shadow, kvr_replica_id id,
                                          const struct kvr_slice *models, size_t count)
{
        enum kvr_status status = KVR_OK;

        WITH_SLOT(shadow, id, status = kvr_replica_set_models(shadow->brain, slot->virt, models, count));
        return status;
}

void shadow_replica_set_state(struct shadow *shadow, kvr_replica_id id, enum kvr_state state)
{
        WITH_SLOT(shadow, id, (void)kvr_replica_set_state(shadow->brain, slot->virt, state));
}

void shadow_replica_forget(struct shadow *shadow, kvr_replica_id id)
{
        WITH_SLOT(shadow, id, (void)kvr_replica_forget(shadow->brain, slot->virt));
}

void shadow_replica_pause(struct shadow *shadow, kvr_replica_id id, uint64_t until_ns)
{
        WITH_SLOT(shadow, id, (void)kvr_replica_pause(shadow->brain, slot->virt, until_ns));
}

static double beyond(double all, double own)
{
        return all > own ? all - own : 0;
}

/*
 * The engine counts our requests where they really are. On the virtual fleet they are somewhere else, so what the
 * shadow is told is the virtual requests there plus what the engine has beyond the real ones: its load by
 * others. Of its cache in use and the tokens queued nothing can be said that would hold there.
 */
static void report_pass(struct shadow *shadow, struct shadow_slot *slot, const struct kvr_load_report *report)
{
        struct kvr_load_report passed = {
                .at_ns = report->at_ns,
                .running = report->running,
                .waiting = report->waiting,
                .kv_usage = NAN,
                .waiting_tokens = NAN,
        };

        if (report->running >= 0 && report->waiting >= 0) {
                double real = slot->peak[SHADOW_ACTUAL], virt = slot->peak[SHADOW_KV];
                double foreign = beyond(report->running + report->waiting, real);
                double queued = fmin(foreign, beyond(report->waiting, real));

                passed.waiting = queued > 0 ? queued + virt : 0;
                passed.running = beyond(foreign + virt, passed.waiting);
        }
        for (int role = 0; role < SHADOW_ROLES; role++)
                slot->peak[role] = slot->flight[role];
        (void)kvr_replica_report(shadow->brain, slot->virt, &passed);
}

void shadow_replica_report(struct shadow *shadow, kvr_replica_id id, const struct kvr_load_report *report)
{
        WITH_SLOT(shadow, id, report_pass(shadow, slot, report));
}

bool shadow_booked(struct shadow *shadow, kvr_replica_id id, uint32_t *ret_flights, uint64_t *ret_tokens)
{
        bool found = false;

        WITH_SLOT(shadow, id, {
                struct kvr_replica_info info;

                found = kvr_replica_info(shadow->brain, slot->virt, &info) == KVR_OK;
                if (found) {
                        *ret_flights = info.in_flight;
                        *ret_tokens = info.uncached_tokens_booked;
                }
        });
        return found;
}
