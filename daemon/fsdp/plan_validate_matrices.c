/*
 * The part of plan_validate for matrices that are updated whole: that every one has an owner, in
 * whose memory it overlaps no other, and what moving its pieces sends. Derived from the units
 * alone, but for the owners, which may be any. Pure functions; any thread.
 */
#include "fsdp/plan_validate.h"

static const struct unit *unit_of(const struct validator *v, int unit)
{
    return &v->plan->units->units[unit];
}

static bool is_matrix(const struct validator *v, int parameter)
{
    return v->plan->options.matrix_of_parameter != NULL &&
           v->plan->options.matrix_of_parameter[parameter];
}

static int64_t elements_of(const struct validator *v, int parameter)
{
    return tensor_element_count(&v->plan->model->parameters[parameter].type);
}

int64_t validate_matrices(const struct validator *v, int unit)
{
    const struct flat_parameter *flat = &unit_of(v, unit)->flat;
    int64_t elements = 0;
    for (int i = 0; i < flat->parameter_count && !unit_of(v, unit)->frozen; i++)
        if (is_matrix(v, flat->parameters[i])) elements += elements_of(v, flat->parameters[i]);
    return elements;
}

/* Elements of [from, from + count) that number `part` of parts of `each` elements has. */
static int64_t within(int64_t from, int64_t count, int64_t each, int64_t part)
{
    int64_t begin = each * part > from ? each * part : from;
    int64_t end = each * (part + 1) < from + count ? each * (part + 1) : from + count;
    return begin < end ? end - begin : 0;
}

uint64_t validate_exchanged(const struct validator *v, const struct plan_instruction *in)
{
    const struct unit *unit = unit_of(v, in->unit);
    int64_t sent = 0, shards = unit->shard_world, rank = v->plan->options.rank;
    if (shards > 1) rank %= shards;
    for (int m = 0; m < v->plan->matrix_count; m++) {
        const struct plan_matrix *it = &v->plan->matrices[m];
        if (it->unit != in->unit) continue;
        int64_t count = elements_of(v, it->parameter), own = it->owner == rank;
        int64_t here = within(it->offset, count, unit->flat.shard, rank);
        if (in->kind == INSTRUCTION_COLLECT) sent += own ? 0 : here;
        else if (own) sent += shards > 1 ? count - here : count * (v->plan->options.world - 1);
    }
    return 4 * (uint64_t)sent;
}

uint64_t validate_matrix_bytes(const struct validator *v, int unit)
{
    int64_t end = 0;
    for (int m = 0; m < v->plan->matrix_count; m++) {
        const struct plan_matrix *it = &v->plan->matrices[m];
        int64_t last = it->place + elements_of(v, it->parameter);
        if (it->unit == unit && last > end) end = last;
    }
    return 4 * (uint64_t)end;
}

uint64_t validate_matrix_scratch(const struct validator *v, int unit)
{
    int64_t most = 0;
    for (int m = 0; m < v->plan->matrix_count; m++) {
        const struct plan_matrix *it = &v->plan->matrices[m];
        int64_t side = it->rows < it->columns ? it->rows : it->columns;
        int64_t elements = elements_of(v, it->parameter) + 2 * side * side;
        if (it->unit == unit && elements > most) most = elements;
    }
    return most > 0 ? 4 * (uint64_t)most + v->plan->options.matrix_workspace_bytes : 0;
}

static bool overlap(const struct validator *v, const struct plan_matrix *a,
                    const struct plan_matrix *b)
{
    return a->unit == b->unit && a->owner == b->owner &&
           a->place < b->place + elements_of(v, b->parameter) &&
           b->place < a->place + elements_of(v, a->parameter);
}

status_t validate_owners(const struct validator *v)
{
    int64_t listed = 0, expected = 0;
    for (int m = 0; m < v->plan->matrix_count; m++) {
        const struct plan_matrix *it = &v->plan->matrices[m];
        const struct parameter *parameter = &v->plan->model->parameters[it->parameter];
        int ranks = unit_of(v, it->unit)->shard_world;
        if (ranks == 1) ranks = v->plan->options.world;
        if (!is_matrix(v, it->parameter) || parameter->type.dim_count != 2 ||
            parameter->type.dims[0] != it->rows || parameter->type.dims[1] != it->columns ||
            flat_parameter_offset(&unit_of(v, it->unit)->flat, it->parameter) != it->offset)
            return validate_fail(v, -1, "%s is no matrix of %lld x %lld in unit %s",
                                 parameter->name, (long long)it->rows, (long long)it->columns,
                                 unit_of(v, it->unit)->name);
        if (it->owner < 0 || it->owner >= ranks || it->place < 0)
            return validate_fail(v, -1, "the matrix %s has owner %d of %d", parameter->name,
                                 it->owner, ranks);
        listed += elements_of(v, it->parameter);
        for (int other = m - 1; other >= 0 && v->plan->matrices[other].unit == it->unit; other--)
            if (overlap(v, it, &v->plan->matrices[other]))
                return validate_fail(
                    v, -1, "the matrices %s and %s overlap at their owner", parameter->name,
                    v->plan->model->parameters[v->plan->matrices[other].parameter].name);
    }
    for (int u = 0; u < v->plan->units->unit_count; u++) expected += validate_matrices(v, u);
    if (listed == expected) return NULL;
    return validate_fail(v, -1, "%lld elements of matrices have owners; expected %lld",
                         (long long)listed, (long long)expected);
}
