/* SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include <string.h>

#include <kvroute/router.h>

#include "metrics.h"
#include "options.h"
#include "replica_spec.h"

#define WIDTH  100 /* of --help on a terminal */
#define INDENT 8

static const struct {
        const char *name, *arguments, *help;
} commands[] = {
        {"serve", "[OPTION...] [URL...]", "the router; each URL is a replica"},
        {"check", "FILE [--json]", "say whether a configuration file is right, and what is wrong with it"},
        {"mock", "[OPTION...]", "one simulated engine, for trying things without a GPU"},
        {"bench", "[OPTION...] URL", "send load to any URL: latencies, observed hit rate"},
        {"top", "[OPTION...] [ADMIN-URL]", "watch a running router in the terminal"},
        {"report", "[OPTION...] [ADMIN-URL]", "is it worth it here? A report on a running router"},
        {"demo", "[OPTION...]", "a fleet of simulated engines and a workload: policies side by side"},
        {"simulate", "[OPTION...] FILE...", "what policies would have done with the requests of a trace"},
        {"analyze", "[OPTION...] FILE...",
         "whether cache-aware routing is worth it for the traffic of a trace"},
};

static const char sources[] = "A value comes from the command line, else from the environment variable "
                              "KVROUTE_NAME (upper case, _ for -), "
                              "else from the YAML file, else it is the default. Options that may be repeated "
                              "replace the list of the "
                              "weaker source; in the environment their values are separated by white space, "
                              "in the file they are a list. "
                              "Times take ms, s, m, h; sizes take KiB, MiB, GiB, TiB; off switches off where "
                              "the help says so. SECRET is the "
                              "value itself, env:NAME or file:PATH (of api-key one per line): prefer the "
                              "latter two, a command line is no secret.";

static const char signals_text[] =
        "SIGHUP reads the file again: replicas, aliases, workloads, keys, "
        "time-outs and limits change without dropping an "
        "answer; what needs a restart is named in the log. If anything is wrong, nothing "
        "changes. The access log's file is opened anew. SIGTERM and SIGINT "
        "stop new requests (--shutdown-delay) and wait for running ones "
        "(--drain-timeout); a second one cuts them. Either way the exit "
        "status is 0.";

/* ---- plain text -------------------------------------------------------------------------------------- */

/* Words of text, wrapped, each line behind `indent` spaces. */
static void wrap(FILE *out, const char *text, int indent)
{
        int column = 0;

        while (*text) {
                int len = (int)strcspn(text, " ");

                if (column > 0 && column + 1 + len > WIDTH) {
                        fputc('\n', out);
                        column = 0;
                }
                if (column == 0)
                        column = fprintf(out, "%*s%.*s", indent, "", len, text);
                else
                        column += fprintf(out, " %.*s", len, text);
                text += len;
                while (*text == ' ')
                        text++;
        }
        fputc('\n', out);
}

static bool has_default(const struct option_row *o)
{
        return *o->fallback != 0;
}

static void plain_option(FILE *out, const struct option_row *o)
{
        fprintf(out, "  --%s%s%s", o->name, option_is_bare(o) ? "[=" : " ", o->argument);
        fprintf(out, "%s%s", option_is_bare(o) ? "]" : "", option_is_list(o) ? " (repeatable)" : "");
        if (has_default(o))
                fprintf(out, "  [%s]", o->fallback);
        fputc('\n', out);
        wrap(out, o->help, INDENT);
}

void help_main(FILE *out)
{
        fputs("kvroute routes LLM requests to the engine that still has their prompt in its KV cache.\n\n"
              "Usage: kvroute COMMAND ...\n\n",
              out);
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
                fprintf(out, "  kvroute %-8s %-24s %s\n", commands[i].name, commands[i].arguments,
                        commands[i].help);
        fputs("\n  kvroute COMMAND --help         options of a command\n"
              "  kvroute --version\n\n"
              "First steps:  kvroute serve http://127.0.0.1:8000 http://127.0.0.1:8001\n"
              "Then: the dashboard is http://127.0.0.1:8081/, and why a request would go where:\n"
              "              curl -s http://127.0.0.1:8081/kvroute/explain --json '{\"model\":...}'\n",
              out);
}

