/* Whole matrices in plans; see matrices.h. */
#include "fsdp/matrices.h"

#include <stdlib.h>

#include "base/mem.h"
#include "fsdp/plan_internal.h"

enum { MATRIX_ALIGN = 16 /* elements: a cache line */ };

int plan_find_matrices(const struct plan *plan, int unit, const struct plan_matrix **matrices)
{
    int first = 0, count = 0;
    while (first < plan->matrix_count && plan->matrices[first].unit < unit) first++;
    while (first + count < plan->matrix_count && plan->matrices[first + count].unit == unit)
        count++;
    *matrices = plan->matrices + first;
    return count;
}

int plan_matrix_ranks(const struct plan *plan, int unit)
{
    return plan_gathers(plan, unit) ? plan->units->units[unit].shard_world : plan->options.world;
}

int plan_matrix_rank(const struct plan *plan, int unit)
{
    return plan->options.rank % plan_matrix_ranks(plan, unit);
}

struct plan_part plan_matrix_part(const struct plan *plan, const struct plan_matrix *matrix,
                                  int rank)
{
    int64_t shard = plan_kept_elements(plan, matrix->unit), elements = plan_matrix_elements(matrix);
    if (!plan_gathers(plan, matrix->unit)) return (struct plan_part){.count = elements};
    int64_t from = shard * rank - matrix->offset, to = from + shard;
    if (from < 0) from = 0;
    if (to > elements) to = elements;
    return from < to ? (struct plan_part){from, to - from} : (struct plan_part){0};
}

double plan_matrix_flops(const struct plan_matrix *matrix, int steps)
{
    bool wide = matrix->rows < matrix->columns;
    double side = (double)(wide ? matrix->rows : matrix->columns);
    double other = (double)(wide ? matrix->columns : matrix->rows);
    return steps * (4 * side * side * other + 2 * side * side * side);
}

double plan_unit_matrix_flops(const struct plan *plan, int unit)
{
    const struct plan_matrix *matrices;
    int count = plan_find_matrices(plan, unit, &matrices);
    double flops = 0;
    for (int m = 0; m < count; m++)
        if (matrices[m].owner == plan_matrix_rank(plan, unit))
            flops += plan_matrix_flops(&matrices[m], plan->options.ns_steps);
    return flops;
}

/* A matrix is work for every rank that has its owner's number. */
static void add_load(const struct plan *plan, const struct plan_matrix *matrix, double *loads)
{
    double flops = plan_matrix_flops(matrix, plan->options.ns_steps);
    for (int r = matrix->owner; r < plan->options.world; r += plan_matrix_ranks(plan, matrix->unit))
        loads[r] += flops;
}

double plan_most_matrix_flops(const struct plan *plan)
{
    AUTO_FREE double *loads = mem_alloc_array((size_t)plan->options.world, sizeof *loads);
    double most = 0;
    for (int m = 0; m < plan->matrix_count; m++) add_load(plan, &plan->matrices[m], loads);
    for (int r = 0; r < plan->options.world; r++)
        if (loads[r] > most) most = loads[r];
    return most;
}

uint64_t plan_matrix_bytes(const struct plan *plan, int unit)
{
    const struct plan_matrix *matrices;
    int count = plan_find_matrices(plan, unit, &matrices);
    int64_t end = 0;
    for (int m = 0; m < count; m++) {
        int64_t own = matrices[m].place + plan_matrix_elements(&matrices[m]);
        if (own > end) end = own;
    }
    return (uint64_t)end * sizeof(float);
}

uint64_t plan_matrix_scratch(const struct plan *plan, int unit)
{
    const struct plan_matrix *matrices;
    int count = plan_find_matrices(plan, unit, &matrices);
    int64_t most = 0;
    for (int m = 0; m < count; m++) {
        int64_t rows = matrices[m].rows, columns = matrices[m].columns;
        int64_t side = rows < columns ? rows : columns;
        int64_t elements = 2 * side * side + rows * columns;
        if (elements > most) most = elements;
    }
    return most > 0 ? (uint64_t)most * sizeof(float) + plan->options.matrix_workspace_bytes : 0;
}

/* ---- owners ---- */

static void list_matrices(struct plan *plan)
{
    const bool *is_matrix = plan->options.matrix_of_parameter;
    plan->matrices =
        mem_alloc_array((size_t)plan->model->parameter_count + 1, sizeof *plan->matrices);
    for (int u = 0; u < plan->units->unit_count && is_matrix != NULL; u++) {
        const struct unit *unit = &plan->units->units[u];
        for (int i = 0; i < unit->flat.parameter_count && !unit->frozen; i++) {
            int parameter = unit->flat.parameters[i];
            const struct tensor_type *type = &plan->model->parameters[parameter].type;
            if (is_matrix[parameter])
                plan->matrices[plan->matrix_count++] =
                    (struct plan_matrix){.unit = u,
                                         .parameter = parameter,
                                         .offset = unit->flat.offsets[i],
                                         .rows = type->dims[0],
                                         .columns = type->dims[1]};
        }
    }
}

/* The rank with least work; of those that have as little, the one that holds most of the matrix. */
static int choose_owner(const struct plan *plan, const struct plan_matrix *matrix,
                        const double *loads)
{
    int best = 0;
    for (int r = 1; r < plan_matrix_ranks(plan, matrix->unit); r++)
        if (loads[r] < loads[best] ||
            (loads[r] == loads[best] &&
             plan_matrix_part(plan, matrix, r).count > plan_matrix_part(plan, matrix, best).count))
            best = r;
    return best;
}

