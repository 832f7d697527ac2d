/*
 * Training in bf16 on 1, 2, 3 and 4 ranks: close to f32 by a stated bound; every strategy, policy
 * and prefetch gives the same bits, and so do a second run and both communicators; gathers and
 * activations take half.
 *
 * The bound. bf16 has 8 significant bits: a value is rounded by at most 2^-9 of itself. A gradient
 * passes through a few roundings (weights, activations, incoming gradients: about ten for these
 * networks), mostly of different signs, so it is off by about sqrt(10) * 2^-9, that is 0.6 percent,
 * of the size of the summands, seldom more than 10 * 2^-9, 2 percent. Where a value is so near to 0
 * that rounding moves it to the other side of a ReLU, a whole term appears or disappears, which is
 * visible in layers of eight units. The tests compare how far training moved the parameters, in the
 * 2-norm: the difference is at most BOUND = 0.1 of that distance, as later steps start from
 * slightly other parameters. Losses, sums over the batch of much averaged values, agree to 0.02.
 * With only bf16 on the wire each part of a gradient is rounded once, by at most 2^-9 of itself:
 * REDUCE_BOUND is four times that, for parts that nearly cancel.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "engine.h"
#include "tests/testing.h"

#define BOUND 0.1
#define REDUCE_BOUND 0x1p-7
#define LOSS_BOUND 0.02

#define NET(INPUT, CLASSES, MODULES, FORWARD, MORE)                                                \
    "name: T\ninput: [" INPUT "]\nclasses: " CLASSES "\nmodules: {" MODULES                        \
    "}\nforward: [" FORWARD "]\nloss: cross_entropy(output, target, reduction=\"sum\")\n" MORE

static const struct net {
    const char *name, *text; /* no text: the tutorial's network */
    uint64_t min_num_params;
} nets[] = {
    {"odd sizes",
     NET("7", "5", "a: 'Linear(7, 13)', b: 'Linear(13, 11)', c: 'Linear(11, 5)'",
         "'x = relu(a(x))', 'x = relu(b(x))', 'output = c(x)'", ""),
     100},
    {"a module used twice, and sums",
     NET("9", "4", "a: 'Linear(9, 9)', b: 'Linear(9, 9)', c: 'Linear(9, 4)'",
         "'x = relu(a(x))', 'y = relu(b(x))', 'x = x + a(y)', 'output = c(x) + c(y)'", ""),
     50},
    {"a tied and a frozen parameter",
     NET("8", "8", "a: 'Linear(8, 8)', b: 'Linear(8, 8)', c: 'Linear(8, 8, bias=False)'",
         "'x = relu(a(x))', 'x = relu(b(x))', 'output = c(x)'",
         "tie: {c.weight: a.weight}\nfreeze: [b.bias]\n"),
     60},
    {"parameters of the model itself, and moves",
     NET("6, 4", "5",
         "first: 'Parameter(1, 1, 4)', shift: Parameter(4), a: 'Linear(4, 12)', b: 'Linear(12, 5)'",
         "'y = cat([first + shift, x], dim=1) + shift', 'y = relu(a(y))', "
         "'output = b(select(y, 1, 0) + mean(transpose(narrow(y, 1, 2, 4), 1, 2), 2))'",
         ""),
     30},
    {"the tutorial's network", NULL, 20000},
};
enum { NET_COUNT = COUNT_OF(nets) };

static const int worlds[] = {1, 2, 3, 4};
enum { WORLD_COUNT = COUNT_OF(worlds) };

static struct engine_job job_of(int net)
{
    return (struct engine_job){.model = nets[net].text != NULL ? nets[net].text : engine_mnist(),
                               .policy = {.kind = WRAP_SIZE,
                                          .min_num_params = nets[net].min_num_params},
                               .strategy = STRATEGY_FULL_SHARD,
                               .prefetch = PREFETCH_PRE,
                               .optimizer = {.kind = OPTIMIZER_SGD, .lr = 0.005, .momentum = 0.9},
                               .global_batch = 24,
                               .steps = nets[net].text != NULL ? 8 : 3,
                               .poison = true};
}

static void check_same_bits(const struct engine_outcome *a, const struct engine_outcome *b,
                            const char *what)
{
    size_t bytes = (size_t)a->parameter_elements * sizeof(float);
    ck_assert_msg(memcmp(a->parameters, b->parameters, bytes) == 0, "%s: parameters differ", what);
    ck_assert_msg(memcmp(a->loss, b->loss, sizeof a->loss) == 0, "%s: losses differ", what);
    ck_assert_msg(memcmp(a->evaluated, b->evaluated, sizeof a->evaluated) == 0,
                  "%s: evaluations differ", what);
}

