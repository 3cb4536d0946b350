/* SPDX-License-Identifier: Apache-2.0 */
/* What the back end answers, so that the load generator can check every answer. */
#ifndef KVROUTE_BENCH_WIRE_H
#define KVROUTE_BENCH_WIRE_H

#define WIRE_EVENTS 50 /* data events of a stream, the closing [DONE] not counted */

/* An event and its number; the number has a fixed width, so that all streams are equally long. */
#define WIRE_EVENT                                                                                           \
        "data: "                                                                                             \
        "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\"," \
        "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word%02u\"},\"finish_reason\":null}]}\n\n"
#define WIRE_DONE "data: [DONE]\n\n"

/* Prompt tokens and cached tokens, fixed width as well (JSON allows blanks). */
#define WIRE_ANSWER                                                                                    \
        "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"bench\"," \
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hi.\"},"          \
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":%9u,\"completion_tokens\":2,"       \
        "\"total_tokens\":%9u,\"prompt_tokens_details\":{\"cached_tokens\":%9u}}}"

#define WIRE_BYTES_PER_TOKEN 4

#endif
