/* SPDX-License-Identifier: Apache-2.0 */
/* The books of a replica, the seconds that follow from them, and those of all candidates beside each other. */
#include <math.h>

#include "router_int.h"

#define MEAN_STEP   (1.0 / 16)
#define KV_FULL     0.95 /* from here on a waiting request waits for another to end */
#define STAY_S_MIN  0.25 /* a request's stay while none was seen to end */
#define ANSWER_LEFT 0.5  /* of an answer that is being generated */

/* ---- books ---- */

static void prefill_unlink(struct kvr__replica *replica, struct kvr_ticket *ticket)
{
        if (ticket->prev)
                ticket->prev->next = ticket->next;
        else
                replica->prefill_head = ticket->next;
        if (ticket->next)
                ticket->next->prev = ticket->prev;
        else
                replica->prefill_tail = ticket->prev;
        ticket->prev = ticket->next = NULL;
        replica->prefilling--;
        replica->booked_tokens -= ticket->booked_tokens;
        replica->booked_weight -= ticket->weight;
}

/* ln(1 + in_flight): twice a request, and mostly of a small number. */
static double log_of_flight(uint32_t in_flight)
{
        static const double logs[] = {
                0,
                0.6931471805599453,
                1.0986122886681096,
                1.3862943611198906,
                1.6094379124341003,
                1.791759469228055,
                1.9459101490553132,
                2.0794415416798357,
                2.1972245773362196,
                2.302585092994046,
                2.3978952727983707,
                2.4849066497880004,
                2.5649493574615367,
                2.639057329615259,
                2.70805020110221,
                2.772588722239781,
                2.833213344056216,
                2.8903717578961645,
                2.9444389791664403,
                2.995732273553991,
                3.044522437723423,
                3.091042453358316,
                3.1354942159291497,
                3.1780538303479458,
                3.2188758248682006,
                3.258096538021482,
                3.295836866004329,
                3.332204510175204,
                3.367295829986474,
                3.4011973816621555,
                3.4339872044851463,
                3.4657359027997265,
        };

        return in_flight < sizeof(logs) / sizeof(*logs) ? logs[in_flight] : log1p(in_flight);
}

static void flight_set(struct kvr__replica *replica, uint32_t in_flight)
{
        replica->in_flight = in_flight;
        replica->log_flight = log_of_flight(in_flight);
}

static void peaks_raise(struct kvr__replica *replica)
{
        if (replica->in_flight > replica->peak_flight)
                replica->peak_flight = replica->in_flight;
        if (replica->prefilling > replica->peak_prefilling)
                replica->peak_prefilling = replica->prefilling;
        if (replica->booked_tokens > replica->peak_booked)
                replica->peak_booked = replica->booked_tokens;
}

void kvr__load_book(struct kvr__replica *replica, struct kvr_ticket *ticket)
{
        ticket->next = NULL;
        ticket->prev = replica->prefill_tail;
        if (replica->prefill_tail)
                replica->prefill_tail->next = ticket;
        else
                replica->prefill_head = ticket;
        replica->prefill_tail = ticket;
        replica->prefilling++;
        replica->booked_tokens += ticket->booked_tokens;
        replica->booked_weight += ticket->weight;
        replica->decisions++;
        replica->decided_ns = ticket->sent_ns;
        replica->mean_uncached += replica->mean_uncached > 0
                                          ? (ticket->booked_tokens - replica->mean_uncached) * MEAN_STEP
                                          : ticket->booked_tokens;
        flight_set(replica, replica->in_flight + 1);
        peaks_raise(replica);
}

bool kvr__load_first_token(struct kvr__replica *replica, struct kvr_ticket *ticket, uint64_t now_ns)
{
        if (ticket->first_token)
                return false;
        uint64_t from = ticket->sent_ns > replica->first_token_ns ? ticket->sent_ns : replica->first_token_ns;

        ticket->first_token = true;
        ticket->first_ns = now_ns;
        ticket->busy_s = now_ns > from ? (double)(now_ns - from) / 1e9 : 0;
        if (now_ns > replica->first_token_ns)
                replica->first_token_ns = now_ns;
        prefill_unlink(replica, ticket);
        return true;
}

void kvr__load_release(struct kvr__replica *replica, struct kvr_ticket *ticket)
{
        if (!ticket->first_token)
                prefill_unlink(replica, ticket);
        flight_set(replica, replica->in_flight - 1);
}

/* ---- what the engine says ---- */

static double known(double figure)
{
        return figure >= 0 && isfinite(figure) ? figure : NAN;
}

static double excess(double all, double own)
{
        return isnan(all) ? NAN : all > own ? all - own : 0;
}

void kvr__load_report(struct kvr__replica *replica, const struct kvr_load_report *report)
{
        replica->report = (struct kvr_load_report){
                .at_ns = report->at_ns,
                .running = known(report->running),
                .waiting = known(report->waiting),
                .kv_usage = known(report->kv_usage),
                .waiting_tokens = known(report->waiting_tokens),
        };
        report = &replica->report;
        /* What waits there beyond our own requests is somebody else's: another router, or a client of its
         * own. */
        replica->foreign_waiting = excess(report->waiting, replica->peak_prefilling);
        replica->foreign_flight = excess(report->waiting + report->running, replica->peak_flight);
        replica->foreign_tokens = excess(report->waiting_tokens, (double)replica->peak_booked);
        if (isnan(replica->foreign_tokens) && !isnan(replica->foreign_waiting)) {
                double mean = replica->mean_uncached > 0 ? replica->mean_uncached : KVR__UNKNOWN_TOKENS;

                replica->foreign_tokens = replica->foreign_waiting * mean;
        }
        replica->peak_flight = replica->in_flight;
        replica->peak_prefilling = replica->prefilling;
        replica->peak_booked = replica->booked_tokens;
}

