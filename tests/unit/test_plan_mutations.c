/*
 * Does plan_validate find errors? The tests damage good plans in one place at a time, in every way
 * that an instruction, a wait, a buffer or a figure can be damaged, and each damaged plan must be
 * refused. Values derived from the list (clocks, first and last touches, the hash) are first
 * recomputed, so that the validator has to find the damage itself.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fsdp/plan_internal.h"
#include "fsdp_fixture.h"
#include "tests/testing.h"

struct subject {
    struct model *model;
    struct unit_set *units;
    struct graph *train, *evaluate;
    struct fixture_lowering lowered[2];
    struct plan *plan;
    uint64_t min_num_params;
    struct plan_options options;
    bool matrices[32];
    int found; /* damages */
};

static const struct {
    uint64_t min_num_params;
    enum strategy strategy;
    int world;
    enum prefetch prefetch;
    int shard_size; /* hybrid_shard */
    int reshard_ranks;
    uint64_t bucket_bytes;
    enum norm_kind norm;
    enum accumulation accumulation;
    bool cpu_offload;
    enum optimizer_kind optimizer;
} subjects[] = {
    {.min_num_params = 100, .strategy = STRATEGY_FULL_SHARD, .world = 2, .prefetch = PREFETCH_PRE},
    {.min_num_params = 20000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 2,
     .prefetch = PREFETCH_PRE},
    {.min_num_params = 0, .strategy = STRATEGY_FULL_SHARD, .world = 3, .prefetch = PREFETCH_PRE},
    {.min_num_params = 1000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 8,
     .prefetch = PREFETCH_POST},
    {.min_num_params = 100, .strategy = STRATEGY_FULL_SHARD, .world = 2, .prefetch = PREFETCH_NONE},
    {.min_num_params = 1000, .strategy = STRATEGY_NO_SHARD, .world = 2, .prefetch = PREFETCH_PRE},
    {.min_num_params = 1000, .strategy = STRATEGY_FULL_SHARD, .world = 1, .prefetch = PREFETCH_PRE},
    {.min_num_params = 1000, .strategy = STRATEGY_NO_SHARD, .world = 1, .prefetch = PREFETCH_PRE},
    {.min_num_params = 100,
     .strategy = STRATEGY_SHARD_GRAD_OP,
     .world = 2,
     .prefetch = PREFETCH_PRE},
    {.min_num_params = 100,
     .strategy = STRATEGY_HYBRID_SHARD,
     .world = 4,
     .prefetch = PREFETCH_PRE,
     .shard_size = 2},
    {.min_num_params = 0,
     .strategy = STRATEGY_NO_SHARD,
     .world = 3,
     .prefetch = PREFETCH_PRE,
     .bucket_bytes = 1000},
    {.min_num_params = 1000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 2,
     .prefetch = PREFETCH_PRE,
     .norm = NORM_2,
     .accumulation = ACCUMULATION_REDUCED},
    {.min_num_params = 1000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 2,
     .prefetch = PREFETCH_PRE,
     .norm = NORM_INF,
     .accumulation = ACCUMULATION_LOCAL},
    {.min_num_params = 0,
     .strategy = STRATEGY_NO_SHARD,
     .world = 2,
     .prefetch = PREFETCH_PRE,
     .norm = NORM_2,
     .accumulation = ACCUMULATION_REDUCED},
    {.min_num_params = 1000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 1,
     .prefetch = PREFETCH_PRE,
     .norm = NORM_2,
     .accumulation = ACCUMULATION_LOCAL},
    {.min_num_params = 100,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 8,
     .prefetch = PREFETCH_PRE,
     .reshard_ranks = 2},
    {.min_num_params = 1000,
     .strategy = STRATEGY_HYBRID_SHARD,
     .world = 8,
     .prefetch = PREFETCH_PRE,
     .shard_size = 4,
     .reshard_ranks = 2,
     .norm = NORM_2,
     .accumulation = ACCUMULATION_REDUCED},
    {.min_num_params = 100,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 2,
     .prefetch = PREFETCH_PRE,
     .cpu_offload = true},
    {.min_num_params = 1000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 1,
     .prefetch = PREFETCH_PRE,
     .norm = NORM_2,
     .cpu_offload = true},
    {.min_num_params = 1000,
     .strategy = STRATEGY_NO_SHARD,
     .world = 2,
     .prefetch = PREFETCH_POST,
     .bucket_bytes = 1000,
     .cpu_offload = true},
    {.min_num_params = 1000,
     .strategy = STRATEGY_HYBRID_SHARD,
     .world = 8,
     .prefetch = PREFETCH_PRE,
     .shard_size = 4,
     .reshard_ranks = 2,
     .norm = NORM_2,
     .accumulation = ACCUMULATION_REDUCED,
     .cpu_offload = true},
    {.min_num_params = 1000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 2,
     .prefetch = PREFETCH_PRE,
     .norm = NORM_INF,
     .accumulation = ACCUMULATION_LOCAL,
     .cpu_offload = true},
    {.min_num_params = 1000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 3,
     .prefetch = PREFETCH_PRE,
     .optimizer = OPTIMIZER_ADAFACTOR},
    {.min_num_params = 1000,
     .strategy = STRATEGY_HYBRID_SHARD,
     .world = 4,
     .prefetch = PREFETCH_PRE,
     .shard_size = 2,
     .norm = NORM_2,
     .accumulation = ACCUMULATION_REDUCED,
     .optimizer = OPTIMIZER_ADAFACTOR},
    {.min_num_params = 1000,
     .strategy = STRATEGY_FULL_SHARD,
     .world = 3,
     .prefetch = PREFETCH_PRE,
     .optimizer = OPTIMIZER_MUON},
};
enum { SUBJECT_COUNT = COUNT_OF(subjects) };

