/*
 * The part of plan_validate for sums over rows and columns: what moving them sends, and their
 * memory. Derived from the units alone, without the builder's functions. Pure functions; any
 * thread.
 */
#include "fsdp/plan_validate.h"

static const struct unit *unit_of(const struct validator *v, int unit)
{
    return &v->plan->units->units[unit];
}

bool validate_factors(const struct validator *v, int unit)
{
    return optimizer_factors(v->plan->options.optimizer) && !unit_of(v, unit)->frozen &&
           unit_of(v, unit)->flat.parameter_count > 0;
}

/* Of a unit's parameter: its first element, and the rows and columns of its matrices, which are
 * none of a vector. */
struct stack {
    int64_t first, elements, rows, columns, height, width;
};

static struct stack stack_of(const struct validator *v, int unit, int i)
{
    const struct flat_parameter *flat = &unit_of(v, unit)->flat;
    const struct tensor_type *type = &v->plan->model->parameters[flat->parameters[i]].type;
    struct stack stack = {.first = flat->offsets[i], .elements = 1};
    for (int d = 0; d < type->dim_count; d++) stack.elements *= type->dims[d];
    if (type->dim_count < 2) return stack;
    stack.width = type->dims[type->dim_count - 1];
    stack.height = type->dims[type->dim_count - 2];
    stack.rows = stack.elements / stack.width;
    stack.columns = stack.elements / stack.height;
    return stack;
}

int64_t validate_factor_sums(const struct validator *v, int unit)
{
    int64_t sums = 0;
    for (int i = 0; i < unit_of(v, unit)->flat.parameter_count; i++) {
        struct stack stack = stack_of(v, unit, i);
        sums += stack.rows + stack.columns;
    }
    return sums;
}

/* The groups of `each` neighbouring elements that a part of the stack touches. */
static int64_t touched(int64_t from, int64_t to, int64_t each)
{
    return (to + each - 1) / each - from / each;
}

/* The rows and columns that have an element in a rank's part, where a matrix counts with all of its
 * columns. */
static int64_t held(const struct validator *v, int unit, const struct stack *stack, int64_t rank)
{
    int64_t shard = unit_of(v, unit)->flat.shard, from = shard * rank - stack->first;
    int64_t to = from + shard < stack->elements ? from + shard : stack->elements;
    if (from < 0) from = 0;
    if (stack->rows == 0 || from >= to) return 0;
    return touched(from, to, stack->width) +
           touched(from, to, stack->width * stack->height) * stack->width;
}

uint64_t validate_moved(const struct validator *v, const struct plan_instruction *in)
{
    const struct unit *unit = unit_of(v, in->unit);
    int64_t rank = v->plan->options.rank % unit->shard_world, floats = 0;
    for (int i = 0; i < unit->flat.parameter_count; i++) {
        struct stack stack = stack_of(v, in->unit, i);
        int64_t owner = stack.first / unit->flat.shard;
        if (in->kind == INSTRUCTION_COLLECT && owner != rank) /* doubles */
            floats += 2 * held(v, in->unit, &stack, rank);
        for (int64_t r = 0;
             in->kind == INSTRUCTION_DISTRIBUTE && owner == rank && r < unit->shard_world; r++)
            if (r != rank) floats += held(v, in->unit, &stack, r);
    }
    return 4 * (uint64_t)floats;
}

uint64_t validate_factor_bytes(const struct validator *v, int unit)
{
    int64_t sums = validate_factor_sums(v, unit), ranks = unit_of(v, unit)->shard_world, most = 0;
    int64_t parameters = unit_of(v, unit)->flat.parameter_count;
    for (int64_t rank = 0; rank < ranks && ranks > 1; rank++) {
        int64_t collected = 0;
        for (int i = 0; i < parameters; i++) {
            struct stack stack = stack_of(v, unit, i);
            if (stack.first / unit_of(v, unit)->flat.shard != rank) continue;
            for (int64_t r = 0; r < ranks; r++) collected += held(v, unit, &stack, r);
        }
        if (collected > most) most = collected;
    }
    /* Own sums, what others need of them, two sums of each rank's parameters, what is collected. */
    return 8 * (uint64_t)(sums + (sums + 1) / 2 + 2 * parameters * ranks + most);
}
