/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

bool sim_records_init(struct sim_records *records, uint32_t max, bool keep_bodies)
{
        *records = (struct sim_records){.max = max, .keep_bodies = keep_bodies};
        records->slots = calloc(max, sizeof(*records->slots));
        return records->slots != NULL;
}

static void slot_clear(struct sim_record *record)
{
        free(record->target);
        free(record->headers);
        free(record->body);
        *record = (struct sim_record){.first_token_s = -1, .end_s = -1};
}

void sim_records_clear(struct sim_records *records)
{
        for (uint32_t i = 0; i < records->max; i++)
                slot_clear(&records->slots[i]);
        records->sums = (struct sim_record_sums){0};
}

void sim_records_fini(struct sim_records *records)
{
        if (records->slots)
                sim_records_clear(records);
        free(records->slots);
        records->slots = NULL;
}

struct sim_record *sim_records_add(struct sim_records *records, struct kvr_slice body)
{
        uint64_t number = ++records->sums.requests;
        struct sim_record *record = &records->slots[number % records->max];

        slot_clear(record);
        record->number = number;
        record->body_len = body.len;
        record->body_hash = XXH3_64bits(body.data ? body.data : "", body.len);
        if (records->keep_bodies) {
                record->body = malloc(body.len + 1);
                if (record->body && body.data)
                        memcpy(record->body, body.data, body.len);
                if (record->body)
                        record->body[body.len] = 0;
        }
        return record;
}

struct sim_record *sim_records_get(struct sim_records *records, uint64_t number)
{
        struct sim_record *record = &records->slots[number % records->max];

        return number && record->number == number ? record : NULL;
}

static uint64_t *sum_of(struct sim_record_sums *sums, enum sim_record_state state)
{
        switch (state) {
        case SIM_RECORD_FINISHED:
                return &sums->finished;
        case SIM_RECORD_REFUSED:
                return &sums->refused;
        case SIM_RECORD_ABORTED:
                return &sums->aborted;
        case SIM_RECORD_CUT:
                return &sums->cut;
        case SIM_RECORD_WAITING:
        case SIM_RECORD_RUNNING:
                break;
        }
        return NULL;
}

void sim_records_end(struct sim_records *records, uint64_t number, enum sim_record_state state,
                     uint32_t status, double end_s)
{
        struct sim_record *record = sim_records_get(records, number);
        uint64_t *sum = sum_of(&records->sums, state);

        if (record && record->end_s >= 0)
                return;
        if (sum)
                ++*sum;
        if (!record)
                return;
        record->state = state;
        if (status)
                record->status = status;
        record->end_s = end_s;
}

static const char *state_name(enum sim_record_state state)
{
        switch (state) {
        case SIM_RECORD_WAITING:
                return "waiting";
        case SIM_RECORD_RUNNING:
                return "running";
        case SIM_RECORD_FINISHED:
                return "finished";
        case SIM_RECORD_REFUSED:
                return "refused";
        case SIM_RECORD_ABORTED:
                return "aborted";
        case SIM_RECORD_CUT:
                return "cut";
        }
        return "unknown";
}

static void write_time(struct sim_buf *buf, const char *name, double time_s)
{
        if (time_s >= 0)
                sim_buf_printf(buf, ",\"%s\":%.6f", name, time_s);
        else
                sim_buf_printf(buf, ",\"%s\":null", name);
}

static void write_record(struct sim_buf *buf, const struct sim_record *record, bool full)
{
        sim_buf_printf(buf, "{\"number\":%" PRIu64 ",\"target\":", record->number);
        sim_buf_json(buf, sim_slice(record->target ? record->target : ""));
        sim_buf_printf(buf, ",\"connection\":%" PRIu64 ",\"state\":\"%s\",\"status\":%u,\"stream\":%s",
                       record->connection, state_name(record->state), record->status,
                       record->stream ? "true" : "false");
        sim_buf_printf(buf, ",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"output_tokens\":%u",
                       record->prompt_tokens, record->cached_tokens, record->output_tokens);
        write_time(buf, "arrival_s", record->arrival_s);
        write_time(buf, "first_token_s", record->first_token_s);
        write_time(buf, "end_s", record->end_s);
        sim_buf_printf(buf, ",\"body_bytes\":%zu,\"body_xxh3\":\"%016" PRIx64 "\"", record->body_len,
                       record->body_hash);
        if (full) {
                sim_buf_printf(buf, ",\"headers\":%s,\"body\":", record->headers ? record->headers : "[]");
                if (record->body)
                        sim_buf_json(buf, (struct kvr_slice){record->body, record->body_len});
                else
                        sim_buf_puts(buf, "null");
        }
        sim_buf_puts(buf, "}");
}

void sim_records_write(const struct sim_records *records, uint64_t since, bool full, struct sim_buf *buf)
{
        const struct sim_record_sums *sums = &records->sums;
        uint64_t first = sums->requests >= records->max ? sums->requests - records->max + 1 : 1;
        bool any = false;

        sim_buf_printf(buf,
                       "{\"requests\":%" PRIu64 ",\"finished\":%" PRIu64 ",\"refused\":%" PRIu64
                       ",\"aborted\":%" PRIu64,
                       sums->requests, sums->finished, sums->refused, sums->aborted);
        sim_buf_printf(buf, ",\"cut\":%" PRIu64 ",\"prompt_tokens\":%" PRIu64 ",\"cached_tokens\":%" PRIu64,
                       sums->cut, sums->prompt_tokens, sums->cached_tokens);
        sim_buf_printf(buf, ",\"output_tokens\":%" PRIu64 ",\"list\":[", sums->output_tokens);
        for (uint64_t n = first > since ? first : since + 1; n <= sums->requests; n++) {
                const struct sim_record *record = &records->slots[n % records->max];

                if (record->number != n)
                        continue;
                if (any)
                        sim_buf_puts(buf, ",\n");
                any = true;
                write_record(buf, record, full);
        }
        sim_buf_puts(buf, "]}\n");
}
