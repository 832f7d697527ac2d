/*
 * Tiny GPT-2, Llama and BERT on 1, 2, 3 and 4 ranks: under every strategy, also of single units,
 * wrap policy and with activation checkpointing they match one rank on the same batch, and have the
 * same bits as without sharding; arenas full of NaNs, memory as planned (engine_train checks it).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/tiny_models.h"
#include "engine.h"
#include "tests/testing.h"

#define F32_BOUND 1e-5
#define BF16_BOUND 0.2 /* of the distance that training covered, as in test_precision.c */

/* The last ones become units of their own: a head that only backward reads, an embedding, norms. */
static const struct kind {
    const char *block, *checkpoint, *alone[3], *blocks[2];
} kinds[TINY_COUNT] = {
    {"GPT2Block",
     "transformer.h.*",
     {"transformer.wpe", "transformer.ln_f", "transformer.h.1.ln_1"},
     {"transformer.h.0", "transformer.h.1"}},
    {"LlamaDecoderLayer",
     "model.layers.*",
     {"lm_head", "model.embed_tokens", "model.norm"},
     {"model.layers.0", "model.layers.1"}},
    {"BertLayer",
     "*.layer.*",
     {"cls.predictions.transform", "*.LayerNorm", "*.query"},
     {"bert.encoder.layer.0", "bert.encoder.layer.1"}},
};

/* The sharding of each block's unit, whatever the job's strategy. */
enum own { OWN_NONE, OWN_WHOLE, OWN_ALL_RANKS, OWN_KEPT };

static const struct way {
    const char *name;
    enum strategy strategy;
    int shard_size;
    enum wrap_kind wrap;
    enum prefetch prefetch;
    bool checkpoint;
    enum dtype dtype;
} ways[] = {
    {"one unit", STRATEGY_FULL_SHARD, 0, WRAP_NONE, PREFETCH_PRE, false, DTYPE_F32},
    {"a unit per block", STRATEGY_FULL_SHARD, 0, WRAP_TYPE, PREFETCH_PRE, false, DTYPE_F32},
    {"a unit per block, checkpointed", STRATEGY_FULL_SHARD, 0, WRAP_TYPE, PREFETCH_POST, true,
     DTYPE_F32},
    {"units by size", STRATEGY_FULL_SHARD, 0, WRAP_SIZE, PREFETCH_NONE, false, DTYPE_F32},
    {"the head alone", STRATEGY_FULL_SHARD, 0, WRAP_MATCH, PREFETCH_PRE, false, DTYPE_F32},
    {"the head alone, post", STRATEGY_FULL_SHARD, 0, WRAP_MATCH, PREFETCH_POST, true, DTYPE_F32},
    {"the head alone, kept", STRATEGY_SHARD_GRAD_OP, 0, WRAP_MATCH, PREFETCH_NONE, false,
     DTYPE_F32},
    {"the head alone, bf16", STRATEGY_FULL_SHARD, 0, WRAP_MATCH, PREFETCH_PRE, false, DTYPE_BF16},
    {"shard_grad_op", STRATEGY_SHARD_GRAD_OP, 0, WRAP_TYPE, PREFETCH_PRE, false, DTYPE_F32},
    {"no_shard", STRATEGY_NO_SHARD, 0, WRAP_TYPE, PREFETCH_PRE, true, DTYPE_F32},
    {"hybrid_shard", STRATEGY_HYBRID_SHARD, 2, WRAP_TYPE, PREFETCH_PRE, false, DTYPE_F32},
    {"bf16", STRATEGY_FULL_SHARD, 0, WRAP_TYPE, PREFETCH_PRE, false, DTYPE_BF16},
    {"bf16, checkpointed", STRATEGY_NO_SHARD, 0, WRAP_NONE, PREFETCH_PRE, true, DTYPE_BF16},
};

static const struct own_way {
    struct way way;
    enum own own[2];
} own_ways[] = {
    {{"a block whole", STRATEGY_FULL_SHARD, 0, WRAP_UNITS, PREFETCH_PRE, false, DTYPE_F32},
     {OWN_WHOLE, OWN_NONE}},
    {{"a block whole, one kept", STRATEGY_FULL_SHARD, 0, WRAP_UNITS, PREFETCH_POST, true,
      DTYPE_F32},
     {OWN_WHOLE, OWN_KEPT}},
    {{"all but the blocks whole", STRATEGY_NO_SHARD, 0, WRAP_UNITS, PREFETCH_PRE, false, DTYPE_F32},
     {OWN_ALL_RANKS, OWN_ALL_RANKS}},
    {{"all but a block whole", STRATEGY_NO_SHARD, 0, WRAP_UNITS, PREFETCH_NONE, true, DTYPE_F32},
     {OWN_KEPT, OWN_ALL_RANKS}},
    {{"a block on all ranks", STRATEGY_HYBRID_SHARD, 2, WRAP_UNITS, PREFETCH_PRE, false, DTYPE_F32},
     {OWN_ALL_RANKS, OWN_WHOLE}},
    {{"a block whole, bf16", STRATEGY_FULL_SHARD, 0, WRAP_UNITS, PREFETCH_PRE, true, DTYPE_BF16},
     {OWN_NONE, OWN_WHOLE}},
};
enum { WAY_COUNT = COUNT_OF(ways), ALL_WAYS = WAY_COUNT + COUNT_OF(own_ways), STEPS = 8 };

