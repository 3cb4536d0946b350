/* SPDX-License-Identifier: Apache-2.0 */
/* What is the same prompt and what is not, for every request form. */
#include "lib/prompt_test_util.h"

static struct kvr_parser *parser;

static int setup(void **state)
{
        (void)state;
        parser = kvr_parser_new();
        return parser ? 0 : -1;
}

static int teardown(void **state)
{
        (void)state;
        kvr_parser_free(parser);
        return 0;
}

static struct parsed parse_keyed(enum kvr_api api, const char *body)
{
        struct parsed parsed = parse(parser, api, body);

        if (parsed.status)
                fail_msg("%s: %s", parsed.err.message, body);
        if (!parsed.prompt.point_count)
                fail_msg("not keyed: %s", body);
        check_points(&parsed);
        return parsed;
}

static void assert_same(enum kvr_api api, const char *one, const char *other)
{
        struct parsed a = parse_keyed(api, one), b = parse_keyed(api, other);

        if (a.prompt.point_count != b.prompt.point_count || common_points(&a, &b) != a.prompt.point_count)
                fail_msg("differ, but should not:\n%s\n%s", one, other);
        assert_true(a.prompt.space == b.prompt.space);
        free_parsed(&a);
        free_parsed(&b);
}

static void assert_different(enum kvr_api api, const char *one, const char *other)
{
        struct parsed a = parse_keyed(api, one), b = parse_keyed(api, other);

        if (last_key(&a) == last_key(&b))
                fail_msg("are one, but should not:\n%s\n%s", one, other);
        free_parsed(&a);
        free_parsed(&b);
}

struct group {
        enum kvr_api api;
        const char *base;
        const char *same[12];
        const char *different[24];
};

