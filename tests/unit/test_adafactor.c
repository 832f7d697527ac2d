/*
 * Adafactor on matrices, stacks of matrices and vectors against PyTorch in f64
 * (tests/parity/adafactor.txt, by make_adafactor_numbers.py): 50 steps, in one unit that some ranks
 * cut anywhere. Here the ranks take turns, and what they exchange is copied.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "fsdp/units.h"
#include "kernels/kernels.h"
#include "runtime/factor_step.h"
#include "runtime/step_args.h"
#include "tests/testing.h"

enum { STEPS = 50, SHAPES = 6, MOST = 8, VALUES = 12 * 20 + 20 * 12 + 24 + 3 * 2 * 5 * 4 + 9 + 6 };

static struct parameter parameters[SHAPES] = {
    {.type = {.dim_count = 2, .dims = {12, 20}}, .trainable = true, .tied_to = -1},
    {.type = {.dim_count = 2, .dims = {20, 12}}, .trainable = true, .tied_to = -1},
    {.type = {.dim_count = 1, .dims = {24}}, .trainable = true, .tied_to = -1},
    {.type = {.dim_count = 4, .dims = {3, 2, 5, 4}}, .trainable = true, .tied_to = -1},
    {.type = {.dim_count = 2, .dims = {1, 9}}, .trainable = true, .tied_to = -1},
    {.type = {.dim_count = 3, .dims = {6, 1, 1}}, .trainable = true, .tied_to = -1}};

/* One rank of a plan with one unit. */
struct rank {
    struct plan plan;
    struct factor_work work;
    float *param, *values, *room, *state;
};

struct group {
    struct model model;
    struct unit unit;
    struct unit_set units;
    struct rank ranks[MOST];
    int world;
};

static int64_t count_of(int parameter)
{
    return tensor_element_count(&parameters[parameter].type);
}

static void open_group(struct group *group, int world)
{
    static const float stats[PLAN_STATS_COUNT] = {[PLAN_STAT_TARGETS] = 1, [PLAN_STAT_COUNTED] = 2};
    *group = (struct group){.model = {.parameters = parameters, .parameter_count = SHAPES},
                            .unit = {.shard_world = world},
                            .world = world};
    int *numbers = mem_alloc_array(SHAPES, sizeof *numbers);
    for (int p = 0; p < SHAPES; p++) numbers[p] = p;
    const struct flat_storage storage = {.shape = SHAPE_FACTORS};
    flat_parameter_init(&group->unit.flat, &group->model, numbers, SHAPES, world, &storage);
    group->units = (struct unit_set){.units = &group->unit, .unit_count = 1, .shard_world = world};
    for (int r = 0; r < world; r++) {
        struct rank *rank = &group->ranks[r];
        rank->plan =
            (struct plan){.options = {.rank = r, .world = world, .optimizer = OPTIMIZER_ADAFACTOR},
                          .model = &group->model,
                          .units = &group->units};
        struct plan_factor *factors;
        struct plan_factor_room room;
        plan_find_factors(&rank->plan, 0, &factors, &room);
        free(factors);
        size_t shard = (size_t)group->unit.flat.shard, words = (size_t)group->unit.flat.slots.words;
        rank->param = mem_alloc_array(shard, sizeof(float));
        rank->values = mem_alloc_array(shard, sizeof(float));
        rank->state = mem_alloc_array(words, sizeof(float));
        rank->room = mem_alloc_array((size_t)room.end, sizeof(float));
        rank->work = (struct factor_work){.plan = &rank->plan,
                                          .values = rank->values,
                                          .room = rank->room,
                                          .state = rank->state,
                                          .param = rank->param,
                                          .stats = stats};
        factor_work_init(&rank->work);
    }
}

static void close_group(struct group *group)
{
    for (int r = 0; r < group->world; r++) {
        factor_work_deinit(&group->ranks[r].work);
        free(group->ranks[r].param);
        free(group->ranks[r].values);
        free(group->ranks[r].room);
        free(group->ranks[r].state);
    }
    flat_parameter_deinit(&group->unit.flat);
}

static void run(struct group *group, enum instruction_kind kind)
{
    for (int r = 0; r < group->world; r++) {
        group->ranks[r].work.kind = kind;
        status_t status = factor_step_run(&group->ranks[r].work);
        ck_assert_msg(status == NULL, "%s", status_message(status));
    }
}

static void exchange(struct group *group, bool collects)
{
    int count;
    struct comm_piece *pieces = factor_step_pieces(&group->ranks[0].plan, 0, collects, &count);
    for (int i = 0; i < count; i++)
        memcpy(group->ranks[pieces[i].to].room + pieces[i].target,
               group->ranks[pieces[i].from].room + pieces[i].source,
               (size_t)pieces[i].count * sizeof(float));
    free(pieces);
}

static void gather(struct group *group)
{
    for (int from = 0; from < group->world; from++) {
        size_t at = factor_totals(&group->ranks[0].plan, 0, from);
        for (int to = 0; to < group->world; to++)
            memcpy(group->ranks[to].room + at, group->ranks[from].room + at,
                   (size_t)(4 * SHAPES) * sizeof(float));
    }
}

