/*
 * Completion scripts for bash, zsh and fish, generated from the tables of verbs and options, so
 * they complete everything that fsdpctl accepts. The scripts ask the daemon for the names of jobs
 * on demand.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "options.h"
#include "spec/spec.h"

#define LIST_WORKERS                                                                               \
    "fsdpctl workers --timeout 2 2>/dev/null | awk 'NR > 1 { print $1; sub(\"/.*\", \"\", $1); "   \
    "if (!seen[$1]++) print $1 }'"
#define LIST_JOBS "fsdpctl list --timeout 2 2>/dev/null | awk 'NR > 1 { print $1 }'"

/* Appends text for single quotes; `special` lists further characters that need a backslash. */
static void add_quoted(struct buf *out, const char *text, const char *special, const char *quote)
{
    for (const char *c = text; *c; c++) {
        if (*c == '\'') {
            buf_add_text(out, quote);
            continue;
        }
        if (strchr(special, *c) != NULL) buf_add_char(out, '\\');
        buf_add_char(out, *c);
    }
}

static void add_zsh(struct buf *out, const char *text)
{
    add_quoted(out, text, "[]:\\", "'\\''");
}

static void add_fish(struct buf *out, const char *text)
{
    add_quoted(out, text, "\\", "\\'");
}

static const char *known_values(const struct verb *verb, const struct verb_option *row)
{
    if (strcmp(row->value, "FILE") == 0) return "";
    if (strcmp(row->value, "WHEN") == 0 && strcmp(row->name, "color") == 0)
        return "auto always never";
    if (strcmp(row->value, "STATES") == 0)
        return "active over queued starting running paused succeeded failed cancelled";
    if (strcmp(row->value, "DTYPE") == 0) return "f32 bf16";
    if (strcmp(row->value, "STEP") == 0) return "latest";
    if (strcmp(row->value, "POLICY") == 0) return "auto none size type match units";
    if (strcmp(row->value, "FORMAT") != 0) return NULL;
    bool own = verb != NULL && options_find(verb->options, row->name) == row;
    return own ? "table json safetensors hf" : "table json";
}

/* Possible values of an option: words, "" for files, or NULL for anything. A value follows a
 * word that ends in "=". Caller frees. */
static char *values_of(const struct verb *verb, const struct verb_option *row)
{
    if (strcmp(row->name, "set") != 0) {
        const char *values = known_values(verb, row);
        return values != NULL ? mem_strdup(values) : NULL;
    }
    struct buf keys = {0};
    for (size_t i = 0; i < spec_key_count; i++) {
        size_t first = 0; /* a key has a row for each type that it belongs to */
        while (strcmp(spec_keys[first].key, spec_keys[i].key) != 0) first++;
        if (first == i) buf_printf(&keys, "%s%s=", i > 0 ? " " : "", spec_keys[i].key);
    }
    return buf_take(&keys);
}

/* The i-th argument of a verb, "JOB" or "a|b", with spaces instead of bars; NULL after the last.
 * Caller frees. */
static char *argument_of(const struct verb *verb, int i)
{
    const char *at = verb->arguments;
    for (; i > 0 && *at; i--) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    if (*at == '\0') return NULL;
    bool bracket = *at == '[';
    size_t length = strcspn(at, " ") - 2 * (size_t)bracket;
    if (length > 3 && strncmp(at + length - 3, "...", 3) == 0) length -= 3;
    char *word = mem_strndup(at + bracket, length);
    for (char *c = word; *c; c++)
        if (*c == '|') *c = ' ';
    return word;
}

static void add_verbs(struct buf *out, const char *between)
{
    for (int i = 0; i < verb_count; i++)
        buf_printf(out, "%s%s", i > 0 ? between : "", verbs[i].name);
}

/* ---- bash ---- */

static void bash_options(const struct verb_option *rows, struct buf *out)
{
    for (; rows != NULL && rows->name != NULL; rows++) buf_printf(out, " --%s", rows->name);
}

/* Cases for each "verb option" whose value is one of a list of words. */
static void bash_values(const struct verb *verb, const struct verb_option *rows, struct buf *out)
{
    for (; rows != NULL && rows->name != NULL; rows++) {
        AUTO_FREE char *values = rows->value != NULL ? values_of(verb, rows) : NULL;
        if (values == NULL && rows->value == NULL) continue;
        const char *name = verb != NULL ? verb->name : "*";
        buf_printf(out, "    %s%s%s' --%s'", verb ? "'" : "", name, verb ? "'" : "", rows->name);
        if (rows->letter != 0)
            buf_printf(out, "|%s%s%s' -%c'", verb ? "'" : "", name, verb ? "'" : "", rows->letter);
        if (values == NULL || values[0] == '\0') buf_add_text(out, ") return ;;\n");
        else
            buf_printf(out, ")%s COMPREPLY=($(compgen -W '%s' -- \"$word\")); return ;;\n",
                       values[strlen(values) - 1] == '=' ? " compopt -o nospace 2>/dev/null;" : "",
                       values);
    }
}

