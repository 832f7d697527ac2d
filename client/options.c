/* Parsing the command line and describing it; see options.h. */
#include "options.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"

enum { DEFAULT_TIMEOUT_MS = 60000 };

static status_t set_address(struct verb_options *options, const char *value)
{
    options->address = value;
    return NULL;
}

static status_t set_format(struct verb_options *options, const char *value)
{
    if (strcmp(value, "table") == 0) options->format = FORMAT_TABLE;
    else if (strcmp(value, "json") == 0) options->format = FORMAT_JSON;
    else return status_new(STATUS_INVALID_ARGUMENT, "expected table or json, found '%s'", value);
    return NULL;
}

static status_t set_colours(struct verb_options *options, const char *value)
{
    static const char *const words[] = {"auto", "always", "never"};
    for (int i = COLOURS_AUTO; i <= COLOURS_NEVER; i++) {
        if (strcmp(value, words[i]) != 0) continue;
        options->colours = (enum colours)i;
        return NULL;
    }
    return status_new(STATUS_INVALID_ARGUMENT, "expected auto, always or never, found '%s'", value);
}

static status_t set_timeout(struct verb_options *options, const char *value)
{
    double seconds;
    if (!text_parse_f64(value, &seconds) || seconds < 0 || seconds > 1e6)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected seconds from 0 (no limit) to 1000000, found '%s'", value);
    options->timeout_ms = (int64_t)(seconds * 1000);
    if (seconds > 0 && options->timeout_ms == 0) options->timeout_ms = 1;
    return NULL;
}

/* Sets the environment variable that session.c reads. */
static status_t set_variable(const char *name, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a file, found ''");
    if (setenv(name, value, 1) == 0) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory for %s", name);
}

static status_t set_tls_ca(struct verb_options *options, const char *value)
{
    (void)options;
    return set_variable("FSDPD_TLS_CA", value);
}

static status_t set_tls_certificate(struct verb_options *options, const char *value)
{
    (void)options;
    return set_variable("FSDPD_TLS_CERTIFICATE", value);
}

static status_t set_tls_key(struct verb_options *options, const char *value)
{
    (void)options;
    return set_variable("FSDPD_TLS_KEY", value);
}

static status_t set_insecure_tcp(struct verb_options *options, const char *value)
{
    (void)options, (void)value;
    return set_variable("FSDPD_INSECURE_TCP", "true");
}

static status_t set_help(struct verb_options *options, const char *value)
{
    (void)value;
    options->help = true;
    return NULL;
}

static status_t set_version(struct verb_options *options, const char *value)
{
    (void)value;
    options->version = true;
    return NULL;
}

const struct verb_option options_global[] = {
    {"address", 0, "ADDRESS",
     "where fsdpd listens: unix:PATH or HOST:PORT (or set FSDPD_ADDRESS; default: the local "
     "socket)",
     set_address},
    {"output", 'o', "FORMAT", "table (default) or json", set_format},
    {"format", 0, "FORMAT", "the same as --output, also where that names a file", set_format},
    {"color", 0, "WHEN", "auto (default: on a terminal without NO_COLOR), always or never",
     set_colours},
    {"timeout", 0, "SECONDS", "how long to wait for fsdpd (default 60; 0: no limit)", set_timeout},
    {"tls-ca", 0, "FILE",
     "for HOST:PORT: the authority's certificate (or FSDPD_TLS_CA; default: ca.crt in "
     "~/.config/fsdpd/tls)",
     set_tls_ca},
    {"tls-certificate", 0, "FILE",
     "the client's certificate (or FSDPD_TLS_CERTIFICATE; default: client.crt there)",
     set_tls_certificate},
    {"tls-key", 0, "FILE", "its private key (or FSDPD_TLS_KEY; default: client.key there)",
     set_tls_key},
    {"insecure-tcp", 0, NULL, "allow HOST:PORT without TLS (or FSDPD_INSECURE_TCP=true)",
     set_insecure_tcp},
    {"help", 'h', NULL, "this text", set_help},
    {"version", 'V', NULL, "the version of fsdpctl", set_version},
    {0},
};