/* Values of all parameters to the ranks' parts, or from them. */
static void share(struct group *group, bool param, bool out, float *all)
{
    const struct flat_parameter *flat = &group->unit.flat;
    for (int p = 0; p < SHAPES; all += count_of(p++))
        for (int64_t i = 0; i < count_of(p); i++) {
            int64_t at = flat->offsets[p] + i;
            struct rank *rank = &group->ranks[at / flat->shard];
            float *held = (param ? rank->param : rank->values) + at % flat->shard;
            if (out) all[i] = *held;
            else *held = all[i];
        }
}

static float fraction(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((float)(*state >> 40) - (1 << 23)) / (1 << 23);
}

static void train(struct group *group, struct optimizer_step step, float *param)
{
    float target[VALUES], grad[VALUES];
    uint64_t state = 77;
    for (int i = 0; i < VALUES; i++) param[i] = fraction(&state);
    for (int i = 0; i < VALUES; i++) target[i] = fraction(&state);
    share(group, true, false, param);
    for (; step.taken < STEPS; step.taken++) {
        for (int i = 0; i < VALUES; i++) /* halved by the statistics */
            grad[i] = 2 * ((param[i] - target[i]) * 0.25F + fraction(&state) * 0.125F);
        share(group, false, false, grad);
        for (int r = 0; r < group->world; r++) group->ranks[r].work.step = step;
        run(group, INSTRUCTION_SQUARES);
        exchange(group, true);
        run(group, INSTRUCTION_FACTOR);
        exchange(group, false);
        run(group, INSTRUCTION_UPDATE);
        gather(group);
        run(group, INSTRUCTION_SCALE);
        const struct muon_args args = step_muon_args(&step, 1);
        for (int r = 0; r < group->world; r++)
            kernel_muon((size_t)group->unit.flat.shard, group->ranks[r].param,
                        group->ranks[r].values, NULL, &args);
        share(group, true, true, param);
    }
}

static double distance(const char *line, const float *found)
{
    double apart = 0, size = 0;
    for (int i = 0; i < VALUES; i++) {
        char *end;
        double expected = strtod(line, &end);
        ck_assert_ptr_ne(line, end);
        line = end;
        apart += (found[i] - expected) * (found[i] - expected);
        size += expected * expected;
    }
    return sqrt(apart / size);
}

/* Ours is in f32, and sums of squares are in f64: 1e-6 from exact, whatever the world. Where shards
 * cut a matrix changes its sums by at most their elements times 2^-53, and so an f32 at most in its
 * last bit, in one sum of 2^29 / elements or so: here in none. */
TEST(fifty_steps_are_those_of_torch)
{
    const char *root = getenv("srcdir");
    AUTO_FREE char *path = file_path_join(root != NULL ? root : ".", "tests/parity/adafactor.txt");
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    static const int worlds[] = {1, 2, 3, 5, 8};
    int compared = 0;
    for (const char *line = strstr(buf_text(&text), "case "); line != NULL;
         line = strstr(line + 1, "case "), compared++) {
        struct optimizer_step step = {.kind = OPTIMIZER_ADAFACTOR, .eps1 = ldexp(1, -23)};
        ck_assert_int_eq(sscanf(line, "case %lf %lf %lf %lf %lf", &step.lr, &step.beta2_decay,
                                &step.eps2, &step.clip, &step.weight_decay),
                         5);
        const char *exact = strstr(line, "exact ") + strlen("exact ");
        float found[COUNT_OF(worlds)][VALUES];
        for (size_t w = 0; w < COUNT_OF(worlds); w++) {
            struct group group;
            open_group(&group, worlds[w]);
            train(&group, step, found[w]);
            double apart = distance(exact, found[w]);
            ck_assert_msg(apart < 1e-6, "%d ranks: %g from exact", worlds[w], apart);
            ck_assert_msg(memcmp(found[w], found[0], sizeof found[0]) == 0,
                          "%d ranks have other bits than one", worlds[w]);
            close_group(&group);
        }
    }
    ck_assert_int_eq(compared, 2);
}

/* Rows and columns only, in one word each, in the part that has the matrix's first element. */
TEST(state_is_rows_and_columns)
{
    struct group group;
    static const int64_t words[SHAPES] = {32, 32, 24, 6 * (5 + 4), 10, 12};
    for (int world = 1; world <= MOST; world++) {
        open_group(&group, world);
        const struct flat_parameter *flat = &group.unit.flat;
        struct slot_layout plain = slot_layout_of(&flat->slots, 1);
        ck_assert_int_eq(plain.words, flat->shard);
        int64_t sum = 0;
        for (int p = 0; p < SHAPES; p++) {
            int64_t begin = slot_at(&flat->slots, flat->offsets[p]);
            ck_assert_int_eq(factor_words(&parameters[p].type), words[p]);
            ck_assert_int_eq(slot_words(&flat->slots, flat->offsets[p], count_of(p)), words[p]);
            ck_assert_int_eq(slot_at(&flat->slots, flat->offsets[p] + count_of(p)),
                             begin + words[p]);
            for (int64_t w = 0; w < words[p]; w++) {
                int part = slot_part_of(&flat->slots, begin + w);
                ck_assert_int_le(slot_part(&flat->slots, part), begin + w);
                ck_assert_int_lt(begin + w, slot_part(&flat->slots, part + 1));
                if (p != 2) ck_assert_int_eq(part, flat->offsets[p] / flat->shard);
            }
            sum += words[p];
        }
        int64_t gaps = flat->padded - flat->parameter_elements;
        ck_assert_int_eq(slot_part(&flat->slots, world), sum + gaps);
        close_group(&group);
    }
}