static void subject_init(struct subject *subject, int which)
{
    *subject = (struct subject){.model = fixture_mnist()};
    subject->options = (struct plan_options){.world = subjects[which].world,
                                             .strategy = subjects[which].strategy,
                                             .reshard_ranks = subjects[which].reshard_ranks,
                                             .bucket_bytes = subjects[which].bucket_bytes,
                                             .backward_prefetch = subjects[which].prefetch,
                                             .optimizer_slots = 2,
                                             .norm = subjects[which].norm,
                                             .accumulation = subjects[which].accumulation,
                                             .micro_steps = 3,
                                             .cpu_offload = subjects[which].cpu_offload,
                                             .host_apart = subjects[which].cpu_offload,
                                             .collective_workspace_bytes = 256,
                                             .matrix_workspace_bytes = 512};
    enum optimizer_kind optimizer = subject->options.optimizer = subjects[which].optimizer;
    for (int p = 0; p < subject->model->parameter_count; p++)
        subject->matrices[p] = subject->model->parameters[p].type.dim_count == 2;
    if (optimizer == OPTIMIZER_MUON) subject->options.matrix_of_parameter = subject->matrices;
    if (optimizer == OPTIMIZER_ADAFACTOR) subject->options.optimizer_slots = 1;
    if (subject->options.reshard_ranks > 0) subject->options.reshard = RESHARD_GROUP;
    uint64_t min = subjects[which].min_num_params;
    struct wrap_policy policy = {.kind = min ? WRAP_SIZE : WRAP_NONE, .min_num_params = min};
    if (optimizer != OPTIMIZER_ADADELTA)
        policy.shape = optimizer == OPTIMIZER_MUON ? SHAPE_OTHERS : SHAPE_FACTORS;
    policy.matrices = subject->matrices;
    enum strategy strategy = subjects[which].strategy;
    int shard_world = strategy == STRATEGY_NO_SHARD       ? 1
                      : strategy == STRATEGY_HYBRID_SHARD ? subjects[which].shard_size
                                                          : subject->options.world;
    status_t status = units_build(subject->model, &policy, shard_world, &subject->units);
    ck_assert_ptr_null(status);
    subject->train = fixture_mnist_graph(subject->model, 2, true);
    subject->evaluate = fixture_mnist_graph(subject->model, 2, false);
    struct graph *train = subject->train;
    for (int o = 0; o < train->op_count; o++)
        for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
            int v = train->ops[o].outputs[i];
            if (v >= 0 && train->values[v].kind == VALUE_PARAMETER_GRADIENT &&
                subjects[which].accumulation == ACCUMULATION_LOCAL)
                train->ops[o].accumulate[i] = true;
        }
    fixture_lower(&subject->lowered[0], subject->train, NULL);
    fixture_lower(&subject->lowered[1], subject->evaluate, NULL);
}

