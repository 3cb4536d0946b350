/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a request body that are read, by request form. All others are ignored. */
#ifndef KVROUTE_LIB_PROMPT_FIELDS_H
#define KVROUTE_LIB_PROMPT_FIELDS_H

#include "kvroute/prompt.h"

/* Request forms as bits, for the table below. */
#define KVR__IN(api)  (1u << (api))
#define KVR__IN_C     KVR__IN(KVR_API_CHAT)
#define KVR__IN_T     KVR__IN(KVR_API_COMPLETIONS)
#define KVR__IN_R     KVR__IN(KVR_API_RESPONSES)
#define KVR__IN_M     KVR__IN(KVR_API_MESSAGES)
#define KVR__IN_E     KVR__IN(KVR_API_EMBEDDINGS)
#define KVR__IN_L     KVR__IN(KVR_API_LLAMACPP)
#define KVR__IN_G     KVR__IN(KVR_API_SGLANG)
#define KVR__IN_O     KVR__IN(KVR_API_OTHER)
#define KVR__IN_KEYED (KVR__IN_C | KVR__IN_T | KVR__IN_R | KVR__IN_M | KVR__IN_E | KVR__IN_L | KVR__IN_G)
#define KVR__IN_ALL   (KVR__IN_KEYED | KVR__IN_O)

