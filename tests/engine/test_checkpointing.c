/*
 * Activation checkpointing on 1, 2 and 3 ranks: the same bits as without it, for any checkpointed
 * modules and any division of the model into units, with freed memory full of NaNs; and less
 * memory, by as much as a deep network's activations predict.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine.h"
#include "tests/testing.h"

/* Eight blocks of two layers each, wide in the middle, with dropout. */
static const char deep[] =
    "name: Deep\ninput: [24]\nclasses: 6\n"
    "blocks:\n"
    "  Block(n):\n"
    "    modules: {up: 'Linear(n, 5 * n)', drop: Dropout(0.25), down: 'Linear(5 * n, n)'}\n"
    "    forward: ['y = drop(relu(up(x)))', 'output = relu(down(y)) + x']\n"
    "modules: {layers: 8 * Block(24), out: 'Linear(24, 6)'}\n"
    "forward:\n"
    "  - for layer in layers:\n"
    "      - x = layer(x)\n"
    "  - output = out(x)\n"
    "loss: cross_entropy(output, target, reduction=\"sum\")\n";

/* A module used twice, inside and outside of the checkpointed part, tied and frozen parameters. */
static const char shared[] = "name: Shared\ninput: [8]\nclasses: 8\n"
                             "blocks:\n"
                             "  Pair():\n"
                             "    modules: {a: 'Linear(8, 8)', b: 'Linear(8, 8)'}\n"
                             "    forward: ['output = relu(b(relu(a(x))))']\n"
                             "modules: {p: Pair(), q: Pair(), c: 'Linear(8, 8, bias=False)'}\n"
                             "forward: ['y = p(x)', 'x = q(p(y)) + y', 'output = c(x)']\n"
                             "loss: cross_entropy(output, target, reduction=\"sum\")\n"
                             "tie: {c.weight: p.a.weight}\nfreeze: [q.b.bias]\n";

/* GELU, which forms one op with the layer before it unless the recomputed part omits that layer. */
static const char gelu[] =
    "name: Gelu\ninput: [12]\nclasses: 6\n"
    "blocks:\n"
    "  Block(n):\n"
    "    modules: {up: 'Linear(n, 4 * n)', act: \"GELU('tanh')\", down: 'Linear(4 * n, n)'}\n"
    "    forward: ['output = down(act(up(x))) + x']\n"
    "modules: {layers: 3 * Block(12), out: 'Linear(12, 6)'}\n"
    "forward:\n"
    "  - for layer in layers:\n"
    "      - x = layer(x)\n"
    "  - output = out(x)\n"
    "loss: cross_entropy(output, target, reduction=\"sum\")\n";

/* Parameters of blocks themselves, used once and twice, and everything that moves elements. */
static const char moves[] =
    "name: Moves\ninput: [6, 4]\nclasses: 5\n"
    "blocks:\n"
    "  Block(n):\n"
    "    modules: {up: 'Linear(n, 2 * n)', first: 'Parameter(1, 1, n)', shift: Parameter(n)}\n"
    "    forward:\n"
    "      - y = cat([first + shift, narrow(x, 1, 1, 6)], dim=1) + shift\n"
    "      - y = relu(up(y))\n"
    "      - output = x + chunk(y, 2, dim=-1)[0] + flatten(unflatten(chunk(y, 2, dim=-1)[1], 2, "
    "(2, 2)), 2)\n"
    "modules: {first: 'Parameter(1, 1, 4)', layers: 3 * Block(4), out: 'Linear(11, 5)'}\n"
    "forward:\n"
    "  - y = cat((x, first), dim=1)\n"
    "  - for layer in layers: y = layer(y)\n"
    "  - output = out(cat([mean(y, 1), mean(transpose(y, 1, 2), 1)], dim=1))\n"
    "loss: cross_entropy(output, target, reduction=\"sum\")\n";

/* Norms over groups, and averages. */
static const char groups[] =
    "name: Groups\ninput: [2, 5, 6]\nclasses: 5\n"
    "blocks:\n"
    "  Block(n):\n"
    "    modules: {conv: 'Conv2d(n, n, 3, padding=1)', norm: 'GroupNorm(2, n)'}\n"
    "    forward: ['output = relu(norm(conv(x))) + avg_pool2d(x, 3, 1, 1)']\n"
    "modules: {stem: 'Conv2d(2, 4, 1)', layers: 2 * Block(4), out: 'Linear(8, 5)'}\n"
    "forward:\n"
    "  - y = stem(x)\n"
    "  - for layer in layers: y = layer(y)\n"
    "  - output = out(flatten(adaptive_avg_pool2d(y, (1, 2)), 1))\n"
    "loss: cross_entropy(output, target, reduction=\"sum\")\n";

