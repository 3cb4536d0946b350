/* SPDX-License-Identifier: Apache-2.0 */
/* Included by cppcheck ahead of every file: macros of libraries whose headers it is not given, as it reads them. */
#define yyjson_arr_foreach(arr, idx, max, val)                                                          \
        for ((idx) = 0, (max) = yyjson_arr_size(arr), (val) = yyjson_arr_get_first(arr); (idx) < (max); \
             (idx)++)
#define yyjson_obj_foreach(obj, idx, max, key, val)                          \
        for ((idx) = 0, (max) = yyjson_obj_size(obj), (key) = some_key(obj), \
            (val) = unsafe_yyjson_get_next(key);                             \
             (idx) < (max); (idx)++)
/* meson gives it on the command line, which cppcheck 2.17 does not take for strings. */
#define KVROUTE_VERSION "0"