#define KVR__FIELD_LIST(X)                                                                             \
        /* who asks, and for what */                                                                   \
        X(MODEL, "model", KVR__IN_ALL)                                                                 \
        X(STREAM, "stream", KVR__IN_ALL)                                                               \
        X(STREAM_OPTIONS, "stream_options", KVR__IN_C | KVR__IN_T | KVR__IN_R | KVR__IN_O)             \
        X(MAX_TOKENS, "max_tokens", KVR__IN_C | KVR__IN_T | KVR__IN_M | KVR__IN_O)                     \
        X(MAX_COMPLETION_TOKENS, "max_completion_tokens", KVR__IN_C | KVR__IN_O)                       \
        X(MAX_OUTPUT_TOKENS, "max_output_tokens", KVR__IN_R)                                           \
        X(N_PREDICT, "n_predict", KVR__IN_L)                                                           \
        X(SAMPLING_PARAMS, "sampling_params", KVR__IN_G)                                               \
        X(N, "n", KVR__IN_C | KVR__IN_T | KVR__IN_O)                                                   \
        X(PRIORITY, "priority", KVR__IN_ALL)                                                           \
        X(PROMPT_CACHE_KEY, "prompt_cache_key", KVR__IN_ALL)                                           \
        X(SESSION_ID, "session_id", KVR__IN_ALL)                                                       \
        X(USER, "user", KVR__IN_ALL & ~KVR__IN_M)                                                      \
        X(METADATA, "metadata", KVR__IN_M)                                                             \
        /* namespace */                                                                                \
        X(CACHE_SALT, "cache_salt", KVR__IN_KEYED)                                                     \
        X(EXTRA_KEY, "extra_key", KVR__IN_KEYED)                                                       \
        X(LORA_PATH, "lora_path", KVR__IN_KEYED)                                                       \
        X(LORA, "lora", KVR__IN_KEYED)                                                                 \
        /* what feeds the chat template or the tokenizer in front of the prompt */                     \
        X(CHAT_TEMPLATE, "chat_template", KVR__IN_C | KVR__IN_R | KVR__IN_M | KVR__IN_E)               \
        X(CHAT_TEMPLATE_KWARGS, "chat_template_kwargs", KVR__IN_C | KVR__IN_R | KVR__IN_M | KVR__IN_E) \
        X(DOCUMENTS, "documents", KVR__IN_C)                                                           \
        X(REASONING_EFFORT, "reasoning_effort", KVR__IN_C)                                             \
        X(REASONING, "reasoning", KVR__IN_C | KVR__IN_R)                                               \
        X(THINKING, "thinking", KVR__IN_C | KVR__IN_M)                                                 \
        X(ENABLE_THINKING, "enable_thinking", KVR__IN_C)                                               \
        X(OUTPUT_CONFIG, "output_config", KVR__IN_M)                                                   \
        X(TOOL_CHOICE, "tool_choice", KVR__IN_C | KVR__IN_R | KVR__IN_M)                               \
        X(FUNCTION_CALL, "function_call", KVR__IN_C)                                                   \
        X(PARALLEL_TOOL_CALLS, "parallel_tool_calls", KVR__IN_C | KVR__IN_R)                           \
        X(FUNCTIONS, "functions", KVR__IN_C)                                                           \
        X(ADD_SPECIAL_TOKENS, "add_special_tokens", KVR__IN_C | KVR__IN_T | KVR__IN_E)                 \
        X(TRUNCATE_PROMPT_TOKENS, "truncate_prompt_tokens", KVR__IN_C | KVR__IN_T | KVR__IN_E)         \
        X(MM_PROCESSOR_KWARGS, "mm_processor_kwargs", KVR__IN_C | KVR__IN_E)                           \
        X(MEDIA_IO_KWARGS, "media_io_kwargs", KVR__IN_C | KVR__IN_E)                                   \
        X(PREVIOUS_RESPONSE_ID, "previous_response_id", KVR__IN_R)                                     \
        X(CONVERSATION, "conversation", KVR__IN_R)                                                     \
        X(PREVIOUS_INPUT_MESSAGES, "previous_input_messages", KVR__IN_R)                               \
        X(IMAGE_DATA, "image_data", KVR__IN_G)                                                         \
        X(VIDEO_DATA, "video_data", KVR__IN_G)                                                         \
        X(AUDIO_DATA, "audio_data", KVR__IN_G)                                                         \
        /* the prompt */                                                                               \
        X(TOOLS, "tools", KVR__IN_C | KVR__IN_R | KVR__IN_M | KVR__IN_E)                               \
        X(SYSTEM, "system", KVR__IN_M)                                                                 \
        X(INSTRUCTIONS, "instructions", KVR__IN_R)                                                     \
        X(MESSAGES, "messages", KVR__IN_C | KVR__IN_M | KVR__IN_E)                                     \
        X(INPUT, "input", KVR__IN_R | KVR__IN_E)                                                       \
        X(PROMPT, "prompt", KVR__IN_T | KVR__IN_L | KVR__IN_R)                                         \
        X(TEXT, "text", KVR__IN_G)                                                                     \
        X(INPUT_IDS, "input_ids", KVR__IN_G)                                                           \
        /* behind the prompt */                                                                        \
        X(SUFFIX, "suffix", KVR__IN_T)                                                                 \
        X(ADD_GENERATION_PROMPT, "add_generation_prompt", KVR__IN_C | KVR__IN_E)                       \
        X(CONTINUE_FINAL_MESSAGE, "continue_final_message", KVR__IN_C | KVR__IN_E)                     \
        /* prompts that are no text: not keyed */                                                      \
        X(PROMPT_EMBEDS, "prompt_embeds", KVR__IN_T)                                                   \
        X(INPUT_EMBEDS, "input_embeds", KVR__IN_G)                                                     \
        X(SESSION_PARAMS, "session_params", KVR__IN_G)

enum kvr__field {
#define KVR__FIELD_ENUM(id, name, apis) KVR__FIELD_##id,
        KVR__FIELD_LIST(KVR__FIELD_ENUM)
#undef KVR__FIELD_ENUM
                KVR__FIELD_COUNT,
};

#define KVR__FIELD_MAP_SIZE 256 /* at least twice the fields, a power of two */
#define KVR__FIELD_NAME_MAX 24

/* Finds a field by name: open addressing over numbers of fields. */
struct kvr__field_map {
        uint8_t slots[KVR__FIELD_MAP_SIZE]; /* number + 1; 0 is free */
};

void kvr__field_map_init(struct kvr__field_map *map);
const char *kvr__field_name(enum kvr__field field);

/* The field of this name that `api` reads, or KVR__FIELD_COUNT. */
enum kvr__field kvr__field_find(const struct kvr__field_map *map, enum kvr_api api, const char *name,
                                size_t len);

#endif