static void subject_deinit(struct subject *subject)
{
    for (int k = 0; k < 2; k++) fixture_lowering_deinit(&subject->lowered[k]);
    graph_free(subject->train);
    graph_free(subject->evaluate);
    units_free(subject->units);
    model_free(subject->model);
}

/* A fresh good plan; the programs as [0] and [1]. */
static struct plan *fresh(const struct subject *subject, struct plan_program *programs[2])
{
    struct plan *plan = NULL;
    status_t status =
        plan_build(subject->model, subject->units, subject->train, &subject->lowered[0].lowering,
                   subject->evaluate, &subject->lowered[1].lowering, &subject->options, &plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    programs[0] = &plan->train;
    programs[1] = &plan->evaluate;
    return plan;
}

/* ---- Recomputing derived values ---- */

static void touch(struct plan_program *program, int buffer, int i)
{
    if (buffer < 0 || buffer >= program->buffer_count ||
        program->buffers[buffer].arena != ARENA_WORK)
        return;
    if (program->buffers[buffer].first < 0) program->buffers[buffer].first = i;
    program->buffers[buffer].last = i;
}

static void refresh(struct plan *plan, struct plan_program *program)
{
    int last[LANE_COUNT];
    for (int lane = 0; lane < LANE_COUNT; lane++) last[lane] = -1;
    for (int b = 0; b < program->buffer_count; b++)
        program->buffers[b].first = program->buffers[b].last = -1;
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *it = &program->instructions[i];
        int *clock = &program->clocks[i * LANE_COUNT];
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            clock[lane] =
                last[it->lane] < 0 ? -1 : program->clocks[last[it->lane] * LANE_COUNT + lane];
            for (int k = 0; k < it->wait_count; k++) {
                int known = program->clocks[it->waits[k] * LANE_COUNT + lane];
                if (known > clock[lane]) clock[lane] = known;
            }
        }
        clock[it->lane] = last[it->lane] = i;
        touch(program, it->source, i);
        touch(program, it->target, i);
        touch(program, it->workspace, i);
        if (it->kind != INSTRUCTION_COMPUTE || it->op < 0 || it->op >= program->graph->op_count)
            continue;
        const struct graph_op *op = &program->graph->ops[it->op];
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            if (op->inputs[k] >= 0) touch(program, program->buffer_of_value[op->inputs[k]], i);
        for (int k = 0; k < OP_MAX_OUTPUTS; k++)
            if (op->outputs[k] >= 0) touch(program, program->buffer_of_value[op->outputs[k]], i);
    }
    plan->hash = plan_compute_hash(plan);
}

/* Removes instruction `at` and the waits for it; its waiters do not inherit its waits. */
static void take_out(struct plan_program *program, int at)
{
    program->instruction_count--;
    memmove(&program->instructions[at], &program->instructions[at + 1],
            (program->instruction_count - at) * sizeof *program->instructions);
    for (int i = at; i < program->instruction_count; i++) {
        struct plan_instruction *it = &program->instructions[i];
        int left = 0;
        for (int k = 0; k < it->wait_count; k++)
            if (it->waits[k] != at)
                it->waits[left++] = it->waits[k] > at ? it->waits[k] - 1 : it->waits[k];
        it->wait_count = left;
    }
    if (program->peak_instruction >= at && at > 0) program->peak_instruction--;
}