static void complete_bash(struct buf *out)
{
    buf_add_text(out, "# fsdpctl's completion for bash: source <(fsdpctl completion bash)\n"
                      "_fsdpctl()\n{\n"
                      "    local word=${COMP_WORDS[COMP_CWORD]} verb= i\n"
                      "    COMPREPLY=()\n"
                      "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                      "        case ${COMP_WORDS[i]} in\n        ");
    add_verbs(out, "|");
    buf_add_text(out, ") verb=${COMP_WORDS[i]}; break ;;\n"
                      "        esac\n    done\n"
                      "    case \"$verb ${COMP_WORDS[COMP_CWORD-1]}\" in\n");
    for (int i = 0; i < verb_count; i++) bash_values(&verbs[i], verbs[i].options, out);
    bash_values(NULL, options_global, out);
    buf_add_text(out, "    esac\n    case $verb in\n    '')\n        COMPREPLY=($(compgen -W \"");
    add_verbs(out, " ");
    bash_options(options_global, out);
    buf_add_text(out, "\" -- \"$word\")) ;;\n");
    for (int i = 0; i < verb_count; i++) {
        AUTO(buf_deinit) struct buf words = {0};
        bash_options(verbs[i].options, &words);
        bash_options(options_global, &words);
        buf_printf(out,
                   "    %s)\n        if [[ $word == -* ]]; then\n"
                   "            COMPREPLY=($(compgen -W \"%s\" -- \"$word\"))\n",
                   verbs[i].name, buf_text(&words) + 1);
        buf_clear(&words);
        char *argument;
        for (int k = 0; (argument = argument_of(&verbs[i], k)) != NULL; k++) {
            if (strcmp(argument, "JOB") == 0) buf_add_text(&words, " $(" LIST_JOBS ")");
            else if (strcmp(argument, "WORKER") == 0) buf_add_text(&words, " $(" LIST_WORKERS ")");
            else if (strcmp(argument, "VERB") == 0)
                buf_add_char(&words, ' '), add_verbs(&words, " ");
            else if (strcmp(argument, "FILE") != 0 && strcmp(argument, "N") != 0)
                buf_printf(&words, " %s", argument);
            free(argument);
        }
        if (words.length > 0)
            buf_printf(out,
                       "        else\n            COMPREPLY=($(compgen -W \"%s\" -- \"$word\"))\n",
                       buf_text(&words) + 1);
        buf_add_text(out, "        fi ;;\n");
    }
    /* If nothing matched, bash completes file names. */
    buf_add_text(out, "    esac\n}\ncomplete -o default -F _fsdpctl fsdpctl\n");
}

/* ---- zsh ---- */

static void zsh_options(const struct verb *verb, const struct verb_option *rows,
                        const struct verb_option *own, struct buf *out)
{
    for (; rows != NULL && rows->name != NULL; rows++) {
        if (rows != own && options_find(own, rows->name) != NULL &&
            options_find(own, rows->name) != rows)
            continue;
        const char *repeated =
            strcmp(rows->name, "set") == 0 || strcmp(rows->name, "label") == 0 ? "*" : "";
        buf_add_text(out, " \\\n            ");
        if (rows->letter != 0)
            buf_printf(out, "'(-%c --%s)'{-%c%s,--%s%s}'[", rows->letter, rows->name, rows->letter,
                       rows->value ? "+" : "", rows->name, rows->value ? "=" : "");
        else buf_printf(out, "'%s--%s%s[", repeated, rows->name, rows->value ? "=" : "");
        add_zsh(out, rows->about);
        buf_add_char(out, ']');
        if (rows->value != NULL) {
            AUTO_FREE char *values = values_of(verb, rows);
            buf_add_char(out, ':');
            add_zsh(out, rows->value);
            if (values == NULL) buf_add_text(out, ": ");
            else if (values[0] == '\0') buf_add_text(out, ":_files");
            else buf_printf(out, ":(%s)", values);
        }
        buf_add_char(out, '\'');
    }
}

static void complete_zsh(struct buf *out)
{
    buf_add_text(out, "#compdef fsdpctl\n"
                      "# fsdpctl's completion for zsh: source <(fsdpctl completion zsh)\n"
                      "_fsdpctl_jobs()\n{\n    local -a found\n"
                      "    found=(${(f)\"$(" LIST_JOBS ")\"})\n    compadd -a found\n}\n"
                      "_fsdpctl_workers()\n{\n    local -a found\n"
                      "    found=(${(f)\"$(" LIST_WORKERS ")\"})\n    compadd -a found\n}\n"
                      "_fsdpctl()\n{\n    local curcontext=$curcontext state line\n"
                      "    local -a verbs\n    verbs=(\n");
    for (int i = 0; i < verb_count; i++) {
        buf_printf(out, "        '%s:", verbs[i].name);
        add_zsh(out, verbs[i].about);
        buf_add_text(out, "'\n");
    }
    buf_add_text(out, "    )\n    _arguments -C");
    zsh_options(NULL, options_global, NULL, out);
    buf_add_text(out, " \\\n            '1: :->verb' '*:: :->rest' && return\n"
                      "    case $state in\n    verb) _describe verb verbs ;;\n"
                      "    rest)\n        case $line[1] in\n");
    for (int i = 0; i < verb_count; i++) {
        buf_printf(out, "        %s)\n            _arguments", verbs[i].name);
        zsh_options(&verbs[i], verbs[i].options, verbs[i].options, out);
        zsh_options(&verbs[i], options_global, verbs[i].options, out);
        char *argument;
        for (int k = 0; (argument = argument_of(&verbs[i], k)) != NULL; k++) {
            if (strstr(verbs[i].arguments, "...") != NULL)
                buf_add_text(out, " \\\n            '*:");
            else buf_printf(out, " \\\n            '%d:", k + 1);
            if (strcmp(argument, "JOB") == 0) buf_add_text(out, "job:_fsdpctl_jobs'");
            else if (strcmp(argument, "WORKER") == 0) buf_add_text(out, "worker:_fsdpctl_workers'");
            else if (strcmp(argument, "N") == 0) buf_add_text(out, "number: '");
            else if (strcmp(argument, "FILE") == 0) buf_add_text(out, "file:_files'");
            else if (strcmp(argument, "VERB") == 0) {
                buf_add_text(out, "verb:(");
                add_verbs(out, " ");
                buf_add_text(out, ")'");
            } else buf_printf(out, "what:(%s)'", argument);
            free(argument);
        }
        buf_add_text(out, " ;;\n");
    }
    buf_add_text(out, "        esac ;;\n    esac\n}\n"
                      "if [[ $funcstack[1] == _fsdpctl ]]; then\n    _fsdpctl \"$@\"\n"
                      "else\n    compdef _fsdpctl fsdpctl\nfi\n");
}

/* ---- fish ---- */

static void fish_options(const struct verb *verb, const struct verb_option *rows, struct buf *out)
{
    for (; rows != NULL && rows->name != NULL; rows++) {
        buf_add_text(out, "complete -c fsdpctl");
        if (verb != NULL) buf_printf(out, " -n '__fish_seen_subcommand_from %s'", verb->name);
        AUTO(buf_deinit) struct buf others = {0}; /* verbs that redefine the option */
        for (int i = 0; verb == NULL && i < verb_count; i++)
            if (options_find(verbs[i].options, rows->name) != NULL)
                buf_printf(&others, " %s", verbs[i].name);
        if (others.length > 0)
            buf_printf(out, " -n 'not __fish_seen_subcommand_from%s'", buf_text(&others));
        buf_printf(out, " -l %s", rows->name);
        if (rows->letter != 0) buf_printf(out, " -s %c", rows->letter);
        if (rows->value != NULL) {
            AUTO_FREE char *values = values_of(verb, rows);
            if (values == NULL) buf_add_text(out, " -x");
            else if (values[0] == '\0') buf_add_text(out, " -r -F");
            else buf_printf(out, " -x -a '%s'", values);
        }
        buf_add_text(out, " -d '");
        add_fish(out, rows->about);
        buf_add_text(out, "'\n");
    }
}

static void complete_fish(struct buf *out)
{
    buf_add_text(out, "# fsdpctl's completion for fish: fsdpctl completion fish | source\n"
                      "function __fsdpctl_jobs\n    " LIST_JOBS "\nend\n"
                      "function __fsdpctl_workers\n    " LIST_WORKERS "\nend\n"
                      "complete -c fsdpctl -f\n");
    for (int i = 0; i < verb_count; i++) {
        buf_printf(out, "complete -c fsdpctl -n __fish_use_subcommand -a %s -d '", verbs[i].name);
        add_fish(out, verbs[i].about);
        buf_add_text(out, "'\n");
    }
    fish_options(NULL, options_global, out);
    for (int i = 0; i < verb_count; i++) {
        char *argument;
        fish_options(&verbs[i], verbs[i].options, out);
        for (int k = 0; (argument = argument_of(&verbs[i], k)) != NULL; k++) {
            if (strcmp(argument, "N") == 0) {
                free(argument);
                continue;
            }
            buf_printf(out, "complete -c fsdpctl -n '__fish_seen_subcommand_from %s'",
                       verbs[i].name);
            if (strcmp(argument, "JOB") == 0) buf_add_text(out, " -a '(__fsdpctl_jobs)'");
            else if (strcmp(argument, "WORKER") == 0)
                buf_add_text(out, " -a '(__fsdpctl_workers)'");
            else if (strcmp(argument, "FILE") == 0) buf_add_text(out, " -F");
            else if (strcmp(argument, "VERB") == 0) {
                buf_add_text(out, " -a '");
                add_verbs(out, " ");
                buf_add_char(out, '\'');
            } else buf_printf(out, " -a '%s'", argument);
            buf_add_char(out, '\n');
            free(argument);
        }
    }
}

bool options_completion(const char *shell, struct buf *out)
{
    if (strcmp(shell, "bash") == 0) complete_bash(out);
    else if (strcmp(shell, "zsh") == 0) complete_zsh(out);
    else if (strcmp(shell, "fish") == 0) complete_fish(out);
    else return false;
    return true;
}
