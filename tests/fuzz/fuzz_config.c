/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration: the YAML file, and replicas as they are written on the command line. Promises checked: an
 * error says something, and what was accepted can be shown again. `file:` is cut out, so that no input opens
 * a file.
 */
#include "fuzz.h"

#include "router/config.h"

#include <string.h>

static void yaml(struct kvr_slice text)
{
        struct router_config *config = NULL;
        struct config_error err = {{0}};

        enum config_result result = config_parse_yaml("fuzz.yaml", text, &config, &err);
        FUZZ_CHECK(result == CONFIG_OK || result == CONFIG_ERROR);
        FUZZ_CHECK(memchr(err.message, '\0', sizeof err.message) != NULL);
        if (result == CONFIG_ERROR) {
                FUZZ_CHECK(err.message[0] != '\0');
                return;
        }
        char *json = config_to_json(config);
        FUZZ_CHECK(json != NULL && json[0] == '{');
        free(json);
        config_free(config);
}

static void replica(struct kvr_slice text)
{
        struct replica_spec spec, copy;
        char why[256];

        replica_spec_init(&spec);
        memset(why, 'x', sizeof why);
        if (replica_spec_parse(&spec, text, why, sizeof why) && replica_spec_finish(&spec, why, sizeof why)) {
                FUZZ_CHECK(spec.name[0] != '\0' && spec.host[0] != '\0' && spec.port != 0);
                FUZZ_CHECK(replica_spec_copy(&spec, &copy));
                FUZZ_CHECK(replica_spec_equal(&spec, &copy));
                replica_spec_fini(&copy);
        } else {
                FUZZ_CHECK(memchr(why, '\0', sizeof why) != NULL && why[0] != '\0');
        }
        replica_spec_fini(&spec);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        char *text = malloc(len + 1);

        FUZZ_CHECK(text != NULL);
        if (len > 0)
                memcpy(text, bytes, len);
        text[len] = '\0';
        for (char *at = text; (at = memmem(at, len - (size_t)(at - text), "file", 4)) != NULL; at += 4)
                at[0] = 'F';
        yaml((struct kvr_slice){text, len});
        replica((struct kvr_slice){text, len});
        free(text);
        return 0;
}