/* Inserts a copy of instruction `at` right after it. */
static void put_twice(struct plan_program *program, int at)
{
    int count = ++program->instruction_count;
    program->instructions =
        mem_resize_array(program->instructions, count, sizeof *program->instructions);
    program->clocks = mem_resize_array(program->clocks, count, LANE_COUNT * sizeof(int));
    memmove(&program->instructions[at + 1], &program->instructions[at],
            (count - 1 - at) * sizeof *program->instructions);
    for (int i = at + 2; i < count; i++)
        for (int k = 0; k < program->instructions[i].wait_count; k++)
            if (program->instructions[i].waits[k] > at) program->instructions[i].waits[k]++;
}

/* Validates and frees the plan, which must be refused, for one of the validator's own reasons. */
static void expect_refused(struct subject *subject, struct plan *plan, const char *damage, int a,
                           int b)
{
    status_t status = plan_validate(plan);
    if (status == NULL) {
        char *text = plan_dump(plan);
        fputs(text, stdout);
        ck_abort_msg("not found: %s (%d, %d)", damage, a, b);
    }
    ck_assert_int_eq(status_code(status), STATUS_INTERNAL);
    status_free(status);
    plan_free(plan);
    subject->found++;
}

/* ---- Damages ---- */

TESTS_BELOW(.timeout = 120);

LOOP_TEST(missing_and_doubled_instructions, 0, SUBJECT_COUNT, .sanitized_every = 3)
{
    struct subject subject;
    subject_init(&subject, _i);
    struct plan_program *programs[2];
    struct plan *plan = fresh(&subject, programs);
    int counts[] = {plan->train.instruction_count, plan->evaluate.instruction_count};
    plan_free(plan);
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < counts[p]; i++) {
            plan = fresh(&subject, programs);
            take_out(programs[p], i);
            refresh(plan, programs[p]);
            expect_refused(&subject, plan, "missing instruction", p, i);
            plan = fresh(&subject, programs);
            put_twice(programs[p], i);
            refresh(plan, programs[p]);
            expect_refused(&subject, plan, "doubled instruction", p, i);
        }
    }
    ck_assert_int_ge(subject.found, 2 * (counts[0] + counts[1]));
    subject_deinit(&subject);
}

/* With prefetch pre every wait is needed; the other settings also have waits that only delay a
 * gather, which may be omitted, as may uploads of what is gathered then. */
LOOP_TEST(missing_waits, 0, SUBJECT_COUNT)
{
    struct subject subject;
    subject_init(&subject, _i);
    if (subjects[_i].prefetch != PREFETCH_PRE) {
        subject_deinit(&subject);
        return;
    }
    struct plan_program *programs[2];
    for (int p = 0; p < 2; p++) {
        for (int i = 0, k = 0;; k++) {
            struct plan *plan = fresh(&subject, programs);
            struct plan_instruction *instructions = programs[p]->instructions;
            while (i < programs[p]->instruction_count &&
                   (k == instructions[i].wait_count ||
                    (instructions[i].kind == INSTRUCTION_UPLOAD && subject.options.world > 1)))
                i++, k = 0;
            if (i == programs[p]->instruction_count) {
                plan_free(plan);
                break;
            }
            int *waits = instructions[i].waits;
            memmove(&waits[k], &waits[k + 1], (--instructions[i].wait_count - k) * sizeof *waits);
            refresh(plan, programs[p]);
            expect_refused(&subject, plan, "missing wait", i, k);
        }
    }
    ck_assert_int_ge(subject.found, 2);
    subject_deinit(&subject);
}

/* A gather or reduction that waits for the right instruction but precedes it on its own lane, a
 * free before the last use, computation out of order. */