const struct verb_option *options_find(const struct verb_option *table, const char *name)
{
    for (; table != NULL && table->name != NULL; table++)
        if (strcmp(table->name, name) == 0) return table;
    return NULL;
}

static const struct verb_option *find_letter(const struct verb_option *table, char letter)
{
    for (; table != NULL && table->name != NULL; table++)
        if (table->letter == letter && letter != 0) return table;
    return NULL;
}

const struct verb *verb_find(const char *name)
{
    for (int i = 0; i < verb_count; i++)
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    return NULL;
}

/* What other programs call it. */
static const char *other_word(const char *word)
{
    static const struct {
        const char *words, *verbs;
    } others[] = {
        {" delete del rm remove purge ", "cancel or forget"},
        {" kill stop abort terminate ", "cancel or pause"},
        {" run start train create apply launch ", "submit"},
        {" ls ps jobs queue get ", "list"},
        {" describe info inspect view ", "show"},
        {" follow attach tail ", "watch or logs -f"},
        {" download export save fetch weights ", "pull"},
        {" continue restart retry unpause ", "resume"},
        {" suspend ", "pause or hold"},
        {" log ", "logs"},
        {" events ", "history"},
        {" nodes hosts devices ", "workers"},
        {" cordon ", "drain"},
        {" uncordon ", "undrain"},
        {" estimate dryrun dry-run check validate ", "plan"},
    };
    AUTO_FREE char *spaced = mem_printf(" %s ", word);
    const char *found = NULL;
    for (size_t i = 0; i < COUNT_OF(others) && found == NULL; i++)
        if (strstr(others[i].words, spaced) != NULL) found = others[i].verbs;
    return found;
}

static status_t unknown_verb(const char *word)
{
    AUTO_FREE const char **names = mem_alloc_array((size_t)verb_count, sizeof *names);
    for (int i = 0; i < verb_count; i++) names[i] = verbs[i].name;
    const char *nearest = other_word(word);
    if (nearest == NULL) nearest = text_nearest(word, names, (size_t)verb_count);
    return nearest ? status_new(STATUS_INVALID_ARGUMENT, "unknown verb '%s'; did you mean %s?",
                                word, nearest)
                   : status_new(STATUS_INVALID_ARGUMENT,
                                "unknown verb '%s'; fsdpctl --help lists them", word);
}

static bool takes_set(const struct verb *verb)
{
    for (const struct verb_option *row = verb->options; row && row->name; row++)
        if (strcmp(row->name, "set") == 0) return true;
    return false;
}

static status_t unknown_option(const char *word, const struct verb *verb)
{
    const char *names[64];
    size_t count = 0, length = strcspn(word, "=");
    const struct verb_option *tables[] = {verb ? verb->options : NULL, options_global};
    for (int t = 0; t < 2; t++)
        for (const struct verb_option *row = tables[t]; row && row->name && count < 64; row++)
            names[count++] = row->name;
    AUTO_FREE char *name = mem_strndup(word, length);
    bool is_long = strncmp(name, "--", 2) == 0;
    AUTO_FREE char *key_word = mem_strdup(is_long ? name + 2 : "");
    for (char *c = key_word; *c != '\0'; c++)
        if (*c == '-') *c = '_';
    const char *key = verb && takes_set(verb) ? spec_key_of_word(key_word) : NULL;
    const char *nearest = is_long && key == NULL ? text_nearest(name + 2, names, count) : NULL;
    return nearest ? status_new(STATUS_INVALID_ARGUMENT, "unknown option %s; did you mean --%s?",
                                name, nearest)
           : key   ? status_new(STATUS_INVALID_ARGUMENT,
                                "unknown option %s; job keys are set with --set %s=%s", name, key,
                              word[length] == '=' ? word + length + 1 : "VALUE")
                   : status_new(STATUS_INVALID_ARGUMENT, "unknown option %s", name);
}

/* The rest of the command line. */
struct words {
    char **next;
    int count;
};