static void check_groups(const struct group *groups, size_t count)
{
        for (size_t g = 0; g < count; g++) {
                const struct group *group = &groups[g];

                for (const char *const *s = group->same; *s; s++)
                        assert_same(group->api, group->base, *s);
                for (const char *const *d = group->different; *d; d++) {
                        assert_different(group->api, group->base, *d);
                        /* And among each other. */
                        for (const char *const *e = group->different; e < d; e++)
                                assert_different(group->api, *e, *d);
                }
        }
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct group chat[] = {
        /* spelling, generation parameters, unknown members */
        {KVR_API_CHAT,
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
         {" {\n\"model\" : \"m\" , \"messages\":[ { \"role\" : \"user\" , \"content\" : "
          "\"Gr\xC3\xBC\xC3\x9F/e\\n\" } ] } ",
          "{\"messages\":[{\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\",\"role\":\"user\"}],\"model\":\"m\"}",
          "{\"model\":\"\\u006d\",\"messages\":[{\"role\":\"\\u0075ser\",\"content\":\"Gr\\u00fc\\u00DF\\/"
          "e\\u000A\"}]}",
          "{\"mode\\u006c\":\"m\",\"messages\":[{\"r\\u006fle\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/"
          "e\\n\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
          "\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[\"Gr\xC3\xBC\xC3\x9F/e\\n\"]}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"Gr\xC3\xBC\xC3\x9F/"
          "e\\n\"}]}]}",
          "{\"model\":\"m\",\"temperature\":1e308,\"max_tokens\":5,\"seed\":99999999999999999999999,"
          "\"stream\":true,"
          "\"stop\":[\"x\"],\"top_p\":0.5,\"n\":2,\"user\":\"u\",\"response_format\":{\"type\":\"json_"
          "object\"},\"logprobs\":true,"
          "\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
          "{\"model\":\"m\",\"unknown\":1,\"unknown\":2,\"messages\":[{\"role\":\"user\",\"cache_control\":{"
          "\"a\":1},"
          "\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
          "{\"model\":\"m\",\"tools\":[],\"tool_choice\":\"auto\",\"documents\":null,\"chat_template_"
          "kwargs\":{},"
          "\"add_generation_prompt\":true,\"continue_final_message\":false,"
          "\"messages\":[{\"role\":\"user\",\"name\":null,\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
          "\xEF\xBB\xBF{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/"
          "e\\n\"}]}"},
         {"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/e\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\\\n\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gru\xCC\x88\xC3\x9F/e\\n\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"name\":\"x\",\"content\":\"Gr\xC3\xBC\xC3\x9F/"
          "e\\n\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
          "\"Gr\xC3\xBC\"},{\"type\":\"text\","
          "\"text\":\"\xC3\x9F/e\\n\"}]}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/"
          "e\\n\"},{\"role\":\"user\",\"content\":\"\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/"
          "e\\n\"},{\"role\":\"user\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"},{}]}",
          "{\"model\":\"M\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
          "{\"model\":\"m\",\"cache_salt\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":"
          "\"Gr\xC3\xBC\xC3\x9F/e\\n\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[]}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":null}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xED\x9F\xBF\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\\udfff\"}]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}]}"}},
        /* what feeds the template */
        {KVR_API_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"a\":1,\"b\":"
         "\"2\"}}",
         {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"b\":\"\\u0032\","
          "\"a\":1}}"},
         {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"a\":1,\"b\":2}}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"a\":2,\"b\":"
          "\"2\"}}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template\":\"{}\"}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"documents\":[{\"text\":\"d\"}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"reasoning_effort\":\"high\"}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"reasoning_effort\":\"low\"}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"none\"}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":{\"type\":\"function\","
          "\"function\":{\"name\":\"f\"}}}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"parallel_tool_calls\":false}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"add_special_tokens\":true}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"truncate_prompt_tokens\":10}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"add_generation_prompt\":false}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"enable_thinking\":false}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking\":{\"type\":\"enabled\"}}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"reasoning\":{\"effort\":\"high\"}}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"functions\":[{\"name\":\"f\"}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"mm_processor_kwargs\":{\"n\":1}}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"media_io_kwargs\":{\"n\":1}}"}},
        /* tools */
        {KVR_API_CHAT,
         "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
         "\"parameters\":{\"type\":\"object\","
         "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{}}}}}],\"messages\":[{\"role\":\"user\","
         "\"content\":\"x\"}]}",
         {"{\"tools\":[{\"function\":{\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
          "\"string\"},\"b\":{}}},"
          "\"description\":\"d\",\"name\":\"f\"},\"type\":\"function\"}],\"messages\":[{\"role\":\"user\","
          "\"content\":\"x\"}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[ {\"type\": \"function\", "
          "\"function\": {\"name\": "
          "\"\\u0066\", \"description\": \"d\", \"parameters\": {\"t\\u0079pe\": \"object\", \"properties\": "
          "{\"a\": {\"type\": "
          "\"string\" }, \"b\": { }}}}} ]}"},
         {/* the order inside a schema reaches the template */
          "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
          "\"parameters\":{\"type\":\"object\","
          "\"properties\":{\"b\":{},\"a\":{\"type\":\"string\"}}}}}],\"messages\":[{\"role\":\"user\","
          "\"content\":\"x\"}]}",
          "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
          "\"parameters\":{"
          "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{}},\"type\":\"object\"}}}],\"messages\":[{"
          "\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\",\"description\":\"d\","
          "\"parameters\":{\"type\":\"object\","
          "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{}}}}}],\"messages\":[{\"role\":\"user\","
          "\"content\":\"x\"}]}",
          "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"strict\":"
          "true,\"parameters\":{"
          "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{}}}}}],\"messages\":[{"
          "\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\"}}],"
          "\"messages\":[{\"role\":\"user\","
          "\"content\":\"x\"}]}",
          "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\"}},{\"type\":"
          "\"function\","
          "\"function\":{\"name\":\"g\"}}],\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}},{\"type\":\"function\","
          "\"function\":{\"name\":\"f\","
          "\"description\":\"d\"}}],\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"}},
        /* tool calls, reasoning, and the rest of a message */
        {KVR_API_CHAT,
         "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":"
         "\"function\",\"function\":{"
         "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\","
         "\"content\":\"r\"}]}",
         {"{\"messages\":[{\"tool_calls\":[{\"function\":{\"arguments\":\"{\\u0022a\\u0022:1}\",\"name\":"
          "\"f\"},\"type\":\"function\","
          "\"index\":0,\"id\":\"c1\"}],\"role\":\"assistant\"},{\"tool_call_id\":\"c1\",\"role\":\"tool\","
          "\"content\":[{\"type\":\"text\","
          "\"text\":\"r\"}]}]}"},
         {"{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c2\",\"type\":"
          "\"function\",\"function\":{"
          "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\","
          "\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":"
          "\"function\",\"function\":{"
          "\"name\":\"g\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\","
          "\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":"
          "\"function\",\"function\":{"
          "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":2}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\","
          "\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c1\",\"type\":"
          "\"function\",\"function\":{"
          "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\","
          "\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":"
          "\"function\",\"function\":{"
          "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c2\","
          "\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null},{\"role\":\"tool\",\"tool_call_id\":"
          "\"c1\",\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"because\"},{"
          "\"role\":\"tool\",\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"because\"},{\"role\":"
          "\"tool\",\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"thinking\":\"because\"},{\"role\":"
          "\"tool\",\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":\"because\"},{\"role\":\"tool\",\"content\":"
          "\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"refusal\":\"because\"},{\"role\":\"tool\",\"content\":"
          "\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"audio\":{\"id\":\"because\"}},{\"role\":\"tool\","
          "\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"function_call\":{\"name\":\"because\"}},{\"role\":"
          "\"tool\",\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"name\":\"because\"},{\"role\":\"tool\",\"content\":\"r\"}"
          "]}",
          "{\"messages\":[{\"role\":\"assistant\",\"partial\":true},{\"role\":\"tool\",\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"prefix\":true},{\"role\":\"tool\",\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{\"id\":\"c1\"}},{\"role\":\"tool\","
          "\"content\":\"r\"}]}",
          "{\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"r\"},{\"role\":"
          "\"assistant\",\"content\":null,"
          "\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
          "\"{\\\"a\\\":1}\"}}]}]}"}},
        /* pieces that would be equal if they were only strung together */
        {KVR_API_CHAT,
         "{\"messages\":[{\"role\":\"a\",\"content\":\"b\"},{\"role\":\"c\",\"content\":\"d\"}]}",
         {NULL},
         {"{\"messages\":[{\"role\":\"a\",\"content\":\"bc\"},{\"role\":\"\",\"content\":\"d\"}]}",
          "{\"messages\":[{\"role\":\"ab\"},{\"role\":\"c\",\"content\":\"d\"}]}",
          "{\"messages\":[{\"role\":\"a\",\"content\":[\"b\",\"c\",\"d\"]}]}",
          "{\"messages\":[{\"role\":\"a\",\"content\":[\"b\",\"cd\"]}]}",
          "{\"messages\":[{\"role\":\"a\",\"content\":[\"bcd\"]}]}",
          "{\"messages\":[{\"role\":\"a\",\"name\":\"b\"},{\"role\":\"c\",\"content\":\"d\"}]}",
          "{\"messages\":[{\"role\":\"a\",\"content\":\"b\\u0003\\\"c\\\"\\u0005d\"}]}",
          "{\"messages\":[{\"role\":\"a\",\"content\":\"b\\\",\\\"role\\\":\\\"c\"}]}"}},
        /* media */
        {KVR_API_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
         "\"image_url\",\"image_url\":{"
         "\"url\":\"data:image/png;base64,AAAA/"
         "BBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJKKKKLLLLMMMMNNNNOOOOPPPPQQQQ\"}}]}]}",
         {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\",\"cache_"
          "control\":{\"type\":\"ephemeral\"}},"
          "{\"image_url\":{\"url\":\"data:image\\/png;base64,AAAA\\/"
          "BBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJKKKKLLLLMMMMNNNNOOOOPPPPQQQQ\"},"
          "\"cache_control\":{},\"type\":\"image_url\"}]}]}"},
         {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"image_url\",\"image_url\":{"
          "\"url\":\"data:image/png;base64,AAAA/"
          "BBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJKKKKLLLLMMMMNNNNOOOOPPPPQQQR\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
          "\"url\":\"data:image/png;base64,AAAA/"
          "BBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJKKKKLLLLMMMMNNNNOOOOPPPPQQQQ\"}},{\"type\":\"text\","
          "\"text\":\"see\"}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"image_url\",\"image_url\":{"
          "\"url\":\"data:image/png;base64,AAAA/"
          "BBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJKKKKLLLLMMMMNNNNOOOOPPPPQQQQ\",\"detail\":\"low\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"video_url\",\"image_url\":{"
          "\"url\":\"data:image/png;base64,AAAA/"
          "BBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJKKKKLLLLMMMMNNNNOOOOPPPPQQQQ\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"image_url\",\"image_url\":{"
          "\"url\":\"http://a/b.png\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"image_url\",\"image_url\":null,"
          "\"uuid\":\"u1\"}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"input_audio\",\"input_audio\":{"
          "\"data\":\"AAAA\",\"format\":\"wav\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"file\",\"file\":{\"file_id\":\"f\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"text\"}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"refusal\",\"refusal\":\"no\"}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},{\"type\":"
          "\"new\",\"x\":\"no\"}]}]}"}},
};