void help_serve(FILE *out)
{
        size_t count;
        const struct option_row *table = options_table(&count);

        fputs("Usage: kvroute serve [OPTION...] [URL[,KEY=VALUE...]]...\n\n", out);
        wrap(out,
             "Routes requests of OpenAI-compatible clients to the replicas at the URLs, each to where it "
             "will start "
             "soonest, knowing what each probably still has in its KV cache.",
             0);
        for (size_t i = 0; i < count; i++) {
                if (table[i].name)
                        plain_option(out, &table[i]);
                else
                        fprintf(out, "\n%s:\n", table[i].help);
        }
        size_t key_count;
        const struct replica_key *keys = replica_keys(&key_count);
        fputs("\nREPLICA KEYS, behind a URL as ,KEY=VALUE or in the file as a map with url:\n", out);
        for (size_t i = 0; i < key_count; i++) {
                fprintf(out, "  %s=%s\n", keys[i].name, keys[i].argument);
                wrap(out, keys[i].help, INDENT);
        }
        fputs("\nPOLICIES:\n", out);
        for (size_t i = 0; i < kvr_policy_count(); i++) {
                fprintf(out, "  %s\n", kvr_policy_name(i));
                wrap(out, kvr_policy_help(i), INDENT);
        }
        fputs("\nSOURCES:\n", out);
        wrap(out, sources, 2);
        fputs("\nSIGNALS:\n", out);
        wrap(out, signals_text, 2);
        fputs("\nExit status: 0 done, 1 failed while running, 2 wrong usage or configuration.\n", out);
}

/* ---- manual page ------------------------------------------------------------------------------------- */

/* Text for troff: hyphens that are meant, no line that begins with a control character. */
static void troff(FILE *out, const char *text)
{
        bool start = true;

        for (; *text; text++) {
                if (start && (*text == '.' || *text == '\''))
                        fputs("\\&", out);
                start = *text == '\n';
                if (*text == '-')
                        fputs("\\-", out);
                else if (*text == '\\')
                        fputs("\\e", out);
                else
                        fputc(*text, out);
        }
}

static void man_term(FILE *out, const char *bold, const char *join, const char *italic)
{
        fputs(".TP\n\\fB", out);
        troff(out, bold);
        fputs("\\fR", out);
        if (italic) {
                fputs(join, out);
                fputs("\\fI", out);
                troff(out, italic);
                fputs("\\fR", out);
        }
        fputc('\n', out);
}

static void man_option(FILE *out, const struct option_row *o)
{
        char name[64];

        snprintf(name, sizeof name, "--%s", o->name);
        man_term(out, name, option_is_bare(o) ? "=" : " ", o->argument);
        troff(out, o->help);
        if (option_is_list(o))
                fputs("; repeatable", out);
        if (has_default(o)) {
                fputs(" [", out);
                troff(out, o->fallback);
                fputs("]", out);
        }
        fputs(".\n", out);
}

static void man_paragraph(FILE *out, const char *section, const char *text)
{
        fprintf(out, ".SH %s\n", section);
        troff(out, text);
        fputc('\n', out);
}

void help_man(FILE *out)
{
        size_t count, key_count;
        const struct option_row *table = options_table(&count);
        const struct replica_key *keys = replica_keys(&key_count);

        fputs(".TH KVROUTE 1 \"\" \"kvroute " KVROUTE_VERSION "\" \"User Commands\"\n"
              ".SH NAME\nkvroute \\- router for LLM inference servers that knows their KV caches\n"
              ".SH SYNOPSIS\n",
              out);
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
                fprintf(out, "%s.B kvroute %s\n.I ", i ? ".br\n" : "", commands[i].name);
                troff(out, commands[i].arguments);
                fputc('\n', out);
        }
        fputs(".SH COMMANDS\n", out);
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
                man_term(out, commands[i].name, " ", commands[i].arguments);
                troff(out, commands[i].help);
                fputc('\n', out);
        }
        fputs(".SH OPTIONS OF kvroute serve\n", out);
        for (size_t i = 0; i < count; i++) {
                if (table[i].name) {
                        man_option(out, &table[i]);
                        continue;
                }
                fputs(".SS ", out);
                troff(out, table[i].help);
                fputc('\n', out);
        }
        fputs(".SH REPLICA KEYS\nBehind a URL as ,KEY=VALUE, or in the file as a map with url.\n", out);
        for (size_t i = 0; i < key_count; i++) {
                man_term(out, keys[i].name, "=", keys[i].argument);
                troff(out, keys[i].help);
                fputs(".\n", out);
        }
        fputs(".SH POLICIES\n", out);
        for (size_t i = 0; i < kvr_policy_count(); i++) {
                man_term(out, kvr_policy_name(i), "", NULL);
                troff(out, kvr_policy_help(i));
                fputc('\n', out);
        }
        man_paragraph(out, "CONFIGURATION", sources);
        man_paragraph(out, "SIGNALS", signals_text);
        man_paragraph(out, "EXIT STATUS", "0 done, 1 failed while running, 2 wrong usage or configuration.");
}