/* Arguments for fsdpd travel as text, which must be UTF-8; file names need not be. */
static status_t check_text(const char *what, const char *word)
{
    uint32_t character;
    if (strcmp(what, "FILE") == 0 || strcmp(what, "ADDRESS") == 0) return NULL;
    for (int length; *word != '\0'; word += length) {
        length = utf8_decode(word, &character);
        if (length == 0) return status_new(STATUS_INVALID_ARGUMENT, "%s is not valid UTF-8", what);
    }
    return NULL;
}

static status_t apply_option(const struct verb_option *row, const char *shown, const char *attached,
                             struct words *words, struct verb_options *options)
{
    if (row->value == NULL) {
        if (attached != NULL)
            return status_new(STATUS_INVALID_ARGUMENT, "%s takes no value", shown);
        return row->apply(options, NULL);
    }
    if (attached == NULL) {
        if (words->count == 0)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s after it, found nothing",
                              shown, row->value);
        attached = *words->next++;
        words->count--;
    }
    TRY(status_wrap(check_text(row->value, attached), "%s", shown));
    return status_wrap(row->apply(options, attached), "%s", shown);
}

static status_t parse_option(const char *word, const struct verb *verb, struct words *words,
                             struct verb_options *options)
{
    const struct verb_option *own = verb ? verb->options : NULL;
    const struct verb_option *row;
    const char *attached = NULL;
    AUTO_FREE char *shown = NULL;
    if (word[1] == '-') {
        size_t length = strcspn(word, "=");
        shown = mem_strndup(word, length);
        row = options_find(own, shown + 2);
        if (row == NULL) row = options_find(options_global, shown + 2);
        if (word[length] == '=') attached = word + length + 1;
    } else {
        shown = mem_strndup(word, 2);
        row = find_letter(own, word[1]);
        if (row == NULL) row = find_letter(options_global, word[1]);
        if (word[2] != '\0') attached = word + 2 + (word[2] == '=');
    }
    return row ? apply_option(row, shown, attached, words, options) : unknown_option(word, verb);
}

static status_t take_argument(const char *word, const struct verb *verb,
                              struct verb_options *options)
{
    bool many = strstr(verb->arguments, "...") != NULL;
    if (!many && options->argument_count >= verb->argument_count)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s, found '%s' too", verb->name,
                          verb->argument_count ? verb->arguments : "no arguments", word);
    if (word[0] == '\0' && verb->arguments[0] != '[')
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s, found ''", verb->name,
                          verb->arguments);
    TRY(status_wrap(check_text(verb->arguments, word), "%s", verb->name));
    MEM_GROW(options->arguments, options->argument_count, options->argument_capacity);
    options->arguments[options->argument_count++] = word;
    return NULL;
}

/* "-5" is an argument of verbs that take a number: no option's letter is a digit. */
static bool is_number(const char *word, const struct verb *verb)
{
    return verb != NULL && isdigit((unsigned char)word[1]);
}

status_t options_parse(int count, char **words_given, const struct verb **verb_out,
                       struct verb_options *options)
{
    struct words words = {words_given, count};
    const struct verb *verb = NULL;
    bool only_arguments = false;
    *options = (struct verb_options){.timeout_ms = DEFAULT_TIMEOUT_MS};
    while (words.count > 0) {
        const char *word = *words.next++;
        words.count--;
        if (!only_arguments && strcmp(word, "--") == 0) {
            only_arguments = true;
        } else if (!only_arguments && word[0] == '-' && word[1] != '\0' && !is_number(word, verb)) {
            TRY(parse_option(word, verb, &words, options));
        } else if (verb == NULL) {
            verb = verb_find(word);
            if (verb == NULL) return unknown_verb(word);
        } else {
            TRY(take_argument(word, verb, options));
        }
    }
    /* The last argument is optional in "[VERB]" and "JOB [FILE]". */
    int least = verb != NULL && options->label_count == 0
                    ? verb->argument_count - (strchr(verb->arguments, '[') != NULL)
                    : 0;
    if (verb != NULL && !options->help && options->argument_count < least)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s; fsdpctl %s --help says more",
                          verb->name, verb->arguments, verb->name);
    *verb_out = verb;
    return NULL;
}

void options_deinit(struct verb_options *options)
{
    for (int i = 0; i < options->text_count; i++) free(options->texts[i]);
    free(options->texts);
    free(options->labels);
    free(options->arguments);
    free(options->sets);
    *options = (struct verb_options){0};
}