static const struct group anthropic[] = {
        {KVR_API_MESSAGES,
         "{\"model\":\"m\",\"max_tokens\":9,\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":"
         "\"x\"}]}",
         {"{\"model\":\"m\",\"max_tokens\":8,\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":"
          "{\"type\":\"ephemeral\"}}],"
          "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\",\"cache_control\":"
          "{\"type\":\"ephemeral\"}}]}]}",
          "{\"model\":\"m\",\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":"
          "\"ignored\"}],"
          "\"thinking\":{\"budget_tokens\":4},\"metadata\":{\"user_id\":\"u\"},\"tool_choice\":\"auto\","
          "\"stop_sequences\":[\"a\"]}"},
         {"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"model\":\"m\",\"system\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"model\":\"m\",\"system\":\"\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"model\":\"m\",\"system\":[{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"text\",\"text\":\"s\"}"
          "],"
          "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"model\":\"m\",\"system\":\"s\",\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}",
          "{\"model\":\"m\",\"system\":\"s\",\"thinking\":{\"type\":\"enabled\"},\"messages\":[{\"role\":"
          "\"user\",\"content\":\"x\"}]}",
          "{\"model\":\"m\",\"system\":\"s\",\"output_config\":{\"effort\":\"low\"},\"messages\":[{\"role\":"
          "\"user\",\"content\":\"x\"}]}",
          "{\"model\":\"m\",\"system\":\"s\",\"tool_choice\":{\"type\":\"any\"},\"messages\":[{\"role\":"
          "\"user\",\"content\":\"x\"}]}",
          "{\"model\":\"m\",\"system\":\"s\",\"tools\":[{\"name\":\"f\"}],\"messages\":[{\"role\":\"user\","
          "\"content\":\"x\"}]}"}},
        {KVR_API_MESSAGES,
         "{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\","
         "\"properties\":{\"a\":{},\"b\":{}}}}],"
         "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":"
         "\"f\",\"input\":{\"a\":1,\"b\":2}}]},"
         "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":\"r\"}"
         "]}]}",
         {"{\"tools\":[{\"input_schema\":{\"type\":\"object\",\"properties\":{\"a\":{},\"b\": "
          "{}}},\"cache_control\":{\"type\":\"ephemeral\"},"
          "\"description\":\"d\",\"name\":\"f\"}],\"messages\":[{\"role\":\"assistant\",\"content\":[{\"id\":"
          "\"t1\",\"type\":\"tool_use\","
          "\"input\":{ "
          "\"a\":1,\"b\":2},\"name\":\"f\"}]},{\"role\":\"user\",\"content\":[{\"content\":[{\"type\":"
          "\"text\",\"text\":\"r\"}],"
          "\"cache_control\":{},\"type\":\"tool_result\",\"tool_use_id\":\"t1\"}]}]}"},
         {"{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\","
          "\"properties\":{\"b\":{},\"a\":{}}}}],"
          "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":"
          "\"f\",\"input\":{\"a\":1,\"b\":2}}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":"
          "\"r\"}]}]}",
          "{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\","
          "\"properties\":{\"a\":{},\"b\":{}}}}],"
          "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":"
          "\"f\",\"input\":{\"b\":2,\"a\":1}}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":"
          "\"r\"}]}]}",
          "{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\","
          "\"properties\":{\"a\":{},\"b\":{}}}}],"
          "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":"
          "\"f\",\"input\":{\"a\":1,\"b\":2}}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"is_error\":"
          "true,\"content\":\"r\"}]}]}",
          "{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\","
          "\"properties\":{\"a\":{},\"b\":{}}}}],"
          "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":"
          "\"f\",\"input\":{\"a\":1,\"b\":2}}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":"
          "\"rr\"}]}]}",
          "{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\","
          "\"properties\":{\"a\":{},\"b\":{}}}}],"
          "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":"
          "\"f\",\"input\":{\"a\":1,\"b\":2}}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\"},\"r\"]}]}",
          "{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\","
          "\"properties\":{\"a\":{},\"b\":{}}}}],"
          "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\","
          "\"signature\":\"s\"}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":"
          "\"r\"}]}]}"}},
        {KVR_API_MESSAGES,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"base64\","
         "\"media_type\":\"image/png\","
         "\"data\":\"AAAABBBB\"}}]}]}",
         {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"source\":{\"data\":\"AAAABBBB\",\"media_type\":"
          "\"image\\/png\",\"type\":\"base64\"},"
          "\"type\":\"image\",\"cache_control\":{\"type\":\"ephemeral\"}}]}]}"},
         {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":"
          "\"base64\",\"media_type\":\"image/png\","
          "\"data\":\"AAAABBBC\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"url\","
          "\"url\":\"AAAABBBB\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":{\"type\":"
          "\"base64\",\"media_type\":\"image/png\","
          "\"data\":\"AAAABBBB\"}}]}]}",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"content\":[{\"type\":"
          "\"image\",\"source\":{\"type\":"
          "\"base64\",\"media_type\":\"image/png\",\"data\":\"AAAABBBB\"}}]}]}]}"}},
};

static const struct group responses[] = {
        {KVR_API_RESPONSES,
         "{\"model\":\"m\",\"instructions\":\"i\",\"input\":\"x\"}",
         {"{\"model\":\"m\",\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "{\"input\":[{\"type\":\"message\",\"id\":\"msg_1\",\"status\":\"completed\",\"content\":[{"
          "\"type\":\"input_text\",\"text\":\"x\"}],"
          "\"role\":\"user\"}],\"model\":\"m\",\"instructions\":\"i\",\"store\":false,\"max_output_tokens\":"
          "1,"
          "\"text\":{\"format\":{\"type\":\"text\"}},\"reasoning\":{\"summary\":\"auto\"},\"include\":[\"a\"]"
          "}"},
         {"{\"model\":\"m\",\"input\":\"x\"}", "{\"model\":\"m\",\"instructions\":\"i\"}",
          "{\"model\":\"m\",\"instructions\":[\"i\"],\"input\":\"x\"}",
          "{\"model\":\"m\",\"instructions\":\"x\",\"input\":\"i\"}",
          "{\"model\":\"m\",\"instructions\":\"ix\"}",
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":\"x\",\"previous_response_id\":\"resp_1\"}",
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":\"x\",\"previous_response_id\":\"resp_2\"}",
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":\"x\",\"conversation\":\"resp_1\"}",
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":\"x\",\"reasoning\":{\"effort\":\"high\"}}",
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":\"x\",\"prompt\":{\"id\":\"p\"}}",
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":\"x\",\"previous_input_messages\":[{\"role\":"
          "\"user\",\"content\":\"p\"}]}",
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":\"x\",\"tools\":[{\"type\":\"function\","
          "\"name\":\"f\"}]}",
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":\"x\"},{"
          "\"role\":\"user\",\"content\":\"x\"}]}"}},
        {KVR_API_RESPONSES,
         "{\"input\":\"x\",\"conversation\":\"c1\"}",
         {"{\"input\":\"x\",\"conversation\":{\"id\":\"c1\"}}"},
         {"{\"input\":\"x\",\"conversation\":{\"id\":\"c2\"}}"}},
        {KVR_API_RESPONSES,
         "{\"input\":[{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"c1\",\"name\":\"f\","
         "\"arguments\":\"{}\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"r\"}]}",
         {"{\"input\":[{\"arguments\":\"{}\",\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\","
          "\"status\":\"completed\"},"
          "{\"type\":\"function_call_output\",\"id\":\"x\",\"output\":[{\"type\":\"input_text\",\"text\":"
          "\"r\"}],\"call_id\":\"c1\"}]}"},
         {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"f\",\"arguments\":\"{}\"},"
          "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"r\"}]}",
          "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{ }\"},"
          "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"r\"}]}",
          "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},"
          "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"s\"}]}",
          "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},"
          "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":{\"r\":1}}]}",
          "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},"
          "{\"type\":\"custom_tool_call_output\",\"call_id\":\"c1\",\"output\":\"r\"}]}",
          "{\"input\":[{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\","
          "\"text\":\"t\"}]},"
          "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"r\"}]}",
          "{\"input\":[{\"type\":\"item_reference\",\"id\":\"i1\"}]}",
          "{\"input\":[{\"type\":\"item_reference\",\"id\":\"i2\"}]}",
          "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"http://"
          "a\"}]}]}",
          "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"http://"
          "b\"}]}]}",
          "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_file\",\"file_id\":\"f1\"}]}]}"}},
};

static const struct group texts[] = {
        {KVR_API_COMPLETIONS,
         "{\"model\":\"m\",\"prompt\":\"ab\\ncd\"}",
         {"{\"prompt\":[\"ab\\u000acd\"],\"model\":\"m\",\"echo\":true,\"best_of\":3,\"suffix\":null}",
          "{\"model\":\"m\",\"prompt\":[\"ab\\ncd\",\"other\"]}"},
         {"{\"model\":\"m\",\"prompt\":\"ab\\ncde\"}", "{\"model\":\"m\",\"prompt\":\"\"}",
          "{\"model\":\"m\",\"prompt\":[[1,2,3]]}", "{\"model\":\"m\",\"prompt\":[1,2,4]}",
          "{\"model\":\"m\",\"prompt\":[1,\"ab\\ncd\"]}", "{\"model\":\"m\",\"prompt\":[2,\"ab\\ncd\"]}",
          "{\"model\":\"m\",\"prompt\":[\"ab\\ncd\",1]}", "{\"model\":\"m\",\"prompt\":[1,2,\"ab\\ncd\"]}",
          "{\"model\":\"m\",\"prompt\":[12,\"ab\\ncd\"]}",
          "{\"model\":\"m\",\"prompt\":\"ab\\ncd\",\"suffix\":\"s\"}",
          "{\"model\":\"m\",\"prompt\":\"ab\\ncd\",\"add_special_tokens\":false}",
          "{\"model\":\"m\",\"prompt\":\"ab\\ncd\",\"truncate_prompt_tokens\":3}",
          "{\"model\":\"m\",\"prompt\":[1,2,3],\"truncate_prompt_tokens\":3}"}},
        {KVR_API_LLAMACPP,
         "{\"prompt\":\"ab\",\"n_predict\":5,\"id_slot\":2,\"cache_prompt\":true}",
         {"{\"prompt\":[\"ab\"],\"lora\":null}", "{\"prompt\":{\"prompt_string\":\"ab\"}}",
          "{\"prompt\":{\"prompt_string\":\"ab\",\"multimodal_data\":[]}}"},
         {"{\"prompt\":{\"prompt_string\":\"ab\",\"multimodal_data\":[\"AAAA\"]}}",
          "{\"prompt\":{\"prompt_string\":\"ab\",\"multimodal_data\":[\"AAAB\"]}}",
          "{\"prompt\":{\"prompt_string\":\"ab\",\"multimodal_data\":[\"AAAA\",\"AAAB\"]}}",
          "{\"prompt\":\"ab\",\"lora\":[{\"id\":0,\"scale\":1.0}]}",
          "{\"prompt\":\"ab\",\"lora\":[{\"id\":0,\"scale\":0.5}]}"}},
        {KVR_API_EMBEDDINGS,
         "{\"model\":\"m\",\"input\":\"ab\"}",
         {"{\"model\":\"m\",\"input\":[\"ab\",\"c\"],\"dimensions\":3,\"encoding_format\":\"float\"}"},
         {"{\"model\":\"m\",\"input\":\"abc\"}", "{\"model\":\"m\",\"input\":[5,6]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}"}},
        {KVR_API_SGLANG,
         "{\"text\":\"ab\",\"sampling_params\":{\"max_new_tokens\":3,\"temperature\":0}}",
         {"{\"text\":[\"ab\",\"cd\"],\"rid\":\"r\",\"stream\":true}",
          "{\"text\":\"ab\",\"input_ids\":null,\"lora_path\":null}",
          "{\"text\":[\"ab\"],\"lora_path\":[null,\"x\"]}"},
         {"{\"text\":\"abc\"}", "{\"input_ids\":[1,2,3]}", "{\"input_ids\":[1,2,4]}",
          "{\"text\":\"ab\",\"image_data\":\"http://a\"}", "{\"text\":\"ab\",\"image_data\":\"http://b\"}",
          "{\"text\":\"ab\",\"video_data\":\"http://a\"}", "{\"text\":\"ab\",\"audio_data\":[\"http://a\"]}",
          "{\"text\":\"ab\",\"lora_path\":\"x\"}", "{\"text\":\"ab\",\"extra_key\":\"x\"}",
          "{\"text\":\"ab\",\"cache_salt\":\"x\"}"}},
};

static void test_chat(void **state)
{
        (void)state;
        check_groups(chat, COUNT(chat));
}

static void test_anthropic(void **state)
{
        (void)state;
        check_groups(anthropic, COUNT(anthropic));
}

static void test_responses(void **state)
{
        (void)state;
        check_groups(responses, COUNT(responses));
}

static void test_texts_and_ids(void **state)
{
        (void)state;
        check_groups(texts, COUNT(texts));
}

/*
 * The same text by the three paths that generate from plain text is one prompt; other forms are worlds apart.
 */
static void test_request_forms(void **state)
{
        struct parsed completions =
                parse_keyed(KVR_API_COMPLETIONS, "{\"prompt\":\"x\",\"input\":\"x\",\"text\":\"x\"}");
        struct parsed llamacpp = parse_keyed(KVR_API_LLAMACPP, "{\"prompt\":\"x\"}");
        struct parsed sglang = parse_keyed(KVR_API_SGLANG, "{\"text\":\"x\"}");
        struct parsed embeddings = parse_keyed(KVR_API_EMBEDDINGS, "{\"input\":\"x\"}");
        static const char chat_body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
        struct parsed as_chat = parse_keyed(KVR_API_CHAT, chat_body),
                      as_messages = parse_keyed(KVR_API_MESSAGES, chat_body);
        struct parsed as_response = parse_keyed(KVR_API_RESPONSES, "{\"input\":\"x\"}");

        (void)state;
        assert_true(last_key(&completions) == last_key(&llamacpp));
        assert_true(last_key(&completions) == last_key(&sglang));
        assert_true(last_key(&completions) != last_key(&embeddings));
        assert_true(last_key(&as_chat) != last_key(&as_messages));
        assert_true(last_key(&as_chat) != last_key(&as_response));
        assert_true(last_key(&as_chat) != last_key(&completions));
        free_parsed(&completions);
        free_parsed(&llamacpp);
        free_parsed(&sglang);
        free_parsed(&embeddings);
        free_parsed(&as_chat);
        free_parsed(&as_messages);
        free_parsed(&as_response);
}

/* One byte changed, added or taken away anywhere in the content gives another last key. */
static void test_one_byte_at_every_place(void **state)
{
        static const char content[] = "The quick brown fox; 0123456789, and so on until there is more than "
                                      "one block of text to be hashed, "
                                      "because then the place of the change meets every border there is. The "
                                      "rest is there so that the text is "
                                      "long enough to have a second block behind the first one, and some "
                                      "bytes of a third: in the middle, at the "
                                      "end, and in front of it. And one more sentence, which ends in the "
                                      "next but one block of text. It is over.";
        struct parsed base;
        char body[1000];

        (void)state;
        snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", content);
        base = parse_keyed(KVR_API_CHAT, body);
        for (size_t i = 0; i <= strlen(content); i++) {
                char other[800];

                for (int how = 0; how < 3; how++) {
                        struct parsed changed;
                        size_t len = strlen(content);

                        if (i == len && how)
                                continue;
                        memcpy(other, content, i);
                        if (how == 0)
                                other[i] = '#';
                        memcpy(other + i + (how == 0), content + i + (how == 1), len - i - (how == 1) + 1);
                        if (how == 2)
                                other[i] = other[i] == '!' ? '?' : '!';
                        snprintf(body, sizeof(body),
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", other);
                        changed = parse_keyed(KVR_API_CHAT, body);
                        assert_true(last_key(&base) != last_key(&changed));
                        /* What lies before the change is common, and nothing behind it. */
                        for (uint32_t p = 0; p < common_points(&base, &changed); p++)
                                assert_true(base.points[p].end <= i + sizeof("?\"user\"?") - 1);
                        if (i > 256)
                                assert_true(common_points(&base, &changed) >= 1);
                        free_parsed(&changed);
                }
        }
        free_parsed(&base);
}

/* All bodies of the tables, in spellings made by chance. */
static void test_random_spellings(void **state)
{
        uint64_t rng = 17;

        (void)state;
        const struct group *all[] = {chat, anthropic, responses, texts};
        const size_t counts[] = {COUNT(chat), COUNT(anthropic), COUNT(responses), COUNT(texts)};

        for (size_t t = 0; t < COUNT(all); t++) {
                for (size_t g = 0; g < counts[t]; g++) {
                        const struct group *group = &all[t][g];

                        for (const char *const *body = group->different; *body; body++) {
                                yyjson_doc *doc =
                                        yyjson_read(*body, strlen(*body), YYJSON_READ_NUMBER_AS_RAW);

                                /* yyjson takes no lone surrogates. */
                                if (!doc)
                                        continue;
                                for (unsigned round = 0; round < 16; round++) {
                                        struct text other = {0};

                                        respell(&other, yyjson_doc_get_root(doc), &rng, round & 7, false);
                                        assert_same(group->api, *body, other.data);
                                        free_text(&other);
                                }
                                yyjson_doc_free(doc);
                        }
                }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_chat),
                cmocka_unit_test(test_anthropic),
                cmocka_unit_test(test_responses),
                cmocka_unit_test(test_texts_and_ids),
                cmocka_unit_test(test_request_forms),
                cmocka_unit_test(test_one_byte_at_every_place),
                cmocka_unit_test(test_random_spellings),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, setup, teardown);
}
