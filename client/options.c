/* Parsing the command line and describing it; see options.h. */
#include "options.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"

enum { DEFAULT_TIMEOUT_MS = 60000 };

static status_t set_address(struct options *options, const char *value)
{
    options->address = value;
    return NULL;
}

static status_t set_format(struct options *options, const char *value)
{
    if (strcmp(value, "table") == 0) options->format = FORMAT_TABLE;
    else if (strcmp(value, "json") == 0) options->format = FORMAT_JSON;
    else return status_new(STATUS_INVALID_ARGUMENT, "expected table or json, found '%s'", value);
    return NULL;
}

static status_t set_timeout(struct options *options, const char *value)
{
    double seconds;
    if (!text_parse_f64(value, &seconds) || seconds < 0 || seconds > 1e6)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected seconds from 0 (no limit) to 1000000, found '%s'", value);
    options->timeout_ms = (int64_t)(seconds * 1000);
    if (seconds > 0 && options->timeout_ms == 0) options->timeout_ms = 1;
    return NULL;
}

/* Where session.c looks, which takes what the environment says. */
static status_t set_variable(const char *name, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a file, found ''");
    if (setenv(name, value, 1) == 0) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory for %s", name);
}

static status_t set_tls_ca(struct options *options, const char *value)
{
    (void)options;
    return set_variable("FSDPD_TLS_CA", value);
}

static status_t set_tls_certificate(struct options *options, const char *value)
{
    (void)options;
    return set_variable("FSDPD_TLS_CERTIFICATE", value);
}

static status_t set_tls_key(struct options *options, const char *value)
{
    (void)options;
    return set_variable("FSDPD_TLS_KEY", value);
}

static status_t set_insecure_tcp(struct options *options, const char *value)
{
    (void)options, (void)value;
    return set_variable("FSDPD_INSECURE_TCP", "true");
}

static status_t set_help(struct options *options, const char *value)
{
    (void)value;
    options->help = true;
    return NULL;
}

static status_t set_version(struct options *options, const char *value)
{
    (void)value;
    options->version = true;
    return NULL;
}

const struct option_row options_global[] = {
    {"address", 0, "ADDRESS",
     "where fsdpd listens: unix:PATH or HOST:PORT (or set FSDPD_ADDRESS; default: the local "
     "socket)",
     set_address},
    {"output", 'o', "FORMAT", "table (default) or json", set_format},
    {"format", 0, "FORMAT", "the same as --output, also where that names a file", set_format},
    {"timeout", 0, "SECONDS", "how long to wait for fsdpd (default 60; 0: no limit)", set_timeout},
    {"tls-ca", 0, "FILE",
     "for HOST:PORT: who vouches for fsdpd (or FSDPD_TLS_CA; default: ca.crt in "
     "~/.config/fsdpd/tls)",
     set_tls_ca},
    {"tls-certificate", 0, "FILE",
     "our certificate (or FSDPD_TLS_CERTIFICATE; default: client.crt there)", set_tls_certificate},
    {"tls-key", 0, "FILE", "its private key (or FSDPD_TLS_KEY; default: client.key there)",
     set_tls_key},
    {"insecure-tcp", 0, NULL, "allow HOST:PORT without TLS (or FSDPD_INSECURE_TCP=true)",
     set_insecure_tcp},
    {"help", 'h', NULL, "this text", set_help},
    {"version", 'V', NULL, "the version of fsdpctl", set_version},
    {0},
};

const struct option_row *options_find(const struct option_row *table, const char *name)
{
    for (; table != NULL && table->name != NULL; table++)
        if (strcmp(table->name, name) == 0) return table;
    return NULL;
}

static const struct option_row *find_letter(const struct option_row *table, char letter)
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

static status_t unknown_verb(const char *word)
{
    const char **names = mem_alloc_array((size_t)verb_count, sizeof *names);
    for (int i = 0; i < verb_count; i++) names[i] = verbs[i].name;
    const char *nearest = text_nearest(word, names, (size_t)verb_count);
    status_t status = nearest ? status_new(STATUS_INVALID_ARGUMENT,
                                           "unknown verb '%s'; did you mean %s?", word, nearest)
                              : status_new(STATUS_INVALID_ARGUMENT,
                                           "unknown verb '%s'; fsdpctl --help lists them", word);
    free(names);
    return status;
}

static status_t unknown_option(const char *word, const struct verb *verb)
{
    const char *names[64];
    size_t count = 0, length = strcspn(word, "=");
    const struct option_row *tables[] = {verb ? verb->options : NULL, options_global};
    for (int t = 0; t < 2; t++)
        for (const struct option_row *row = tables[t]; row && row->name && count < 64; row++)
            names[count++] = row->name;
    char *name = mem_strndup(word, length);
    const char *nearest = strncmp(name, "--", 2) == 0 ? text_nearest(name + 2, names, count) : NULL;
    status_t status = nearest ? status_new(STATUS_INVALID_ARGUMENT,
                                           "unknown option %s; did you mean --%s?", name, nearest)
                              : status_new(STATUS_INVALID_ARGUMENT, "unknown option %s", name);
    free(name);
    return status;
}