static const int worlds[] = {1, 2, 3, 4};
enum { WORLD_COUNT = COUNT_OF(worlds) };

/* Of the blocks, with their sharding; valid until the next call. */
static struct wrap_policy list_blocks(int which, const enum own *owns, int world)
{
    static struct wrap_unit_spec units[2];
    for (int i = 0; i < 2; i++) {
        enum own own = owns[i];
        units[i] =
            (struct wrap_unit_spec){.modules = &kinds[which].blocks[i],
                                    .module_count = 1,
                                    .shard_world = own == OWN_WHOLE       ? 1
                                                   : own == OWN_ALL_RANKS ? world
                                                                          : 0,
                                    .reshard = own == OWN_KEPT ? RESHARD_NO : RESHARD_DEFAULT};
    }
    return (struct wrap_policy){.kind = WRAP_UNITS, .units = units, .unit_count = 2};
}

static struct engine_job job_of(int which, const struct way *way)
{
    struct engine_job job = {
        .model = tiny_model_text(which),
        .policy = {.kind = way->wrap, .min_num_params = 150},
        .strategy = way->strategy,
        .shard_size = way->shard_size,
        .prefetch = way->prefetch,
        .optimizer = {.kind = OPTIMIZER_SGD, .lr = 0.05, .momentum = 0.9},
        .global_batch = 12,
        .steps = STEPS,
        .poison = true,
        .param_dtype = way->dtype,
        .reduce_dtype = DTYPE_F32,
    };
    if (way->wrap == WRAP_TYPE)
        job.policy.types = (struct wrap_names){.items = &kinds[which].block, .count = 1};
    if (way->wrap == WRAP_MATCH)
        job.policy.modules = (struct wrap_names){.items = kinds[which].alone, .count = 3};
    if (way->checkpoint) {
        job.checkpoint = &kinds[which].checkpoint;
        job.checkpoint_count = 1;
    }
    return job;
}

static struct engine_outcome *run(struct engine_job job, int world)
{
    return engine_train(&job, GROUP_LOCAL, world);
}

/* The way with no choices. */
static const struct way plain = {"plain", STRATEGY_NO_SHARD, 0, WRAP_NONE, PREFETCH_PRE,
                                 false,   DTYPE_F32};