/* The distance of two runs from the same start, relative to the distance that training covered. */
static void check_close(const struct engine_outcome *start, const struct engine_outcome *full,
                        const struct engine_outcome *low, double bound, const char *what)
{
    double way = 0, difference = 0;
    for (int64_t i = 0; i < full->parameter_elements; i++) {
        double moved = (double)full->parameters[i] - (double)start->parameters[i];
        double off = (double)low->parameters[i] - (double)full->parameters[i];
        way += moved * moved;
        difference += off * off;
    }
    ck_assert_msg(way > 0 && isfinite(difference), "%s: nothing moved", what);
    double part = sqrt(difference / way);
    ck_assert_msg(part > 0 && part <= bound, "%s: parameters are off by %g of the way", what, part);
    for (int i = 0; i < ENGINE_MAX_STEPS; i++) {
        double expected = (double)full->loss[i], found = (double)low->loss[i];
        ck_assert_msg(fabs(expected - found) <= LOSS_BOUND * expected, "%s: loss %g, not %g", what,
                      found, expected);
    }
}

TESTS_BELOW(.timeout = 300);

LOOP_TEST(close_to_f32, 0, NET_COUNT * WORLD_COUNT, .sanitized_every = 3)
{
    int net = _i / WORLD_COUNT, world = worlds[_i % WORLD_COUNT];
    struct engine_job job = job_of(net);
    struct engine_outcome *full = engine_train(&job, GROUP_LOCAL, world);
    struct engine_job none = job;
    none.optimizer.lr = 0;
    struct engine_outcome *start = engine_train(&none, GROUP_LOCAL, world);

    struct engine_outcome *lows[2] = {NULL};
    for (int reduce = 0; reduce < 2; reduce++) {
        struct engine_job low = job;
        low.param_dtype = DTYPE_BF16;
        low.reduce_dtype = reduce ? DTYPE_BF16 : DTYPE_F32;
        for (int variant = 0; variant < 5; variant++) {
            static const enum prefetch prefetches[] = {PREFETCH_PRE, PREFETCH_POST, PREFETCH_NONE,
                                                       PREFETCH_NONE, PREFETCH_PRE};
            static const enum strategy strategies[] = {STRATEGY_FULL_SHARD, STRATEGY_FULL_SHARD,
                                                       STRATEGY_FULL_SHARD, STRATEGY_NO_SHARD,
                                                       STRATEGY_SHARD_GRAD_OP};
            low.prefetch = prefetches[variant];
            low.strategy = strategies[variant];
            low.policy.kind = variant == 1 ? WRAP_NONE : WRAP_SIZE;
            struct engine_outcome *outcome = engine_train(&low, GROUP_LOCAL, world);
            ck_assert_str_eq(outcome->collectives, world > 1 ? outcome->planned : "");
            for (int r = 0; r < world; r++)
                ck_assert_uint_eq(outcome->sent_bytes[r], outcome->planned_bytes[r]);
            if (lows[reduce] == NULL) {
                lows[reduce] = outcome;
                check_close(start, full, outcome, BOUND, nets[net].name);
                continue;
            }
            check_same_bits(lows[reduce], outcome, nets[net].name);
            engine_outcome_free(outcome);
        }
    }
    /* the wire's type matters only if there is a wire */
    bool same = memcmp(lows[0]->parameters, lows[1]->parameters,
                       (size_t)full->parameter_elements * sizeof(float)) == 0;
    ck_assert(same == (world == 1));
    engine_outcome_free(lows[0]);
    engine_outcome_free(lows[1]);
    engine_outcome_free(start);
    engine_outcome_free(full);
}

/* f32 arithmetic with only bf16 on the wire. */
LOOP_TEST(reduce_alone, 0, 2 * NET_COUNT, .sanitized_every = 3)
{
    struct engine_job job = job_of(_i % NET_COUNT);
    int world = _i < NET_COUNT ? 2 : 3;
    struct engine_outcome *full = engine_train(&job, GROUP_LOCAL, world);
    struct engine_job none = job;
    none.optimizer.lr = 0;
    struct engine_outcome *start = engine_train(&none, GROUP_LOCAL, world);
    job.reduce_dtype = DTYPE_BF16;
    struct engine_outcome *low = engine_train(&job, GROUP_LOCAL, world);
    check_close(start, full, low, REDUCE_BOUND, nets[_i % NET_COUNT].name);
    ck_assert_uint_lt(low->planned_bytes[0], full->planned_bytes[0]);
    job.strategy = STRATEGY_NO_SHARD;
    struct engine_outcome *replicated = engine_train(&job, GROUP_LOCAL, world);
    check_same_bits(low, replicated, "no_shard");
    engine_outcome_free(replicated);
    engine_outcome_free(low);
    engine_outcome_free(start);
    engine_outcome_free(full);
}

