/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_fields.h"

#include <string.h>

struct field {
        const char *name;
        uint32_t len;
        uint32_t apis;
};

static const struct field fields[KVR__FIELD_COUNT] = {
#define FIELD(id, name, apis) {name, sizeof(name) - 1, apis},
        KVR__FIELD_LIST(FIELD)
#undef FIELD
};

_Static_assert(KVR__FIELD_COUNT * 2 <= KVR__FIELD_MAP_SIZE, "the map must stay half empty");

static inline unsigned slot_of(const char *name, size_t len)
{
        unsigned first = (unsigned char)name[0], middle = (unsigned char)name[len / 2],
                 last = (unsigned char)name[len - 1];

        return (first * 7 + middle * 31 + last * 5 + (unsigned)len * 3) & (KVR__FIELD_MAP_SIZE - 1);
}

void kvr__field_map_init(struct kvr__field_map *map)
{
        memset(map, 0, sizeof(*map));
        for (unsigned i = 0; i < KVR__FIELD_COUNT; i++) {
                unsigned slot = slot_of(fields[i].name, fields[i].len);

                while (map->slots[slot])
                        slot = (slot + 1) & (KVR__FIELD_MAP_SIZE - 1);
                map->slots[slot] = (uint8_t)(i + 1);
        }
}

const char *kvr__field_name(enum kvr__field field)
{
        return fields[field].name;
}

enum kvr__field kvr__field_find(const struct kvr__field_map *map, enum kvr_api api, const char *name,
                                size_t len)
{
        unsigned slot;

        if (!len || len > KVR__FIELD_NAME_MAX)
                return KVR__FIELD_COUNT;
        for (slot = slot_of(name, len); map->slots[slot]; slot = (slot + 1) & (KVR__FIELD_MAP_SIZE - 1)) {
                unsigned i = map->slots[slot] - 1u;

                if (fields[i].len == len && !memcmp(fields[i].name, name, len))
                        return fields[i].apis & KVR__IN(api) ? (enum kvr__field)i : KVR__FIELD_COUNT;
        }
        return KVR__FIELD_COUNT;
}