/* ---- docs/ ------------------------------------------------------------------------------------------- */

/* Inside a table cell. */
static void cell(FILE *out, const char *text)
{
        for (; *text; text++) {
                if (*text == '|')
                        fputc('\\', out);
                fputc(*text, out);
        }
}

static void docs_options(FILE *out)
{
        size_t count, key_count;
        const struct option_row *table = options_table(&count);
        const struct replica_key *keys = replica_keys(&key_count);

        fputs("# Options of `kvroute serve`\n\n"
              "<!-- Made by `kvroute --dump-docs options`; change router/options.def instead. -->\n\n",
              out);
        fprintf(out, "%s\n\n%s\n\nOptions marked ⟳ need a restart to change.\n", sources, signals_text);
        for (size_t i = 0; i < count; i++) {
                const struct option_row *o = &table[i];

                if (!o->name) {
                        fprintf(out, "\n## %s\n\n| option | default | meaning |\n|---|---|---|\n", o->help);
                        continue;
                }
                fprintf(out, "| `--%s ", o->name);
                cell(out, o->argument);
                fprintf(out, "`%s%s | ", option_is_list(o) ? " repeatable" : "",
                        o->flags & O_RESTART ? " ⟳" : "");
                fprintf(out, *o->fallback ? "`%s` | " : "%s | ", o->fallback);
                cell(out, o->help);
                fputs(" |\n", out);
        }
        fputs("\n## Replica keys\n\nBehind a URL as `,KEY=VALUE`, in the file as a map with `url`.\n\n"
              "| key | meaning |\n|---|---|\n",
              out);
        for (size_t i = 0; i < key_count; i++) {
                fprintf(out, "| `%s=", keys[i].name);
                cell(out, keys[i].argument);
                fputs("` | ", out);
                cell(out, keys[i].help);
                fputs(" |\n", out);
        }
        fputs("\n## Policies\n\n| policy | rule |\n|---|---|\n", out);
        for (size_t i = 0; i < kvr_policy_count(); i++) {
                fprintf(out, "| `%s` | ", kvr_policy_name(i));
                cell(out, kvr_policy_help(i));
                fputs(" |\n", out);
        }
}

static void docs_metrics(FILE *out)
{
        static const char *const types[] = {"counter", "gauge", "histogram"};

        fputs("# Metrics\n\n<!-- Made by `kvroute --dump-docs metrics`; change router/metrics.def instead. "
              "-->\n\n"
              "`GET /metrics` on the admin listener gives these in the Prometheus text format. Ratios are "
              "for the reader to "
              "take, for example the\nobserved hit rate of the last five minutes, over answers that tell "
              "it:\n\n"
              "    sum(rate(kvroute_observed_cached_tokens_total[5m]))\n"
              "      / (sum(rate(kvroute_prompt_tokens_total[5m])) - "
              "sum(rate(kvroute_unobserved_prompt_tokens_total[5m])))\n\n"
              "A gauge that is not known (an engine that does not tell its load) is absent, not 0. At most "
              "`--max-series` "
              "label sets are kept; further ones\nare counted under the label value `other`.\n\n"
              "| metric | type | labels | meaning |\n|---|---|---|---|\n",
              out);
        for (unsigned id = 0; id < METRIC_COUNT; id++) {
                const struct metric_info *info = metric_info((enum metric_id)id);

                fprintf(out, "| `kvroute_%s` | %s | %s%s%s | ", info->name, types[info->type],
                        *info->labels ? "`" : "", info->labels, *info->labels ? "`" : "");
                cell(out, info->help);
                fputs(" |\n", out);
        }
}

bool help_docs(FILE *out, const char *page)
{
        if (strcmp(page, "options") == 0)
                docs_options(out);
        else if (strcmp(page, "metrics") == 0)
                docs_metrics(out);
        else
                return false;
        return true;
}