/* In groups of two out of four, and out of eight: a group's f32 sum is rounded once more when it is
 * sent to the other groups, which adds one rounding of at most 2^-9. */
LOOP_TEST(reduce_in_groups, 0, 2 * NET_COUNT, .sanitized_every = 3)
{
    struct engine_job job = job_of(_i % NET_COUNT);
    int world = _i < NET_COUNT ? 4 : 8;
    struct engine_outcome *full = engine_train(&job, GROUP_LOCAL, world);
    struct engine_job none = job;
    none.optimizer.lr = 0;
    struct engine_outcome *start = engine_train(&none, GROUP_LOCAL, world);
    job.strategy = STRATEGY_HYBRID_SHARD;
    job.shard_size = 2;
    struct engine_outcome *hybrid = engine_train(&job, GROUP_LOCAL, world);
    job.reduce_dtype = DTYPE_BF16;
    struct engine_outcome *low = engine_train(&job, GROUP_LOCAL, world);
    check_close(start, full, low, 2 * REDUCE_BOUND, nets[_i % NET_COUNT].name);
    ck_assert_uint_lt(low->planned_bytes[0], hybrid->planned_bytes[0]);
    ck_assert_str_eq(low->collectives, hybrid->collectives);
    struct engine_outcome *again = engine_train(&job, GROUP_LOCAL, world);
    check_same_bits(low, again, "two runs");
    engine_outcome_free(again);
    engine_outcome_free(low);
    engine_outcome_free(hybrid);
    engine_outcome_free(start);
    engine_outcome_free(full);
}

/* The types in which forward's linear ops compute: "a:bf16 b:f32 c:bf16", from the plan's graph. */
static char op_dtypes[128];

static void note_dtypes(struct plan *plan)
{
    const struct graph *graph = plan->train.graph;
    struct buf text = {0};
    for (int o = 0; o < graph->forward_op_count; o++)
        if (graph->ops[o].kind == OP_LINEAR)
            buf_printf(&text, "%s:%s ", graph->ops[o].name,
                       dtype_name(graph->values[graph->ops[o].outputs[0]].type.dtype));
    if (plan->options.rank == 0) snprintf(op_dtypes, sizeof op_dtypes, "%s", buf_text(&text));
    buf_deinit(&text);
}

/* One unit computes, gathers and reduces in its own type: sharded or not, its ops do so, and a
 * gather takes that type's bytes. */
LOOP_TEST(units_of_their_own, 0, 2 * WORLD_COUNT, .sanitized_every = 3)
{
    static const char *const b[] = {"b"}, *const rest[] = {"a", "c"};
    int world = worlds[_i % WORLD_COUNT];
    bool low = _i / WORLD_COUNT == 0; /* the job in bf16, b in f32; or vice versa */
    struct wrap_unit_spec specs[] = {{.modules = b, .module_count = 1},
                                     {.modules = rest, .module_count = 2}};
    struct engine_job job = job_of(0);
    job.policy = (struct wrap_policy){.kind = WRAP_UNITS, .units = specs, .unit_count = 2};
    struct engine_outcome *full = engine_train(&job, GROUP_LOCAL, world);
    struct engine_job none = job;
    none.optimizer.lr = 0;
    struct engine_outcome *start = engine_train(&none, GROUP_LOCAL, world);

    job.tamper = note_dtypes;
    if (low) job.param_dtype = job.reduce_dtype = DTYPE_BF16;
    struct engine_outcome *alike = engine_train(&job, GROUP_LOCAL, world);
    ck_assert_str_eq(op_dtypes, low ? "a:bf16 b:bf16 c:bf16 " : "a:f32 b:f32 c:f32 ");
    specs[0].param_dtype = specs[0].reduce_dtype = low ? UNIT_DTYPE_F32 : UNIT_DTYPE_BF16;
    struct engine_outcome *mixed = engine_train(&job, GROUP_LOCAL, world);
    ck_assert_str_eq(op_dtypes, low ? "a:bf16 b:f32 c:bf16 " : "a:f32 b:bf16 c:f32 ");
    check_close(start, full, mixed, BOUND, "one unit apart");
    ck_assert(memcmp(alike->parameters, mixed->parameters,
                     (size_t)full->parameter_elements * sizeof(float)) != 0);
    for (int r = 0; r < world; r++) {
        ck_assert_uint_eq(mixed->sent_bytes[r], mixed->planned_bytes[r]);
        if (world == 1) continue;
        if (low) ck_assert_uint_gt(mixed->sent_bytes[r], alike->sent_bytes[r]);
        else ck_assert_uint_lt(mixed->sent_bytes[r], alike->sent_bytes[r]);
    }
    ck_assert(alike->hash[0] != mixed->hash[0]);

    /* without gathers the unit computes in the same types, to the same bits */
    job.strategy = STRATEGY_NO_SHARD;
    struct engine_outcome *replicated = engine_train(&job, GROUP_LOCAL, world);
    check_same_bits(mixed, replicated, "no_shard");
    job.strategy = STRATEGY_FULL_SHARD;
    job.reshard = RESHARD_GROUP;
    job.reshard_ranks = world % 2 == 0 ? 2 : world;
    struct engine_outcome *resharded = engine_train(&job, GROUP_LOCAL, world);
    check_same_bits(mixed, resharded, "resharded");
    engine_outcome_free(resharded);
    engine_outcome_free(replicated);
    engine_outcome_free(mixed);
    engine_outcome_free(alike);
    engine_outcome_free(start);
    engine_outcome_free(full);
}

