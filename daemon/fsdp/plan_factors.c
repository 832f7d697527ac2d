/* Sums over rows and columns in plans; see factors.h. */
#include "fsdp/factors.h"

#include "base/mem.h"
#include "fsdp/plan_internal.h"

int64_t factor_words(const struct tensor_type *type)
{
    int64_t elements = tensor_element_count(type);
    if (type->dim_count < 2) return elements;
    return elements / type->dims[type->dim_count - 1] + elements / type->dims[type->dim_count - 2];
}

static struct plan_factor describe(const struct plan *plan, const struct flat_parameter *flat,
                                   int i)
{
    const struct tensor_type *type = &plan->model->parameters[flat->parameters[i]].type;
    struct plan_factor it = {.parameter = flat->parameters[i],
                             .offset = flat->offsets[i],
                             .elements = tensor_element_count(type)};
    if (type->dim_count < 2) return it;
    it.height = type->dims[type->dim_count - 2];
    it.width = type->dims[type->dim_count - 1];
    it.rows = it.elements / it.width;
    it.columns = it.elements / it.height;
    it.owner = (int)(it.offset / flat->shard);
    return it;
}

struct plan_factor_part plan_factor_part(const struct plan *plan, int unit,
                                         const struct plan_factor *it, int rank)
{
    int64_t shard = plan_kept_elements(plan, unit), from = shard * rank - it->offset;
    int64_t to = from + shard;
    if (from < 0) from = 0;
    if (to > it->elements) to = it->elements;
    if (from >= to) return (struct plan_factor_part){0};
    struct plan_factor_part part = {.from = from, .count = to - from};
    if (it->rows == 0) return part;
    int64_t matrix = it->height * it->width;
    part.first_row = from / it->width;
    part.rows = (to - 1) / it->width - part.first_row + 1;
    part.first_column = from / matrix * it->width;
    part.columns = ((to - 1) / matrix + 1) * it->width - part.first_column;
    return part;
}

int plan_find_factors(const struct plan *plan, int unit, struct plan_factor **factors,
                      struct plan_factor_room *room)
{
    const struct flat_parameter *flat = &plan->units->units[unit].flat;
    int count = flat->parameter_count, ranks = plan->units->units[unit].shard_world;
    struct plan_factor *found = mem_alloc_array((size_t)count + 1, sizeof *found);
    AUTO_FREE int64_t *inboxes = mem_alloc_array((size_t)ranks, sizeof *inboxes);
    int64_t sums = 0, most = 0;
    for (int i = 0; i < count; i++) {
        struct plan_factor *it = &found[i];
        *it = describe(plan, flat, i);
        it->place = sums;
        sums += it->rows + it->columns;
        it->inbox = inboxes[it->owner];
        for (int r = 0; r < ranks && it->rows > 0 && ranks > 1; r++) {
            struct plan_factor_part part = plan_factor_part(plan, unit, it, r);
            inboxes[it->owner] += part.rows + part.columns;
        }
        if (inboxes[it->owner] > most) most = inboxes[it->owner];
    }
    *factors = found;
    if (room == NULL) return count;
    room->sums = sums;
    room->factors = 2 * sums;
    room->totals = room->factors + (sums + 1) / 2 * 2;
    room->inbox = room->totals + (int64_t)4 * count * ranks;
    room->end = room->inbox + 2 * most;
    room->ranks = ranks;
    room->rank = plan->options.rank % ranks;
    return count;
}

uint64_t plan_factor_bytes(const struct plan *plan, int unit)
{
    AUTO_FREE struct plan_factor *factors = NULL;
    struct plan_factor_room room;
    plan_find_factors(plan, unit, &factors, &room);
    return (uint64_t)room.end * sizeof(float);
}

static void add_move(struct plan_factor_move *moves, int *count, struct plan_factor_move move)
{
    if (move.count > 0 && (move.from != move.to || move.source != move.target))
        moves[(*count)++] = move;
}

