/* SPDX-License-Identifier: Apache-2.0 */
#include "wait.h"

#include <glob.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdlib.h>

double sim_wait_parse_s(const char *line)
{
        unsigned long long waited;
        const char *second;
        char *end;

        (void)strtoull(line, &end, 10);
        if (end == line || *end != ' ')
                return (double)NAN;
        second = end;
        waited = strtoull(second, &end, 10);
        return end == second ? (double)NAN : (double)waited * 1e-9;
}

static double read_file(const char *path)
{
        FILE *file = fopen(path, "re");
        char line[128] = "";
        double waited_s = (double)NAN;

        if (!file)
                return waited_s;
        if (fgets(line, sizeof(line), file))
                waited_s = sim_wait_parse_s(line);
        fclose(file);
        return waited_s;
}

double sim_wait_thread_s(void)
{
        return read_file("/proc/thread-self/schedstat");
}

double sim_wait_process_s(int pid)
{
        char pattern[64];
        double sum = (double)NAN;
        glob_t files;

        snprintf(pattern, sizeof(pattern), "/proc/%d/task/*/schedstat", pid);
        if (glob(pattern, GLOB_NOSORT, NULL, &files))
                return sum;
        for (size_t i = 0; i < files.gl_pathc; i++) {
                double waited_s = read_file(files.gl_pathv[i]);

                if (isnan(waited_s)) /* the thread ended meanwhile */
                        continue;
                sum = isnan(sum) ? waited_s : sum + waited_s;
        }
        globfree(&files);
        return sum;
}