LOOP_TEST(swapped_instructions, 0, SUBJECT_COUNT, .sanitized_every = 3)
{
    struct subject subject;
    subject_init(&subject, _i);
    struct plan_program *programs[2];
    for (int p = 0; p < 2; p++) {
        for (int i = 0;; i++) {
            struct plan *plan = fresh(&subject, programs);
            if (i + 1 >= programs[p]->instruction_count) {
                plan_free(plan);
                break;
            }
            struct plan_instruction *a = &programs[p]->instructions[i], *b = a + 1;
            bool both = a->kind == INSTRUCTION_COMPUTE && b->kind == INSTRUCTION_COMPUTE;
            bool early = a->kind == INSTRUCTION_COMPUTE && b->kind == INSTRUCTION_FREE;
            if (!both && !early) {
                plan_free(plan);
                continue;
            }
            struct plan_instruction swap = *a;
            *a = *b;
            *b = swap;
            for (int k = i + 2; k < programs[p]->instruction_count; k++)
                for (int w = 0; w < programs[p]->instructions[k].wait_count; w++) {
                    int *wait = &programs[p]->instructions[k].waits[w];
                    if (*wait == i || *wait == i + 1) *wait = 2 * i + 1 - *wait;
                }
            refresh(plan, programs[p]);
            expect_refused(&subject, plan, "swapped instructions", p, i);
        }
    }
    ck_assert_int_ge(subject.found, 10);
    subject_deinit(&subject);
}

LOOP_TEST(damaged_instructions, 0, SUBJECT_COUNT, .sanitized_every = 3)
{
    struct subject subject;
    subject_init(&subject, _i);
    struct plan_program *programs[2];
    struct plan *plan = fresh(&subject, programs);
    int count = plan->train.instruction_count;
    plan_free(plan);
    for (int i = 0; i < count; i++) {
        for (int field = 0; field < 16; field++) {
            plan = fresh(&subject, programs);
            struct plan_program *train = programs[0];
            struct plan_instruction *it = &train->instructions[i];
            bool skip = false;
            switch (field) {
            case 0: it->lane = (it->lane + 1) % LANE_COUNT; break;
            case 1: it->unit = it->unit < 0 ? 0 : it->unit - 1; break;
            case 2: it->unit = it->unit < 0 ? 99 : it->unit + 1; break;
            case 3: it->op++; break;
            case 4: it->communicated += 4; break;
            case 5:
                skip = it->kind != INSTRUCTION_COMPUTE;
                it->backward = !it->backward;
                break;
            case 6:
                skip = it->source < 0;
                it->source = -1;
                break;
            case 7:
                skip = it->target < 0;
                it->target = it->target + 1 < train->buffer_count ? it->target + 1 : 0;
                break;
            case 8:
                skip = it->workspace < 0;
                it->workspace = -1;
                break;
            case 9: it->waits[it->wait_count++] = i + 1; break;
            case 10: it->group = (it->group + 1) % (GROUP_RESHARD + 1); break;
            case 11:
                skip = it->lane != LANE_COMM;
                it->count += 4;
                break;
            case 12:
                skip = it->lane != LANE_COMM;
                it->count -= 4;
                break;
            case 13: it->from += 4; break;
            case 14: it->wait_count = LANE_COUNT; break;
            default: it->kind = (it->kind + 1) % (INSTRUCTION_DOWNLOAD_STATS + 1); break;
            }
            if (skip) {
                plan_free(plan);
                continue;
            }
            /* Waits for later instructions, and more of them than there are, have no clock. */
            if (field != 9 && field != 14) refresh(plan, train);
            expect_refused(&subject, plan, "damaged instruction", i, field);
        }
    }
    subject_deinit(&subject);
}

