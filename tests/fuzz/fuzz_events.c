/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV cache events of engines: ports without authentication. First byte: msgpack (even) or TensorRT-LLM's JSON.
 * Promises checked: whatever is told has the size that the library asks for, what is refused has a reason, and
 * decoding twice tells the same twice. The rest of the first byte drives the stream's state machine through the
 * same bytes: what it wants applied is one run of numbers since the last clear.
 */
#include "fuzz.h"

#include "engine/kv_events.h"
#include "engine/kv_stream.h"

#include <string.h>

struct seen {
        uint64_t events, sum;
};

static void look(void *ctx, const struct engine_event *event)
{
        struct seen *seen = ctx;
        const struct kvr_blocks_stored *stored = &event->stored;

        seen->events++;
        seen->sum = seen->sum * 31 + (uint64_t)event->kind;
        switch (event->kind) {
        case ENGINE_EVENT_STORED:
                FUZZ_CHECK(stored->count > 0 && stored->count <= KVR_EVENT_BLOCKS_MAX);
                FUZZ_CHECK(stored->block_tokens > 0 && stored->block_tokens <= KVR_BLOCK_TOKENS_MAX);
                FUZZ_CHECK(stored->token_count == (uint64_t)stored->count * stored->block_tokens);
                FUZZ_CHECK(stored->tier < KVR_TIERS);
                FUZZ_CHECK(stored->salt.len <= ENGINE_EVENT_NAME_MAX &&
                           stored->adapter.len <= ENGINE_EVENT_NAME_MAX);
                for (uint32_t i = 0; i < stored->count; i++)
                        seen->sum =
                                seen->sum * 31 + stored->hashes[i] + (stored->extra ? stored->extra[i] : 0);
                for (uint32_t i = 0; i < stored->token_count; i++)
                        seen->sum = seen->sum * 31 + stored->tokens[i];
                for (size_t i = 0; i < stored->salt.len; i++)
                        seen->sum = seen->sum * 31 + (uint8_t)stored->salt.data[i];
                for (size_t i = 0; i < stored->adapter.len; i++)
                        seen->sum = seen->sum * 31 + (uint8_t)stored->adapter.data[i];
                break;
        case ENGINE_EVENT_REMOVED:
                FUZZ_CHECK(event->count > 0 && event->count <= KVR_EVENT_BLOCKS_MAX &&
                           event->tier < KVR_TIERS);
                for (uint32_t i = 0; i < event->count; i++)
                        seen->sum = seen->sum * 31 + event->hashes[i];
                break;
        case ENGINE_EVENT_CLEARED:
                break;
        case ENGINE_EVENT_IGNORED:
        case ENGINE_EVENT_BAD:
                FUZZ_CHECK(event->why > ENGINE_EVENT_FINE && event->why < ENGINE_EVENT_WHYS);
                FUZZ_CHECK(engine_event_why_name(event->why)[0] != '\0');
                break;
        }
}

static struct seen decode(bool json, struct kvr_slice bytes)
{
        struct engine_event_decoder *decoder = engine_event_decoder_new();
        struct engine_event_view view;
        struct engine_event_batch batch;
        struct seen seen = {0, 0};
        const char *why = NULL;
        bool ok;

        FUZZ_CHECK(decoder != NULL);
        engine_event_view_init(&view);
        ok = json ? engine_events_decode_json(decoder, &view, bytes, look, &seen, &why)
                  : engine_events_decode(decoder, &view, bytes, &batch, look, &seen, &why);
        FUZZ_CHECK(ok == (why == NULL));
        engine_event_decoder_free(decoder);
        return seen;
}

/* Each byte is something that happens; numbers come from it too. */
static void drive(const uint8_t *bytes, size_t len, bool has_replay)
{
        const struct engine_stream_options options = {
                .has_replay = has_replay, .relearn_ns = 3000000000, .check_ns = 2000000000};
        struct engine_stream stream;
        uint64_t now_ns = 1, applied = UINT64_MAX;

        engine_stream_init(&stream, &options);
        for (size_t i = 0; i < len; i++) {
                uint64_t seq = stream.next + (uint64_t)(bytes[i] >> 4) - 3;
                struct engine_stream_todo todo = {0};

                now_ns += (uint64_t)bytes[i] * 10000000;
                switch (bytes[i] & 7) {
                case 0:
                case 1:
                        todo = engine_stream_batch(&stream, seq, seq ^ bytes[i] >> 7, now_ns);
                        break;
                case 2:
                        todo = engine_stream_opened(&stream, now_ns);
                        break;
                case 3:
                        todo = engine_stream_lost(&stream, now_ns);
                        break;
                case 4:
                        todo = engine_stream_replayed(&stream, seq, seq, now_ns);
                        break;
                case 5:
                        todo = engine_stream_replay_end(&stream, bytes[i] >> 7, now_ns);
                        break;
                case 6:
                        todo = bytes[i] & 8 ? engine_stream_held(&stream, seq, seq, now_ns)
                                            : engine_stream_restarted(&stream, now_ns);
                        break;
                default:
                        todo = engine_stream_tick(&stream, now_ns);
                }
                FUZZ_CHECK(!todo.replay || (has_replay && stream.state == ENGINE_STREAM_REPLAYING));
                FUZZ_CHECK(!(todo.apply && todo.hold) && !(todo.replay && todo.end_replay));
                FUZZ_CHECK(!stream.trusted || stream.complete);
                if (todo.clear)
                        applied = UINT64_MAX;
                if (todo.apply) {
                        FUZZ_CHECK(applied == UINT64_MAX || seq == applied + 1);
                        applied = seq;
                }
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        struct kvr_slice rest = {(const char *)bytes + 1, len - 1};
        struct seen once, twice;

        if (len < 1)
                return 0;
        once = decode(bytes[0] & 1, rest);
        twice = decode(bytes[0] & 1, rest);
        FUZZ_CHECK(once.events == twice.events && once.sum == twice.sum);
        drive(bytes, len < 4096 ? len : 4096, bytes[0] & 2);
        return 0;
}
