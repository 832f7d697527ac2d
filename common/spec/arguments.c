/* model.args: values for the arguments of a model file; see spec.h. The model checks their types.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/internal.h"

enum { NAME_MAX_LETTERS = 64, VALUE_MAX_BYTES = 256 };

static bool is_name(const char *name)
{
    size_t length = strlen(name);
    bool valid = length >= 1 && length <= NAME_MAX_LETTERS && !isdigit((unsigned char)name[0]);
    for (size_t i = 0; i < length; i++)
        valid = valid && (isalnum((unsigned char)name[i]) || name[i] == '_');
    return valid;
}

static status_t check_argument(const Fsdpd__V1__ModelSpec__ArgsEntry *argument)
{
    char text[72];
    if (!is_name(argument->key))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected a name of 1 to %d letters, digits and _, found '%s'",
                          NAME_MAX_LETTERS, yamldoc_excerpt(argument->key, text));
    if (strlen(argument->value) > VALUE_MAX_BYTES)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected at most %d bytes, found %zu",
                          argument->key, VALUE_MAX_BYTES, strlen(argument->value));
    return NULL;
}

status_t spec_check_arguments(Fsdpd__V1__ModelSpec__ArgsEntry *const *arguments, size_t count)
{
    if (count > SPEC_ARGUMENTS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d arguments, found %zu",
                          SPEC_ARGUMENTS_MAX, count);
    for (size_t i = 0; i < count; i++) {
        TRY(check_argument(arguments[i]));
        for (size_t j = 0; j < i; j++)
            if (strcmp(arguments[i]->key, arguments[j]->key) == 0)
                return status_new(STATUS_INVALID_ARGUMENT, "%s appears twice", arguments[i]->key);
    }
    return NULL;
}

/* The order of entries in a file or a message means nothing. */
static int compare_arguments(const void *a, const void *b)
{
    const Fsdpd__V1__ModelSpec__ArgsEntry *const *first = a, *const *second = b;
    return strcmp((*first)->key, (*second)->key);
}

status_t spec_read_arguments(const struct yamldoc_node *node, Fsdpd__V1__ModelSpec *model)
{
    if (yamldoc_is_null(node)) return NULL;
    if (node->kind != YAMLDOC_MAPPING)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected a mapping of values, such as {width: 256}, found %s",
                          node->kind == YAMLDOC_SEQUENCE ? "a list" : "a single value");
    model->args = mem_alloc_array((size_t)node->item_count + 1, sizeof *model->args);
    for (int i = 0; i < node->item_count; i++) {
        const struct yamldoc_node *item = node->items[i];
        if (item->kind != YAMLDOC_SCALAR)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: expected a single value, found a %s",
                              item->key, item->kind == YAMLDOC_SEQUENCE ? "list" : "mapping");
        Fsdpd__V1__ModelSpec__ArgsEntry *argument = mem_alloc(sizeof *argument);
        fsdpd__v1__model_spec__args_entry__init(argument);
        model->args[model->n_args++] = argument;
        argument->key = mem_strdup(item->key);
        argument->value = mem_strdup(yamldoc_is_null(item) ? "null" : item->text);
    }
    if (model->n_args > 1)
        qsort(model->args, model->n_args, sizeof *model->args, compare_arguments);
    return spec_check_arguments(model->args, model->n_args);
}