static const struct net {
    const char *name, *text; /* no text: the tutorial's network */
    const char *globs[3];
    uint64_t min_num_params;
    bool same; /* nothing is recomputed */
} nets[] = {
    {"every block", deep, {"layers.?"}, 1000, false},
    {"every block, one unit", deep, {"layers.*"}, 1000000, false},
    {"some blocks", deep, {"layers.[0-2]", "layers.5.*", "out"}, 1000, false},
    {"the whole list", deep, {"layers"}, 1000, false},
    {"shared modules", shared, {"p", "q"}, 50, false},
    {"leaves", shared, {"*.a"}, 50, true},
    {"blocks with GELU", gelu, {"layers.?"}, 200, false},
    {"GELU alone", gelu, {"*.act"}, 200, false},
    {"the layer before GELU", gelu, {"*.up"}, 200, false},
    {"norms over groups", groups, {"layers.?"}, 100, false},
    {"blocks with parameters", moves, {"layers.?"}, 40, false},
    {"some blocks with parameters", moves, {"layers.[12]"}, 1000000, false},
    {"the tutorial's network", NULL, {"*"}, 20000, false},
};
enum { NET_COUNT = COUNT_OF(nets) };

static const int worlds[] = {1, 2, 3};
enum { WORLD_COUNT = COUNT_OF(worlds) };

static struct engine_job job_of(int net)
{
    return (struct engine_job){.model = nets[net].text != NULL ? nets[net].text : engine_mnist(),
                               .policy = {.kind = nets[net].min_num_params < 1000000 ? WRAP_SIZE
                                                                                     : WRAP_NONE,
                                          .min_num_params = nets[net].min_num_params},
                               .strategy = STRATEGY_FULL_SHARD,
                               .prefetch = PREFETCH_PRE,
                               .optimizer = {.kind = OPTIMIZER_SGD, .lr = 0.01, .momentum = 0.9},
                               .global_batch = 24,
                               .steps = 4,
                               .dropout = true,
                               .poison = true};
}

static void checkpoint(struct engine_job *job, int net)
{
    job->checkpoint = nets[net].globs;
    while (job->checkpoint_count < 3 && job->checkpoint[job->checkpoint_count] != NULL)
        job->checkpoint_count++;
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(same_bits, 0, NET_COUNT *WORLD_COUNT, .sanitized_every = 4)
{
    int net = _i / WORLD_COUNT, world = worlds[_i % WORLD_COUNT];
    struct engine_job job = job_of(net);
    struct engine_outcome *plain = engine_train(&job, GROUP_LOCAL, world);
    checkpoint(&job, net);
    for (int variant = 0; variant < 6; variant++) {
        static const enum prefetch prefetches[] = {PREFETCH_PRE,  PREFETCH_POST, PREFETCH_NONE,
                                                   PREFETCH_NONE, PREFETCH_PRE,  PREFETCH_NONE};
        job.prefetch = prefetches[variant];
        job.strategy = variant == 3 || variant == 5 ? STRATEGY_NO_SHARD : STRATEGY_FULL_SHARD;
        job.recompute = variant >= 4 ? RECOMPUTE_CHEAP : RECOMPUTE_ALL;
        struct engine_outcome *outcome = engine_train(&job, GROUP_LOCAL, world);
        ck_assert_mem_eq(plain->parameters, outcome->parameters,
                         (size_t)plain->parameter_elements * sizeof(float));
        ck_assert_mem_eq(plain->loss, outcome->loss, sizeof plain->loss);
        ck_assert_mem_eq(plain->evaluated, outcome->evaluated, sizeof plain->evaluated);
        if (variant == 0) ck_assert((plain->hash[0] == outcome->hash[0]) == nets[net].same);
        ck_assert_str_eq(outcome->collectives, world > 1 ? outcome->planned : "");
        for (int r = 0; r < world; r++)
            ck_assert_uint_eq(outcome->sent_bytes[r], outcome->planned_bytes[r]);
        engine_outcome_free(outcome);
    }
    engine_outcome_free(plain);
}

/*
 * The batch is so large that activations dominate. A block keeps 5n values per row of up, as many
 * of drop (in place), n of down and n of the sum; checkpointed, only the n inputs. So eight blocks
 * keep 8 * 7 n without checkpointing, and 8 n plus one block's 7 n with it, and need room for
 * gradients in both cases: well below half.
 */
static uint64_t peak_of(const struct engine_job *job)
{
    struct engine_outcome *outcome = engine_train(job, GROUP_LOCAL, 2);
    uint64_t peak = outcome->measured_peak[0];
    engine_outcome_free(outcome);
    return peak;
}

LOOP_TEST(memory_falls, 0, 2)
{
    struct engine_job job = job_of(0);
    job.global_batch = 2 * 4096;
    job.only_plan = true;
    job.strategy = _i == 0 ? STRATEGY_FULL_SHARD : STRATEGY_NO_SHARD;
    uint64_t plain = peak_of(&job);
    checkpoint(&job, 0);
    uint64_t all = peak_of(&job);
    ck_assert_msg(all < plain / 2, "%" PRIu64 " bytes with, %" PRIu64 " without", all, plain);
    job.recompute = RECOMPUTE_CHEAP;
    uint64_t cheap = peak_of(&job);
    ck_assert_msg(all < cheap && cheap < plain,
                  "%" PRIu64 " bytes, not from %" PRIu64 " to %" PRIu64, cheap, all, plain);
}