/* Processes over TCP: the same bits, run after run, with and without checkpointing. */
LOOP_TEST(gloo_is_local, 0, 4)
{
    struct engine_job job = job_of(_i / 2 == 0 ? 1 : 3);
    int world = _i / 2 == 0 ? 3 : 2;
    job.strategy = _i % 2 ? STRATEGY_NO_SHARD : STRATEGY_FULL_SHARD;
    job.param_dtype = job.reduce_dtype = DTYPE_BF16;
    job.dropout = true;
    struct engine_outcome *processes = engine_train(&job, GROUP_GLOO, world);
    struct engine_outcome *again = engine_train(&job, GROUP_GLOO, world);
    struct engine_outcome *threads = engine_train(&job, GROUP_LOCAL, world);
    check_same_bits(processes, again, "two runs");
    check_same_bits(processes, threads, "gloo and local");
    job.checkpoint = (const char *const[]){"*"};
    job.checkpoint_count = 1;
    struct engine_outcome *checkpointed = engine_train(&job, GROUP_LOCAL, world);
    check_same_bits(threads, checkpointed, "checkpointed");
    engine_outcome_free(checkpointed);
    engine_outcome_free(processes);
    engine_outcome_free(again);
    engine_outcome_free(threads);
}

/* Gathered units and activations take half the bytes, so a step sends and needs less. With this
 * many layers activations dominate, even on a processor without units for bf16, where one layer at
 * a time has additional f32 operands. */
TEST(less_memory_and_traffic)
{
    struct engine_job job = job_of(3);
    job.model = NET("64", "8", "l: '64 * Linear(64, 64)', o: 'Linear(64, 8)'",
                    "{'for m in l': 'x = relu(m(x))'}, "
                    "'output = o(x)'",
                    "");
    job.global_batch = 2 * 4096;
    job.only_plan = true;
    struct engine_outcome *full = engine_train(&job, GROUP_LOCAL, 2);
    job.param_dtype = job.reduce_dtype = DTYPE_BF16;
    struct engine_outcome *low = engine_train(&job, GROUP_LOCAL, 2);
    ck_assert_msg((double)low->measured_peak[0] < 0.6 * (double)full->measured_peak[0],
                  "%llu bytes in bf16, %llu in f32", (unsigned long long)low->measured_peak[0],
                  (unsigned long long)full->measured_peak[0]);
    ck_assert_uint_ne(full->hash[0], low->hash[0]);
    engine_outcome_free(low);
    engine_outcome_free(full);

    job.model = engine_mnist();
    job.global_batch = 24;
    job.only_plan = false;
    job.steps = 1;
    low = engine_train(&job, GROUP_LOCAL, 2);
    job.param_dtype = job.reduce_dtype = DTYPE_F32;
    full = engine_train(&job, GROUP_LOCAL, 2);
    uint64_t stats = PLAN_STATS_COUNT * sizeof(float);
    ck_assert_uint_eq(2 * (low->planned_bytes[0] - stats), full->planned_bytes[0] - stats);
    engine_outcome_free(low);
    engine_outcome_free(full);
}