struct ordered {
    double flops;
    int matrix;
};

static int by_work(const void *a, const void *b)
{
    const struct ordered *x = a, *y = b;
    if (x->flops != y->flops) return x->flops < y->flops ? 1 : -1;
    return x->matrix - y->matrix;
}

static void place_matrices(struct plan *plan)
{
    AUTO_FREE int64_t *ends = mem_alloc_array((size_t)plan->options.world, sizeof *ends);
    for (int m = 0; m < plan->matrix_count; m++) {
        struct plan_matrix *it = &plan->matrices[m];
        if (m > 0 && it[-1].unit != it->unit)
            for (int r = 0; r < plan->options.world; r++) ends[r] = 0;
        it->place = ends[it->owner];
        ends[it->owner] +=
            (int64_t)round_up((size_t)plan_matrix_elements(it), (size_t)MATRIX_ALIGN);
    }
}

void plan_assign_matrices(struct plan *plan)
{
    list_matrices(plan);
    AUTO_FREE double *loads = mem_alloc_array((size_t)plan->options.world, sizeof *loads);
    AUTO_FREE struct ordered *order =
        mem_alloc_array((size_t)plan->matrix_count + 1, sizeof *order);
    for (int m = 0; m < plan->matrix_count; m++)
        order[m] =
            (struct ordered){plan_matrix_flops(&plan->matrices[m], plan->options.ns_steps), m};
    qsort(order, (size_t)plan->matrix_count, sizeof *order, by_work);
    for (int i = 0; i < plan->matrix_count; i++) {
        struct plan_matrix *matrix = &plan->matrices[order[i].matrix];
        matrix->owner = choose_owner(plan, matrix, loads);
        add_load(plan, matrix, loads);
    }
    place_matrices(plan);
}

/* ---- schedule ---- */

uint64_t plan_exchanged_bytes(const struct plan *plan, const struct plan_instruction *instruction)
{
    const struct plan_matrix *matrices;
    int unit = instruction->unit, count = plan_find_matrices(plan, unit, &matrices);
    int rank = plan_matrix_rank(plan, unit), ranks = plan_matrix_ranks(plan, unit);
    int64_t elements = 0;
    for (int m = 0; m < count; m++) {
        bool own = matrices[m].owner == rank;
        if (instruction->kind == INSTRUCTION_COLLECT && !own)
            elements += plan_matrix_part(plan, &matrices[m], rank).count;
        for (int r = 0; r < ranks && own && instruction->kind == INSTRUCTION_DISTRIBUTE; r++)
            if (r != rank) elements += plan_matrix_part(plan, &matrices[m], r).count;
    }
    return (uint64_t)elements * sizeof(float);
}

static int64_t elements_of(const struct plan *plan, int unit)
{
    const struct plan_matrix *matrices;
    int64_t elements = 0;
    int count = plan_find_matrices(plan, unit, &matrices);
    for (int m = 0; m < count; m++) elements += plan_matrix_elements(&matrices[m]);
    return elements;
}

int plan_append_whole(struct plan_listing *listing, enum instruction_kind kind, int unit,
                      int64_t count, int *after, int after_count)
{
    const struct plan *plan = listing->plan;
    bool exchange = kind == INSTRUCTION_COLLECT || kind == INSTRUCTION_DISTRIBUTE ||
                    kind == INSTRUCTION_GATHER_SUMS;
    bool parted = plan_matrix_ranks(plan, unit) < plan->options.world;
    struct plan_instruction instruction = {.kind = kind,
                                           .lane = exchange ? LANE_COMM : LANE_COMPUTE,
                                           .group = exchange && parted ? GROUP_SHARD : GROUP_WORLD,
                                           .unit = unit,
                                           .op = -1,
                                           .source = -1,
                                           .target = -1,
                                           .workspace = -1,
                                           .count = exchange ? count : 0};
    instruction.communicated = plan_communicated(plan, &instruction);
    return plan_append(listing->program, listing->capacity, &instruction, after, after_count);
}

static int append(struct plan_listing *listing, enum instruction_kind kind, int unit, int *after,
                  int after_count)
{
    return plan_append_whole(listing, kind, unit, elements_of(listing->plan, unit), after,
                             after_count);
}

static void collect(struct plan_listing *listing, int unit)
{
    int *ready = &listing->ready[unit];
    int after[] = {*ready, listing->stats};
    *ready = append(listing, INSTRUCTION_MOMENTUM, unit, after, 2);
    if (!plan_gathers(listing->plan, unit)) return;
    int moved[] = {*ready};
    *ready = append(listing, INSTRUCTION_COLLECT, unit, moved, 1);
}

static void distribute(struct plan_listing *listing, int unit)
{
    int *ready = &listing->ready[unit];
    int after[] = {*ready, listing->stats};
    *ready = append(listing, INSTRUCTION_ORTHOGONALIZE, unit, after, 2);
    if (listing->plan->options.world == 1) return;
    int done[] = {*ready};
    *ready = append(listing, INSTRUCTION_DISTRIBUTE, unit, done, 1);
}

/* The next unit's matrices are collected while this one's are computed; no more are, for the sake
 * of memory. */
void plan_list_matrices(struct plan_listing *listing, const int *units, int count)
{
    const struct plan_matrix *matrices;
    int before = -1;
    for (int i = 0; i < count; i++) {
        if (plan_find_matrices(listing->plan, units[i], &matrices) == 0) continue;
        collect(listing, units[i]);
        if (before >= 0) distribute(listing, before);
        before = units[i];
    }
    if (before >= 0) distribute(listing, before);
}