static void check_close(const struct engine_outcome *start, const struct engine_outcome *alone,
                        const struct engine_outcome *found, int world, const struct way *way)
{
    double largest = 0, off = 0, moved = 0, missed = 0;
    for (int64_t i = 0; i < alone->parameter_elements; i++) {
        double expected = (double)alone->parameters[i];
        double d = (double)found->parameters[i] - expected;
        double step = expected - (double)start->parameters[i];
        if (!isfinite(d))
            ck_abort_msg("%s: parameter element %ld is not finite", way->name, (long)i);
        largest = fmax(largest, fabs(expected));
        off = fmax(off, fabs(d));
        moved += step * step;
        missed += d * d;
    }
    ck_assert_msg(moved > 1e-4, "only %g was learnt", moved);
    if (way->dtype == DTYPE_F32)
        ck_assert_msg(off <= F32_BOUND * largest, "%s, %d ranks: parameters differ by %g of %g",
                      way->name, world, off, largest);
    else
        ck_assert_msg(sqrt(missed / moved) <= BF16_BOUND, "%s, %d ranks: off by %g of the way",
                      way->name, world, sqrt(missed / moved));
    double bound = way->dtype == DTYPE_F32 ? F32_BOUND : 0.02;
    for (int i = 0; i < STEPS; i++) {
        double expected = (double)alone->loss[i], loss = (double)found->loss[i] / world;
        ck_assert_msg(expected > 0 && fabs(expected - loss) <= bound * expected,
                      "%s, %d ranks: the loss of step %d is %g, not %g", way->name, world, i, loss,
                      expected);
    }
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(same_as_one_rank, 0, TINY_COUNT *WORLD_COUNT, .sanitized_every = 3)
{
    int which = _i / WORLD_COUNT, world = worlds[_i % WORLD_COUNT];
    struct engine_job none = job_of(which, &plain);
    none.optimizer.lr = 0;
    struct engine_outcome *start = run(none, 1);
    struct engine_outcome *alone = run(job_of(which, &plain), 1);
    struct engine_outcome *unsharded = run(job_of(which, &plain), world);
    for (int w = 0; w < ALL_WAYS; w++) {
        const struct own_way *own = w < WAY_COUNT ? NULL : &own_ways[w - WAY_COUNT];
        const struct way *way = own != NULL ? &own->way : &ways[w];
        if (way->strategy == STRATEGY_HYBRID_SHARD && world % way->shard_size != 0) continue;
        struct engine_job job = job_of(which, way);
        if (own != NULL) job.policy = list_blocks(which, own->own, world);
        struct engine_outcome *found = run(job, world);
        check_close(start, alone, found, world, way);
        ck_assert_msg(strcmp(found->collectives, world > 1 ? found->planned : "") == 0,
                      "%s: collectives\n%s\nwhere the plan has\n%s", way->name, found->collectives,
                      found->planned);
        bool same = way->dtype == DTYPE_F32 && way->strategy != STRATEGY_HYBRID_SHARD;
        for (int64_t i = 0; same && i < found->parameter_elements; i++)
            if (memcmp(&found->parameters[i], &unsharded->parameters[i], sizeof(float)) != 0)
                ck_abort_msg("%s, %d ranks: parameter element %ld is %a, and %a without sharding",
                             way->name, world, (long)i, (double)found->parameters[i],
                             (double)unsharded->parameters[i]);
        if (same) ck_assert_mem_eq(found->evaluated, unsharded->evaluated, sizeof found->evaluated);
        engine_outcome_free(found);
    }
    engine_outcome_free(unsharded);
    engine_outcome_free(alone);
    engine_outcome_free(start);
}

/* Dropout everywhere: two runs have the same bits, and with checkpointing, too; also in bf16. */
LOOP_TEST(dropout, 0, 2 * TINY_COUNT)
{
    int which = _i % TINY_COUNT;
    struct engine_job job = job_of(which, &ways[1]);
    if (_i >= TINY_COUNT) job.param_dtype = DTYPE_BF16;
    job.dropout = true;
    struct engine_outcome *first = run(job, 2), *again = run(job, 2);
    job.checkpoint = &kinds[which].checkpoint;
    job.checkpoint_count = 1;
    struct engine_outcome *checkpointed = run(job, 2);
    job.recompute = RECOMPUTE_CHEAP;
    struct engine_outcome *cheap = run(job, 2);
    size_t bytes = (size_t)first->parameter_elements * sizeof(float);
    ck_assert(memcmp(first->parameters, again->parameters, bytes) == 0);
    ck_assert(memcmp(first->parameters, checkpointed->parameters, bytes) == 0);
    ck_assert(memcmp(first->parameters, cheap->parameters, bytes) == 0);
    job.dropout = false;
    struct engine_outcome *without = run(job, 2);
    bool differ = memcmp(first->parameters, without->parameters, bytes) != 0;
    ck_assert_msg(differ == (which != TINY_LLAMA), "dropout is %sfelt", differ ? "" : "not ");
    engine_outcome_free(first);
    engine_outcome_free(again);
    engine_outcome_free(checkpointed);
    engine_outcome_free(cheap);
    engine_outcome_free(without);
}

/* Accumulation and clipping cover the tied parameter, too. */
LOOP_TEST(accumulation, 0, TINY_COUNT)
{
    struct engine_job job = job_of(_i, &ways[1]);
    job.micro_steps = 3;
    job.norm = NORM_2;
    job.max_norm = 0.5;
    struct engine_outcome *shards = run(job, 2);
    job.no_sync = true;
    struct engine_outcome *whole = run(job, 2);
    struct engine_outcome *alone = run(job, 1);
    for (int64_t i = 0; i < alone->parameter_elements; i++) {
        double expected = (double)alone->parameters[i];
        if (!(fabs((double)shards->parameters[i] - expected) <= 2e-5) ||
            !(fabs((double)whole->parameters[i] - expected) <= 2e-5))
            ck_abort_msg("parameter element %ld is %g and %g on two ranks and %g on one", (long)i,
                         (double)shards->parameters[i], (double)whole->parameters[i], expected);
    }
    engine_outcome_free(shards);
    engine_outcome_free(whole);
    engine_outcome_free(alone);
}

/* The evaluation counts right answers, and leaves out rows that do not count. */
LOOP_TEST(evaluation, 0, TINY_COUNT)
{
    struct engine_job job = job_of(_i, &plain);
    struct engine_outcome *all = run(job, 1);
    ck_assert(all->evaluated[PLAN_STAT_CORRECT] > 0);
    ck_assert(all->evaluated[PLAN_STAT_CORRECT] <= 12 * TINY_CONTEXT);
    ck_assert(all->evaluated[PLAN_STAT_LOSS] > 0);
    job.ignored_rows = 12;
    struct engine_outcome *none = run(job, 1);
    ck_assert(none->evaluated[PLAN_STAT_CORRECT] == 0 && none->evaluated[PLAN_STAT_LOSS] == 0);
    engine_outcome_free(all);
    engine_outcome_free(none);
}