static bool overlap_in_list(const struct plan_buffer *a, const struct plan_buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Buffers moved off their alignment, out of their arena, and onto each other. */
LOOP_TEST(moved_buffers, 0, SUBJECT_COUNT, .sanitized_every = 3)
{
    struct subject subject;
    subject_init(&subject, _i);
    struct plan_program *programs[2];
    struct plan *good = fresh(&subject, programs);
    for (int p = 0; p < 2; p++) {
        const struct plan_program *model = p == 0 ? &good->train : &good->evaluate;
        for (int a = 0; a < model->buffer_count; a++) {
            if (model->buffers[a].bytes == 0) continue;
            for (int how = 0; how < 4; how++) {
                struct plan *plan = fresh(&subject, programs);
                struct plan_buffer *it = &programs[p]->buffers[a];
                if (how == 0) it->offset += 4;
                const uint64_t ends[] = {programs[p]->work_bytes, plan->state_bytes,
                                         plan->host_bytes};
                if (how == 1) it->offset = ends[it->arena];
                if (how == 2) it->arena = (it->arena + 1) % (ARENA_HOST + 1);
                if (how == 3) it->arena = (it->arena + 2) % (ARENA_HOST + 1);
                expect_refused(&subject, plan, "moved buffer", a, how);
            }
            for (int b = 0; b < model->buffer_count; b++) {
                const struct plan_buffer *x = &model->buffers[a], *y = &model->buffers[b];
                if (a == b || x->arena != y->arena || y->bytes == 0 || x->bytes > y->bytes)
                    continue;
                /* A buffer gathered twice is dead in between. */
                bool twice = x->class == BUFFER_GATHERED || y->class == BUFFER_GATHERED;
                /* A gradient that is reduced in buckets lives bucket by bucket. */
                twice = twice || (subject.options.strategy == STRATEGY_NO_SHARD &&
                                  (x->class == BUFFER_GRADIENT || y->class == BUFFER_GRADIENT));
                if (x->arena == ARENA_WORK && (!overlap_in_list(x, y) || twice)) continue;
                struct plan *plan = fresh(&subject, programs);
                programs[p]->buffers[a].offset = y->offset;
                expect_refused(&subject, plan, "buffers on each other", a, b);
            }
        }
    }
    plan_free(good);
    ck_assert_int_ge(subject.found, 100);
    subject_deinit(&subject);
}

/* A gathered buffer placed on one that is alive while it is gathered and used. */
TEST(moved_gathered_buffers)
{
    struct subject subject;
    subject_init(&subject, 1); /* fc1, and the root, gathered once each */
    struct plan_program *programs[2];
    struct plan *good = fresh(&subject, programs);
    for (int a = 0; a < good->train.buffer_count; a++) {
        if (good->train.buffers[a].class != BUFFER_GATHERED) continue;
        for (int b = 0; b < good->train.buffer_count; b++) {
            const struct plan_buffer *x = &good->train.buffers[a], *y = &good->train.buffers[b];
            if (a == b || y->arena != ARENA_WORK || y->bytes == 0 || !overlap_in_list(x, y))
                continue;
            struct plan *plan = fresh(&subject, programs);
            if (x->bytes <= y->bytes) programs[0]->buffers[a].offset = y->offset;
            else programs[0]->buffers[b].offset = x->offset;
            expect_refused(&subject, plan, "gathered buffer", a, b);
        }
    }
    plan_free(good);
    ck_assert_int_ge(subject.found, 20);
    subject_deinit(&subject);
}

LOOP_TEST(damaged_buffers_and_places, 0, SUBJECT_COUNT, .sanitized_every = 3)
{
    struct subject subject;
    subject_init(&subject, _i);
    struct plan_program *programs[2];
    struct plan *good = fresh(&subject, programs);
    for (int b = 0; b < good->train.buffer_count; b++) {
        const struct plan_buffer *it = &good->train.buffers[b];
        bool batch = it->class == BUFFER_BATCH;
        for (int how = 0; how < 5; how++) {
            struct plan *plan = fresh(&subject, programs);
            struct plan_buffer *damaged = &programs[0]->buffers[b];
            bool skip = false;
            if (how == 0) {
                /* The device determines the workspace sizes of ops; the batch may be
                 * evaluation's. */
                skip = it->class == BUFFER_WORKSPACE && subject.options.world == 1;
                damaged->bytes = damaged->bytes / 2;
            }
            if (how == 1) {
                skip = it->arena != ARENA_WORK;
                damaged->first++;
            }
            if (how == 2) damaged->class = (damaged->class + 1) % BUFFER_CLASS_COUNT;
            if (how == 3) {
                skip =
                    it->unit < 0 || it->class == BUFFER_WORKSPACE || subject.units->unit_count == 1;
                damaged->unit = (damaged->unit + 1) % subject.units->unit_count;
            }
            if (how == 4) {
                skip = it->class != BUFFER_OPTIMIZER;
                damaged->slot = 1 - damaged->slot;
            }
            /* Activations and temporaries differ only in the table, whose sums then differ. */
            if (how == 2 && it->class == BUFFER_ACTIVATION) skip = true;
            if (how == 2 && it->class == BUFFER_TEMPORARY) skip = true;
            if (skip) plan_free(plan);
            else expect_refused(&subject, plan, batch ? "damaged batch" : "damaged buffer", b, how);
        }
    }
    for (int v = 0; v < good->train.graph->value_count; v++) {
        for (int how = 0; how < 3; how++) {
            struct plan *plan = fresh(&subject, programs);
            int *buffer = &programs[0]->buffer_of_value[v];
            if (how == 0) *buffer = (*buffer + 1) % programs[0]->buffer_count;
            if (how == 1) *buffer = -1;
            if (how == 2) programs[0]->offset_of_value[v] += UINT64_C(1) << 40;
            expect_refused(&subject, plan, "value elsewhere", v, how);
        }
        enum value_kind kind = good->train.graph->values[v].kind;
        if (kind == VALUE_ACTIVATION || kind == VALUE_GRADIENT) continue;
        struct plan *plan = fresh(&subject, programs);
        programs[0]->offset_of_value[v] += 4;
        expect_refused(&subject, plan, "value beside its place", v, 0);
    }
    plan_free(good);
    subject_deinit(&subject);
}

LOOP_TEST(damaged_figures, 0, SUBJECT_COUNT, .sanitized_every = 3)
{
    struct subject subject;
    subject_init(&subject, _i);
    for (int how = 0; how < 12; how++) {
        struct plan_program *programs[2];
        struct plan *plan = fresh(&subject, programs);
        struct plan_program *train = programs[0];
        bool rehash = true, skip = false;
        switch (how) {
        case 0: train->work_bytes += 64; break;
        case 1: train->work_bytes -= 64; break;
        case 2: plan->state_bytes -= 64; break;
        case 3: plan->peak_bytes++; break;
        case 4:
            plan->hash++;
            rehash = false;
            break;
        case 5: train->live_peak = plan->peak_bytes + 64; break;
        case 6:
            train->class_bytes_at_peak[BUFFER_SHARD] -= 64;
            train->live_peak -= 64 * 1000;
            break;
        case 7: train->class_bytes_at_peak[BUFFER_WORKSPACE] += 64; break;
        case 8: train->peak_instruction = train->instruction_count; break;
        case 9: train->clocks[4 * LANE_COUNT + LANE_COMM]++; break;
        case 10: plan->options.world++; break;
        default: /* conv1 to fc2 are gathered two at a time */
            skip = subjects[_i].min_num_params != 100 || subjects[_i].prefetch != PREFETCH_PRE;
            plan->options.gathered_limit = 1;
            break;
        }
        if (rehash) plan->hash = plan_compute_hash(plan);
        if (skip) plan_free(plan);
        else expect_refused(&subject, plan, "damaged figure", how, 0);
    }
    subject_deinit(&subject);
}