int plan_find_factor_moves(const struct plan *plan, int unit, bool collects,
                           struct plan_factor_move **moves)
{
    AUTO_FREE struct plan_factor *factors = NULL;
    struct plan_factor_room room;
    int count = plan_find_factors(plan, unit, &factors, &room), found = 0;
    *moves = mem_alloc_array(2 * (size_t)count * (size_t)room.ranks + 1, sizeof **moves);
    for (int f = 0; f < count && room.ranks > 1; f++) {
        const struct plan_factor *it = &factors[f];
        int64_t inbox = room.inbox + 2 * it->inbox;
        for (int r = 0; r < room.ranks && it->rows > 0; r++) {
            struct plan_factor_part part = plan_factor_part(plan, unit, it, r);
            int64_t rows = it->place + part.first_row;
            int64_t columns = it->place + it->rows + part.first_column;
            if (collects) {
                add_move(*moves, &found,
                         (struct plan_factor_move){r, it->owner, 2 * rows, inbox, 2 * part.rows});
                inbox += 2 * part.rows;
                add_move(*moves, &found,
                         (struct plan_factor_move){r, it->owner, 2 * columns, inbox,
                                                   2 * part.columns});
                inbox += 2 * part.columns;
                continue;
            }
            rows += room.factors;
            columns += room.factors;
            add_move(*moves, &found,
                     (struct plan_factor_move){it->owner, r, rows, rows, part.rows});
            add_move(*moves, &found,
                     (struct plan_factor_move){it->owner, r, columns, columns, part.columns});
        }
    }
    return found;
}

/* ---- schedule ---- */

uint64_t plan_moved_bytes(const struct plan *plan, const struct plan_instruction *instruction)
{
    AUTO_FREE struct plan_factor_move *moves = NULL;
    int unit = instruction->unit;
    int count =
        plan_find_factor_moves(plan, unit, instruction->kind == INSTRUCTION_COLLECT, &moves);
    int rank = plan->options.rank % plan->units->units[unit].shard_world;
    uint64_t floats = 0;
    for (int m = 0; m < count; m++)
        if (moves[m].from == rank && moves[m].to != rank) floats += (uint64_t)moves[m].count;
    return floats * sizeof(float);
}

/* After the unit's instruction before, and once the gradient's scale is known. */
static void append(struct plan_listing *listing, enum instruction_kind kind, int unit,
                   int64_t count)
{
    int after[] = {listing->ready[unit], listing->stats};
    listing->ready[unit] = plan_append_whole(listing, kind, unit, count, after, 2);
}

/* One of the four stages of a unit, each of which ends with an exchange if ranks share it. */
static void list_stage(struct plan_listing *listing, int unit, int stage)
{
    AUTO_FREE struct plan_factor *factors = NULL;
    struct plan_factor_room room;
    int count = plan_find_factors(listing->plan, unit, &factors, &room);
    static const enum instruction_kind works[] = {INSTRUCTION_SQUARES, INSTRUCTION_FACTOR,
                                                  INSTRUCTION_UPDATE, INSTRUCTION_SCALE};
    static const enum instruction_kind moves[] = {INSTRUCTION_COLLECT, INSTRUCTION_DISTRIBUTE,
                                                  INSTRUCTION_GATHER_SUMS};
    if (stage < 2 && room.sums == 0) return; /* vectors only */
    append(listing, works[stage], unit, 0);
    if (stage < 3 && room.ranks > 1)
        append(listing, moves[stage], unit, stage < 2 ? room.sums : (int64_t)4 * count);
}

/* A unit's exchange runs while the units before and after it are computed. */
void plan_list_factors(struct plan_listing *listing, const int *units, int count)
{
    enum { STAGES = 4 };
    for (int i = 0; i < count + STAGES - 1; i++)
        for (int stage = 0; stage < STAGES; stage++)
            if (i - stage >= 0 && i - stage < count) list_stage(listing, units[i - stage], stage);
}