/* Help is for screens of 80 columns; a name has the first of them. */
enum { HELP_WIDTH = 80, HELP_OPTION = 24, HELP_VERB = 18 };

static void add_row(struct buf *out, const char *name, int room, const char *about)
{
    if (output_width(name) > room) buf_printf(out, "  %s\n%*s", name, room + 3, "");
    else buf_printf(out, "  %-*s ", room, name);
    output_wrap(out, about, room + 3, HELP_WIDTH);
    buf_add_char(out, '\n');
}

/* Describes the rows of a table, except those that `own` redefines. */
static void help_rows(const struct verb_option *rows, const struct verb_option *own,
                      struct buf *out)
{
    for (; rows != NULL && rows->name != NULL; rows++) {
        if (options_find(own, rows->name) != NULL) continue;
        AUTO(buf_deinit) struct buf left = {0};
        if (rows->letter != 0) buf_printf(&left, "-%c, ", rows->letter);
        buf_printf(&left, "--%s%s%s", rows->name, rows->value ? " " : "",
                   rows->value ? rows->value : "");
        add_row(out, buf_text(&left), HELP_OPTION, rows->about);
    }
}

static void help_group(enum verb_group group, struct buf *out)
{
    static const char *const titles[VERBS_GROUPS] = {"Train", "Look", "Change jobs", "Workers",
                                                     "fsdpctl itself"};
    buf_printf(out, "\n%s:\n", titles[group]);
    for (int i = 0; i < verb_count; i++) {
        if (verbs[i].group != group) continue;
        AUTO(buf_deinit) struct buf left = {0};
        buf_printf(&left, "%s %s", verbs[i].name, verbs[i].arguments);
        add_row(out, buf_text(&left), HELP_VERB, verbs[i].about);
    }
}

static void help_all(struct buf *out)
{
    buf_add_text(out, "usage: fsdpctl VERB [ARGUMENT...] [OPTION...]\n\n"
                      "Submits, watches and pulls training jobs of an fsdpd daemon.\n");
    for (int group = 0; group < VERBS_GROUPS; group++) help_group((enum verb_group)group, out);
    buf_add_text(out, "\nOptions of every verb:\n");
    help_rows(options_global, NULL, out);
    buf_add_text(out,
                 "\nExamples:\n"
                 "    job=$(fsdpctl submit job.yaml --set train.epochs=1)\n"
                 "    fsdpctl watch $job\n"
                 "    fsdpctl pull $job -o weights.safetensors\n"
                 "    fsdpctl help submit\n"
                 "\nExit codes: 0 done, 1 failed, 2 usage, 3 fsdpd unreachable, 4 not permitted,\n"
                 "5 not found, 6 conflict or wrong state, 7 deadline, 8 the job failed,\n"
                 "9 the job was cancelled, 10 does not fit; 128 + N ended by signal N.\n");
}

static void help_examples(const char *examples, struct buf *out)
{
    buf_add_text(out, "\nExamples:\n");
    for (const char *at = examples; *at != '\0';) {
        size_t length = strcspn(at, "\n");
        buf_printf(out, "    %.*s\n", (int)length, at);
        at += length + (at[length] == '\n');
    }
}

void options_help(const struct verb *verb, struct buf *out)
{
    if (verb == NULL) {
        help_all(out);
        return;
    }
    buf_printf(out, "usage: fsdpctl %s%s%s [OPTION...]\n\n%s.\n", verb->name,
               verb->arguments[0] ? " " : "", verb->arguments, verb->about);
    if (verb->details != NULL) {
        buf_add_char(out, '\n');
        output_wrap(out, verb->details, 0, HELP_WIDTH);
        buf_add_char(out, '\n');
    }
    if (verb->options != NULL) {
        buf_add_text(out, "\nOptions:\n");
        help_rows(verb->options, NULL, out);
    }
    help_examples(verb->examples, out);
    bool own_output = options_find(verb->options, "output") != NULL;
    buf_printf(out, "\nOptions of every verb, such as %s json and --address: fsdpctl --help\n",
               own_output ? "--format" : "-o");
}