bool kvr__load_report_fresh(const struct kvr__replica *replica, uint64_t now_ns)
{
        return replica->report.at_ns && now_ns < replica->report.at_ns + KVR__REPORT_LIFE_NS;
}

/* ---- seconds ---- */

/*
 * Tokens of the oldest prompt still ahead of a new one. It is taken to shrink as time goes by; when it is
 * overdue our figures for it were wrong, and it counts again, up to its full size, instead of making a slow
 * replica look idle.
 */
static double head_tokens_done(const struct kvr__replica *replica, double token_s, uint64_t now_ns)
{
        const struct kvr_ticket *head = replica->prefill_head;

        if (!head)
                return 0;
        uint64_t from = head->sent_ns > replica->first_token_ns ? head->sent_ns : replica->first_token_ns;
        double done = now_ns > from ? (double)(now_ns - from) / 1e9 / token_s : 0;
        double all = head->booked_tokens;

        if (done > all)
                done = 2 * all - done;
        return done > 0 ? done : 0;
}

double kvr__load_wait(const struct kvr__replica *replica, double token_s, uint64_t now_ns)
{
        if (!replica->in_flight && !replica->report.at_ns)
                return 0;
        double tokens = (double)replica->booked_tokens - head_tokens_done(replica, token_s, now_ns) +
                        (double)KVR__REQUEST_TOKENS * (replica->in_flight - replica->prefilling);
        double stay_s = replica->mean_total_s > STAY_S_MIN ? replica->mean_total_s : STAY_S_MIN;
        double wait_s = 0;

        if (kvr__load_report_fresh(replica, now_ns)) {
                const struct kvr_load_report *report = &replica->report;

                if (replica->foreign_tokens > 0)
                        tokens += replica->foreign_tokens;
                if (report->kv_usage >= KV_FULL && report->waiting > 0)
                        wait_s += report->waiting * stay_s / (report->running > 1 ? report->running : 1);
        }
        if (replica->slots && replica->in_flight >= kvr__slots_count(replica->slots)) {
                uint32_t count = kvr__slots_count(replica->slots);
                double slot_s = replica->mean_slot_s > 0 ? replica->mean_slot_s : STAY_S_MIN;

                return wait_s + fmax(tokens * token_s, slot_s * (replica->in_flight - count + 1) / count);
        }
        return wait_s + tokens * token_s;
}

double kvr__load_queue(const struct kvr__replica *replica, uint64_t now_ns)
{
        double queue = (double)replica->booked_weight / KVR__WEIGHT;

        if (replica->foreign_waiting > 0 && kvr__load_report_fresh(replica, now_ns))
                queue += replica->foreign_waiting;
        return queue;
}

double kvr__load_log_flight(const struct kvr__replica *replica, uint64_t now_ns)
{
        if (replica->foreign_flight > 0 && kvr__load_report_fresh(replica, now_ns))
                return log1p(replica->in_flight + replica->foreign_flight);
        return replica->log_flight;
}

double kvr__load_ramp(const struct kvr__replica *replica, uint64_t now_ns)
{
        uint64_t age = now_ns > replica->ready_since_ns ? now_ns - replica->ready_since_ns : 0;

        return age < KVR__RAMP_NS ? 1 - (double)age / (double)KVR__RAMP_NS : 0;
}

/* ---- the candidates of a decision ---- */

void kvr__speeds_fill(const struct kvr_router *router, struct kvr__choice *choice)
{
        static const struct kvr__curve none = {0};
        const struct kvr__curve *curve = choice->model ? &choice->model->curve : &none;
        struct kvr__view *view = &choice->view;
        struct kvr__candidate *candidates = view->candidates;
        double sum = 0, mean_s = router->default_token_s;
        uint32_t known = 0, count = view->count;

        for (uint32_t i = 0; i < count; i++) {
                double token_s = kvr__speed_token_s(curve, &candidates[i].replica->speed);

                candidates[i].token_s = token_s;
                sum += token_s;
                known += token_s > 0;
        }
        if (known)
                mean_s = sum / known;
        for (uint32_t i = 0; known < count && i < count; i++)
                if (candidates[i].token_s <= 0)
                        candidates[i].token_s = mean_s;
        view->token_s = mean_s;
}

/*
 * Every token of an answer takes the place of a prompt's token in a step of its engine, and half of an answer is still
 * to come on average. Behind many of them the part of a prompt that is cached there is worth so much less; whoever has
 * to compute all of it anyway best goes where that begins soonest.
 */
void kvr__loads_fill(struct kvr__view *view, double answer_tokens)
{
        struct kvr__candidate *candidates = view->candidates;
        uint64_t newest_ns = 0, now_ns = view->now_ns;
        double log_flight = 0;
        bool starved = view->starved > 0;

        answer_tokens *= ANSWER_LEFT;
        for (uint32_t i = 0; i < view->count; i++) {
                const struct kvr__replica *replica = candidates[i].replica;

                if (starved)
                        candidates[i].queue = kvr__load_queue(replica, now_ns);
                candidates[i].wait_s = kvr__load_wait(replica, candidates[i].token_s, now_ns);
                if (candidates[i].match_tokens)
                        candidates[i].wait_s += answer_tokens * candidates[i].match_tokens /
                                                view->prompt_tokens * candidates[i].token_s *
                                                (replica->in_flight - replica->prefilling);
                log_flight += kvr__load_log_flight(replica, now_ns);
                if (replica->ready_since_ns > newest_ns)
                        newest_ns = replica->ready_since_ns;
        }
        view->log_flight = log_flight / view->count;
        view->newest_ns = newest_ns;
}
