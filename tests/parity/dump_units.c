/*
 * dump_units: reads requests from stdin and writes the units of each to stdout, for
 * tests/parity/test_wrap.py. A request is one line of words:
 *
 *     MODEL none | type T... | match PATTERN... | units A,B C... | size N [leaf=T,...]
 * [exclude=T,...]
 *
 * The answer is "unit NAME frozen|trainable MODULES PARAMETERS" for each unit, names joined by
 * commas and "-" for none, or "refused MESSAGE"; then a line with a dot.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "fsdp/units.h"

enum { WORDS_MAX = 256 };

static int split(char *text, const char *separators, const char **words)
{
    int count = 0;
    for (char *word = strtok(text, separators); word; word = strtok(NULL, separators)) {
        if (count == WORDS_MAX) abort();
        words[count++] = word;
    }
    return count;
}

/* Storage for the pointers of a request's policy. */
static const char *pool[16 * WORDS_MAX];
static struct wrap_unit_spec unit_pool[WORDS_MAX];
static int pool_used;

/* "A,B" or "", cut in place. */
static struct wrap_names read_list(const char *text)
{
    const char **items = pool + pool_used;
    if (pool_used > 15 * WORDS_MAX) abort();
    int count = split((char *)text, ",", items);
    pool_used += count + 1; /* an empty list has an address, too */
    return (struct wrap_names){items, count};
}

static bool read_policy(const char **words, int count, struct wrap_policy *policy)
{
    const struct wrap_names names = {words + 1, count - 1};
    *policy = (struct wrap_policy){.kind = WRAP_NONE};
    pool_used = 0;
    if (strcmp(words[0], "type") == 0) {
        policy->kind = WRAP_TYPE;
        policy->types = names;
    } else if (strcmp(words[0], "match") == 0) {
        policy->kind = WRAP_MATCH;
        policy->modules = names;
    } else if (strcmp(words[0], "units") == 0) {
        for (int i = 0; i < names.count; i++) {
            struct wrap_names modules = read_list(names.items[i]);
            unit_pool[i] =
                (struct wrap_unit_spec){.modules = modules.items, .module_count = modules.count};
        }
        policy->kind = WRAP_UNITS;
        policy->units = unit_pool;
        policy->unit_count = names.count;
    } else if (strcmp(words[0], "size") == 0 && count > 1) {
        policy->kind = WRAP_SIZE;
        policy->min_num_params = strtoull(words[1], NULL, 10);
        for (int i = 2; i < count; i++) {
            if (strncmp(words[i], "leaf=", 5) == 0) policy->force_leaf = read_list(words[i] + 5);
            else if (strncmp(words[i], "exclude=", 8) == 0)
                policy->exclude = read_list(words[i] + 8);
            else return false;
        }
    } else {
        return strcmp(words[0], "none") == 0;
    }
    return true;
}

static void print_unit(const struct model *model, const struct unit *unit)
{
    printf("unit %s ", unit->modules[0] == 0 ? "(root)" : model->modules[unit->modules[0]].path);
    printf("%s ", unit->frozen ? "frozen" : "trainable");
    for (int i = 0; i < unit->module_count; i++)
        printf("%s%s", i ? "," : "",
               unit->modules[i] == 0 ? "(root)" : model->modules[unit->modules[i]].path);
    printf(" %s", unit->flat.parameter_count == 0 ? "-" : "");
    for (int i = 0; i < unit->flat.parameter_count; i++)
        printf("%s%s", i ? "," : "", model->parameters[unit->flat.parameters[i]].name);
    putchar('\n');
}

static status_t answer(const char **words, int count)
{
    struct wrap_policy policy;
    if (count < 2 || !read_policy(words + 1, count - 1, &policy))
        return status_new(STATUS_INTERNAL, "no such request");
    struct buf text = {0};
    TRY(file_read(words[0], 1 << 20, &text));
    struct model *model;
    status_t status = model_parse(text.data, text.length, words[0], &model);
    buf_deinit(&text);
    if (status != NULL) return status_wrap(status, "the model");
    struct unit_set *units = NULL;
    status = units_build(model, &policy, 2, &units);
    if (status_code(status) == STATUS_INVALID_ARGUMENT) {
        printf("refused %s\n", status_message(status));
        status_free(status);
        status = NULL;
    }
    for (int u = 0; units != NULL && u < units->unit_count; u++)
        print_unit(model, &units->units[u]);
    units_free(units);
    model_free(model);
    return status;
}

int main(void)
{
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const char *words[WORDS_MAX];
        status_t status = answer(words, split(line, " \n", words));
        if (status != NULL) {
            fprintf(stderr, "dump_units: %s\n", status_message(status));
            return 1;
        }
        puts(".");
    }
    return 0;
}
