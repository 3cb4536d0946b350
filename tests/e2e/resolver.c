/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resolver of tests, loaded into the program before the C library's: names that end in .test are looked
 * up in the file that KVROUTE_TEST_HOSTS names, anew each time. A line is a name and its addresses; without
 * any the name server does not answer, a name that is not there does not exist.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int (*resolve)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static int look_up(char *words, const struct addrinfo *hints, struct addrinfo **ret, resolve real)
{
        struct addrinfo numeric = {.ai_flags = AI_NUMERICHOST, .ai_socktype = hints ? hints->ai_socktype : 0};
        struct addrinfo **end = ret;
        char *state = NULL, *word = strtok_r(words, " \n", &state);

        *ret = NULL;
        for (; word; word = strtok_r(NULL, " \n", &state)) {
                if (real(word, NULL, &numeric, end))
                        return EAI_FAIL;
                end = &(*end)->ai_next;
        }
        if (*ret)
                return 0;
        sleep(3600);
        return EAI_AGAIN;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
        resolve real = (resolve)dlsym(RTLD_NEXT, "getaddrinfo");
        size_t len = node ? strlen(node) : 0;
        const char *path = getenv("KVROUTE_TEST_HOSTS");
        FILE *file;
        char line[1024];
        int result = EAI_NONAME;

        if (len < 5 || strcmp(node + len - 5, ".test") != 0 || !path)
                return real(node, service, hints, ret);
        file = fopen(path, "re");
        while (file && result == EAI_NONAME && fgets(line, sizeof line, file)) {
                if (strncmp(line, node, len) == 0 && (line[len] == ' ' || line[len] == '\n'))
                        result = look_up(line + len, hints, ret, real);
        }
        if (file)
                fclose(file);
        return result;
}
