/* See factors.h. */
#include "model/factors.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/layers_internal.h"

/* The program's copy of a list; takes `owned`, which has its values. */
static struct op_weights keep(struct model_program *program, struct op_weights list, float *owned)
{
    size_t size = (size_t)list.count * sizeof *owned;
    for (int i = 0; i < program->factor_count; i++) {
        const struct op_weights *kept = &program->factors[i];
        if (kept->count != list.count || memcmp(kept->values, owned, size) != 0) continue;
        free(owned);
        return *kept;
    }
    MEM_GROW(program->factors, program->factor_count, program->factor_capacity);
    program->factors[program->factor_count++] = list;
    return list;
}

static status_t read_list(const struct expression *given, const struct environment *environment,
                          const char *argument, struct model_program *program,
                          struct op_weights *list)
{
    float *owned = NULL;
    TRY(layer_evaluate_numbers(given, environment, "rope", argument, list, &owned));
    if (owned != NULL) *list = keep(program, *list, owned);
    return NULL;
}

status_t factors_set(const struct bound *bound, const struct environment *environment,
                     struct model_program *program, struct layer *layer)
{
    const struct signature *signature = bound->signature;
    struct op_weights *lists[] = {&layer->attrs.rope.short_factors,
                                  &layer->attrs.rope.long_factors};
    int next = 0;
    for (int i = 0; i < signature->count; i++) {
        const struct argument *argument = &signature->arguments[i];
        if (argument->kind != ARGUMENT_NUMBERS) continue;
        struct op_weights *list = lists[next++];
        if (bound->tensors[i] != NULL)
            TRY(read_list(bound->tensors[i], environment, argument->name, program, list));
    }
    return NULL;
}