/* What is left of the command line. */
struct words {
    char **next;
    int count;
};

/* What fsdpd is asked for travels as text; the names of files need not be any. */
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

static status_t apply_option(const struct option_row *row, const char *shown, const char *attached,
                             struct words *words, struct options *options)
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
                             struct options *options)
{
    const struct option_row *own = verb ? verb->options : NULL;
    const struct option_row *row;
    const char *attached = NULL;
    char *shown;
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
    status_t status =
        row ? apply_option(row, shown, attached, words, options) : unknown_option(word, verb);
    free(shown);
    return status;
}

static status_t take_argument(const char *word, const struct verb *verb, struct options *options)
{
    if (options->argument_count >= verb->argument_count ||
        options->argument_count >= OPTIONS_MAX_ARGUMENTS)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s, found '%s' too", verb->name,
                          verb->argument_count ? verb->arguments : "no arguments", word);
    if (word[0] == '\0' && verb->arguments[0] != '[')
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s, found ''", verb->name,
                          verb->arguments);
    TRY(status_wrap(check_text(verb->arguments, word), "%s", verb->name));
    options->arguments[options->argument_count++] = word;
    return NULL;
}

/* "-5" is an argument where one is a number: no option is a digit. */
static bool is_number(const char *word, const struct verb *verb)
{
    return verb != NULL && isdigit((unsigned char)word[1]);
}

status_t options_parse(int count, char **words_given, const struct verb **verb_out,
                       struct options *options)
{
    struct words words = {words_given, count};
    const struct verb *verb = NULL;
    bool only_arguments = false;
    *options = (struct options){.timeout_ms = DEFAULT_TIMEOUT_MS};
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
    /* `help` alone takes fewer: the verb to explain is optional. */
    bool optional = verb != NULL && verb->arguments[0] == '[';
    if (verb != NULL && !options->help && !optional &&
        options->argument_count < verb->argument_count)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s; fsdpctl %s --help says more",
                          verb->name, verb->arguments, verb->name);
    *verb_out = verb;
    return NULL;
}

void options_deinit(struct options *options)
{
    for (int i = 0; i < options->text_count; i++) free(options->texts[i]);
    free(options->texts);
    free(options->labels);
    free(options->sets);
    *options = (struct options){0};
}

/* The rows of a table but those that `own` has, and so means otherwise. */
static void help_rows(const struct option_row *rows, const struct option_row *own, struct buf *out)
{
    for (; rows != NULL && rows->name != NULL; rows++) {
        if (options_find(own, rows->name) != NULL) continue;
        struct buf left = {0};
        if (rows->letter != 0) buf_printf(&left, "-%c, ", rows->letter);
        buf_printf(&left, "--%s%s%s", rows->name, rows->value ? " " : "",
                   rows->value ? rows->value : "");
        buf_printf(out, "  %-24s %s\n", buf_text(&left), rows->about);
        buf_deinit(&left);
    }
}

static void help_all(struct buf *out)
{
    buf_add_text(out, "usage: fsdpctl VERB [ARGUMENT...] [OPTION...]\n\n"
                      "Submits, watches and pulls training jobs of an fsdpd daemon.\n\n");
    for (int i = 0; i < verb_count; i++) {
        struct buf left = {0};
        buf_printf(&left, "%s %s", verbs[i].name, verbs[i].arguments);
        buf_printf(out, "  %-24s %s\n", buf_text(&left), verbs[i].about);
        buf_deinit(&left);
    }
    buf_add_text(out, "\nOptions of every verb:\n");
    help_rows(options_global, NULL, out);
    buf_add_text(out,
                 "\nExit codes: 0 done, 1 failed, 2 usage, 3 fsdpd unreachable, 4 not permitted,\n"
                 "5 not found, 6 conflict or wrong state, 7 deadline, 8 the job failed,\n"
                 "9 the job was cancelled, 10 does not fit; 128 + N ended by signal N.\n");
}

void options_help(const struct verb *verb, struct buf *out)
{
    if (verb == NULL) {
        help_all(out);
        return;
    }
    buf_printf(out, "usage: fsdpctl %s%s%s [OPTION...]\n\n%s.\n", verb->name,
               verb->arguments[0] ? " " : "", verb->arguments, verb->about);
    if (verb->details != NULL) buf_printf(out, "\n%s", verb->details);
    buf_add_text(out, "\nOptions:\n");
    help_rows(verb->options, NULL, out);
    help_rows(options_global, verb->options, out);
}
