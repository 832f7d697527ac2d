/*
 * The matrix: strategies, policies, prefetch, limits, precision, checkpointing, accumulation,
 * clipping, optimizers, offloading and batches with rows that do not count match one unsharded
 * rank, in any combination.
 *
 * Each case is drawn from a seed: a network (an MLP of odd sizes, one with a tied and a frozen
 * parameter, the tutorial's, a random tree of modules), a world of 1 to 8 local ranks, and every
 * setting of a job.
 *
 * Conditions:
 *
 * - After 20 steps the parameters are those of one rank, to 1e-5 of the largest in f32, to
 *   BF16_BOUND of the distance that training covered in bf16 (see test_precision.c).
 * - They have the same bits as without any sharding on the same number of ranks, except with
 *   hybrid_shard, which adds in another order, or with units that compute in a type of their own.
 * - The collectives are those that the units require, in the plan's order, and send the planned
 *   number of bytes.
 * - The arenas have the planned size (engine_train checks that, and that the plan is valid), and
 *   are full of NaNs before every step.
 *
 * FSDPD_MATRIX_CASES=N draws N cases, FSDPD_MATRIX_SEED=S starts with seed S.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "config.h"
#include "engine.h"
#include "tests/testing.h"

#define F32_BOUND 1e-5
#define BF16_BOUND 0.2

/* Numbers are those of the build without sanitizers, which look for mistakes in memory: every step
 * runs the same plan. */
#ifdef FSDPD_SANITIZERS
enum { STEPS = 5 };
#else
enum { STEPS = 20 };
#endif
enum { CASES = 100, LARGE_EVERY = 13, PATHS_MAX = 64 };

struct random {
    uint64_t state;
};

static uint64_t draw(struct random *random, uint64_t below)
{
    random->state += 0x9e3779b97f4a7c15u;
    uint64_t x = random->state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % below;
}

/* ---- Networks ---- */

#define NET(INPUT, CLASSES, MODULES, FORWARD, MORE)                                                \
    "name: T\ninput: [" INPUT "]\nclasses: " CLASSES "\nmodules: {" MODULES                        \
    "}\nforward: [" FORWARD "]\nloss: cross_entropy(output, target)\n" MORE

static const char odd_sizes[] =
    NET("7", "5", "a: 'Linear(7, 13)', b: 'Linear(13, 11)', c: 'Linear(11, 3)', d: 'Linear(3, 5)'",
        "'x = relu(a(x))', 'x = relu(b(x))', 'x = c(x)', 'output = d(x)'", "");
static const char tied_and_frozen[] =
    NET("8", "8", "a: 'Linear(8, 8)', b: 'Linear(8, 8)', c: 'Linear(8, 8, bias=False)'",
        "'x = relu(a(x))', 'x = relu(b(x))', 'output = c(x)'",
        "tie: {c.weight: a.weight}\nfreeze: [b.bias]\n");

/* A Sequential from `*width` features to the number that it then sets; random nested children. */
static void add_sequence(struct random *random, struct buf *text, int *width, int depth)
{
    int count = 1 + (int)draw(random, 4);
    buf_add_text(text, "Sequential(");
    for (int i = 0; i < count; i++) {
        if (i > 0) buf_add_text(text, ", ");
        if (depth < 3 && draw(random, 3) == 0) {
            add_sequence(random, text, width, depth + 1);
            continue;
        }
        int out = 1 + (int)draw(random, 12);
        bool bias = draw(random, 4) > 0;
        buf_printf(text, "Linear(%d, %d%s)", *width, out, bias ? "" : ", bias=False");
        if (draw(random, 3) > 0) buf_add_text(text, ", ReLU()");
        *width = out;
    }
    buf_add_text(text, ")");
}

static char *random_tree(struct random *random)
{
    struct buf modules = {0}, forward = {0};
    int count = 1 + (int)draw(random, 4), input = 2 + (int)draw(random, 9), width = input;
    for (int m = 0; m < count; m++) {
        buf_printf(&modules, "  m%d: ", m);
        int before = width;
        add_sequence(random, &modules, &width, 0);
        buf_add_text(&modules, "\n");
        buf_printf(&forward, "  - y = m%d(x)\n  - x = %s\n", m,
                   before == width && draw(random, 2) == 0 ? "x + y" : "y");
        /* a module that is used twice */
        if (before == width && draw(random, 3) == 0) buf_printf(&forward, "  - x = m%d(x)\n", m);
    }
    static const char *const frozen[] = {"freeze: [out.weight]\n", "freeze: ['m0.*']\n"};
    const char *freeze = draw(random, 3) == 0 ? frozen[draw(random, 2)] : "";
    char *text = mem_printf("name: Tree\ninput: [%d]\nclasses: 5\nmodules:\n%s"
                            "  out: Linear(%d, 5)\nforward:\n%s  - output = out(x)\n"
                            "loss: cross_entropy(output, target)\n%s",
                            input, buf_text(&modules), width, buf_text(&forward), freeze);
    buf_deinit(&modules);
    buf_deinit(&forward);
    return text;
}

/* ---- Cases ---- */

struct matrix_case {
    uint64_t seed;
    char *text;
    bool large, parted, low, mixed; /* the tutorial's net; hybrid_shard; bf16; units' own types */
    int world;
    struct engine_job job;
    struct wrap_unit_spec specs[PATHS_MAX];
    const char *paths[PATHS_MAX], *globs[2];
    struct model *model;
    struct unit_set *units; /* as every rank will have them */
    struct buf what;
};

static int random_divisor(struct random *random, int world)
{
    int divisor = 1 + (int)draw(random, (uint64_t)world);
    while (world % divisor != 0) divisor--;
    return divisor;
}

static int shard_world(const struct matrix_case *it)
{
    if (it->job.strategy == STRATEGY_NO_SHARD) return 1;
    return it->job.strategy == STRATEGY_HYBRID_SHARD ? it->job.shard_size : it->world;
}

/* Leaves in units of one to three, anywhere, some sharded in their own way. */
static void draw_listed_units(struct random *random, struct matrix_case *it)
{
    struct wrap_policy *policy = &it->job.policy;
    int used = 0;
    *policy = (struct wrap_policy){.kind = WRAP_UNITS, .units = it->specs};
    for (int p = 0; p < it->model->parameter_count && used < PATHS_MAX; p++) {
        const struct parameter *parameter = &it->model->parameters[p];
        const char *path = it->model->modules[parameter->module].path;
        /* the first parameter of each module, if it is its own */
        bool again = p > 0 && parameter->module == it->model->parameters[p - 1].module;
        if (again || parameter->tied_to >= 0 || draw(random, 3) == 0) continue;
        it->paths[used++] = path;
        struct wrap_unit_spec *spec = &it->specs[policy->unit_count];
        if (policy->unit_count > 0 && spec[-1].module_count < 3 && draw(random, 2) == 0) {
            spec[-1].module_count++;
            continue;
        }
        *spec = (struct wrap_unit_spec){.modules = &it->paths[used - 1], .module_count = 1};
        policy->unit_count++;
        if (draw(random, 3) > 0) continue;
        spec->shard_world = random_divisor(random, it->world);
        spec->reshard = (enum reshard)draw(random, 4);
        spec->reshard_ranks = random_divisor(random, spec->shard_world);
        /* the job's groups may not suit it */
        if (spec->reshard == RESHARD_DEFAULT && spec->shard_world % it->job.reshard_ranks != 0)
            spec->reshard = RESHARD_YES;
        if (it->low || draw(random, 6) == 0) {
            spec->param_dtype = (enum unit_dtype)draw(random, 3);
            spec->reduce_dtype = (enum unit_dtype)draw(random, 3);
        }
        it->low = it->low || spec->param_dtype == UNIT_DTYPE_BF16 ||
                  spec->reduce_dtype == UNIT_DTYPE_BF16;
        buf_printf(&it->what, ", unit %d over %d reshard %d to %d, dtypes %d %d",
                   policy->unit_count, spec->shard_world, spec->reshard, spec->reshard_ranks,
                   spec->param_dtype, spec->reduce_dtype);
        it->mixed = it->mixed || spec->param_dtype != UNIT_DTYPE_DEFAULT ||
                    spec->reduce_dtype != UNIT_DTYPE_DEFAULT;
    }
    if (policy->unit_count == 0) policy->kind = WRAP_NONE;
}

static void draw_policy(struct random *random, struct matrix_case *it)
{
    uint64_t all = (uint64_t)model_parameter_elements(it->model);
    static const char *const linear[] = {"Linear"};
    switch (draw(random, 6)) {
    case 0: it->job.policy = (struct wrap_policy){.kind = WRAP_NONE}; break;
    case 1: draw_listed_units(random, it); break;
    case 2: it->job.policy = (struct wrap_policy){.kind = WRAP_TYPE, .types = {linear, 1}}; break;
    case 3:
        it->job.policy = (struct wrap_policy){.kind = WRAP_MATCH, .modules = {it->globs, 1}};
        break;
    default:
        it->job.policy =
            (struct wrap_policy){.kind = WRAP_SIZE,
                                 .min_num_params = 1 + draw(random, all < 200 ? all : 200)};
        if (it->large) it->job.policy.min_num_params = draw(random, 2) ? 100 : 20000;
    }
    buf_printf(&it->what, ", policy %d (%" PRIu64 ", %d units)", it->job.policy.kind,
               it->job.policy.min_num_params, it->job.policy.unit_count);
}

/* With a small eps, Adam makes a full step for a gradient that is a rounding error away from 0, in
 * the direction of its random sign; that eps is for the comparison with PyTorch (tests/parity). */
static void draw_optimizer(struct random *random, struct optimizer_step *optimizer)
{
    static const struct optimizer_step optimizers[] = {
        {.kind = OPTIMIZER_SGD, .lr = 0.016, .momentum = 0.9},
        {.kind = OPTIMIZER_SGD, .lr = 0.008, .momentum = 0.9, .nesterov = true},
        {.kind = OPTIMIZER_ADADELTA, .lr = 0.5, .rho = 0.9, .eps = 1e-6},
        {.kind = OPTIMIZER_ADAM, .lr = 0.002, .beta1 = 0.9, .beta2 = 0.999, .eps = 3e-4},
        {.kind = OPTIMIZER_ADAMW, .lr = 0.002, .beta1 = 0.9, .beta2 = 0.99, .eps = 3e-4},
    };
    *optimizer = optimizers[draw(random, COUNT_OF(optimizers))];
    if (draw(random, 3) == 0) optimizer->weight_decay = 0.01;
}

/* The parts of a step: batches, clipping, the optimizer. */
static void draw_step(struct random *random, struct matrix_case *it)
{
    struct engine_job *job = &it->job;
    if (draw(random, 2)) job->micro_steps = 2 + (int)draw(random, 3);
    job->no_sync = draw(random, 2);
    job->norm = (enum norm_kind)draw(random, 3);
    if (job->norm != NORM_NONE) job->max_norm = draw(random, 3) ? 0.1 : 1e9;
    draw_optimizer(random, &job->optimizer);
    /* Among that many sums and maxima some depend on a rounding; at rates at which they do not,
     * training is not chaotic (tests/parity/test_training.py says more). */
    if (it->large) job->optimizer.lr *= job->optimizer.kind == OPTIMIZER_SGD ? 0.1 : 0.01;
    buf_printf(&it->what,
               "%d batches%s, up to %d rows that do not count, norm %d at most %g, %s momentum %g "
               "nesterov %d decay %g, ",
               job->micro_steps, job->no_sync ? " without sync" : "",
               job->ignored_modulus > 0 ? job->ignored_modulus - 1 : 0, job->norm, job->max_norm,
               plan_optimizer_name(job->optimizer.kind), job->optimizer.momentum,
               job->optimizer.nesterov, job->optimizer.weight_decay);
}

static void draw_settings(struct random *random, struct matrix_case *it)
{
    struct engine_job *job = &it->job;
    job->strategy = (enum strategy)draw(random, STRATEGY_COUNT);
    job->shard_size = random_divisor(random, it->world);
    job->prefetch = (enum prefetch)draw(random, 3);
    job->forward_prefetch = draw(random, 2);
    job->gathered_limit = (int)draw(random, 5);
    job->reshard = (enum reshard)draw(random, 4);
    job->reshard_ranks = random_divisor(random, shard_world(it));
    job->bucket_bytes = draw(random, 2) ? 4 * (1 + draw(random, 200)) : 0;
    job->poison = true;
    it->low = draw(random, 5) == 0;
    if (it->low) job->param_dtype = DTYPE_BF16;
    if (it->low && draw(random, 2)) job->reduce_dtype = DTYPE_BF16;
    it->globs[0] = it->large ? "conv?" : strstr(it->text, "m0") ? "m?" : "?";
    it->globs[1] = "*";
    if (draw(random, 3) == 0) {
        job->checkpoint = &it->globs[draw(random, 2)];
        job->checkpoint_count = 1;
        job->recompute = draw(random, 2) ? RECOMPUTE_CHEAP : RECOMPUTE_ALL;
    }
    draw_step(random, it);
    buf_printf(
        &it->what,
        "%s on %d ranks (groups of %d), prefetch %d %d, limit %d, reshard %d to %d, buckets of "
        "%" PRIu64 ", dtypes %d %d, checkpointing %s%s",
        plan_strategy_name(job->strategy), it->world, job->shard_size, job->prefetch,
        job->forward_prefetch, job->gathered_limit, job->reshard, job->reshard_ranks,
        job->bucket_bytes, job->param_dtype, job->reduce_dtype,
        job->checkpoint ? *job->checkpoint : "off",
        job->recompute == RECOMPUTE_CHEAP ? " but for products" : "");
}

/* Every other case: all units, or some of the listed ones. */
static void draw_offload(struct random *random, struct matrix_case *it)
{
    it->job.host_apart = draw(random, 2);
    it->job.cpu_offload = draw(random, 2);
    for (int u = 0; u < it->job.policy.unit_count; u++) it->specs[u].cpu_offload = draw(random, 2);
    if (it->job.host_apart)
        buf_printf(&it->what, ", offloads %s", it->job.cpu_offload ? "all units" : "some units");
}

static void draw_case(struct matrix_case *it, uint64_t seed, bool large)
{
    static const int worlds[] = {1, 2, 2, 3, 4, 4, 8};
    struct random random = {.state = seed * 0x2545f4914f6cdd1du};
    uint64_t which = draw(&random, 4);
    *it = (struct matrix_case){.seed = seed, .large = large};
    it->text = large        ? engine_with_mean(engine_mnist())
               : which == 0 ? mem_strdup(odd_sizes)
               : which == 1 ? mem_strdup(tied_and_frozen)
                            : random_tree(&random);
    it->world = worlds[draw(&random, 7)];
    it->job = (struct engine_job){
        .model = it->text,
        .global_batch = 24,
        .steps = STEPS,
        .ignored_modulus = (int)(seed % 6),
    };
    status_t status = model_parse(it->text, strlen(it->text), "net.yaml", &it->model);
    ck_assert_msg(status == NULL, "seed %" PRIu64 ": %s\n%s", seed, status_message(status),
                  it->text);
    draw_settings(&random, it);
    draw_policy(&random, it);
    draw_offload(&random, it);
    status = units_build(it->model, &it->job.policy, shard_world(it), &it->units);
    ck_assert_msg(status == NULL, "seed %" PRIu64 ": %s: %s\n%s", seed, buf_text(&it->what),
                  status_message(status), it->text);
    for (int u = 0; u < it->units->unit_count; u++) {
        int size = it->units->units[u].shard_world;
        it->parted = it->parted || (size > 1 && size < it->world);
    }
}

static void case_deinit(struct matrix_case *it)
{
    units_free(it->units);
    model_free(it->model);
    buf_deinit(&it->what);
    free(it->text);
}

#define FAIL(IT, FORMAT, ...)                                                                      \
    ck_abort_msg("seed %" PRIu64 ": %s: " FORMAT "\n%s", (IT)->seed, buf_text(&(IT)->what),        \
                 __VA_ARGS__, (IT)->text)

/* ---- Conditions ---- */

/* Elements of a kind of collective among `ranks` ranks, and the number of those collectives. */
struct tally {
    int64_t elements;
    int count;
};

static struct tally logged(const char *log, const char *kind, int ranks, int world)
{
    struct tally tally = {0};
    size_t length = strlen(kind);
    for (const char *at = log; *at != '\0'; at += strcspn(at, " "), at += *at == ' ') {
        if (strncmp(at, kind, length) != 0 || at[length] != '(') continue;
        char *end;
        long long elements = strtoll(at + length + 1, &end, 10);
        int among = end[1] == 'x' ? atoi(end + 2) : world;
        if (among != ranks) continue;
        tally.elements += elements;
        tally.count++;
    }
    return tally;
}

/* Ranks that hold the unit together between forward and backward; 1: it is kept. */
static int ranks_between(const struct matrix_case *it, const struct unit *unit)
{
    enum reshard reshard = unit->reshard ? unit->reshard : it->job.reshard;
    int ranks = unit->reshard ? unit->reshard_ranks : it->job.reshard_ranks;
    if (reshard == RESHARD_DEFAULT && it->job.strategy == STRATEGY_SHARD_GRAD_OP)
        reshard = RESHARD_NO;
    if (unit->modules[0] == 0 || reshard == RESHARD_NO) return 1;
    return reshard == RESHARD_GROUP ? ranks : unit->shard_world;
}

/* The collectives that the units require in a training step, derived from the units alone. */
static void check_collectives(const struct matrix_case *it, const char *log)
{
    int batches = it->job.micro_steps > 1 ? it->job.micro_steps : 1;
    int reductions = it->job.no_sync ? 1 : batches;
    bool trains = false;
    for (int u = 0; u < it->units->unit_count; u++)
        trains =
            trains || (!it->units->units[u].frozen && it->units->units[u].flat.parameter_count > 0);
    for (int ranks = 2; ranks <= it->world; ranks++) {
        struct tally scatter = {0}, reduce = {0}, gather = {0};
        int64_t most = 0;
        bool buckets = false;
        if (ranks == it->world)
            reduce = (struct tally){.elements = PLAN_STATS_COUNT * batches, .count = batches};
        if (ranks == it->world && it->job.norm != NORM_NONE && trains)
            most = gather.elements = sizeof(double) / sizeof(float);
        for (int u = 0; u < it->units->unit_count; u++) {
            const struct unit *unit = &it->units->units[u];
            int size = unit->shard_world;
            if (unit->flat.parameter_count == 0) continue;
            if (size == ranks) {
                gather.elements += batches * unit->flat.shard;
                most += batches * unit->flat.shard;
            }
            /* once more in backward, unless it stayed or backward does not need it */
            if (size > 1 && ranks_between(it, unit) == ranks)
                most += batches * unit->flat.padded / ranks;
            if (unit->frozen) continue;
            if (size == ranks) {
                scatter.elements += reductions * unit->flat.shard;
                scatter.count += reductions;
            }
            if (size < it->world && it->world / size == ranks) {
                reduce.elements += reductions * unit->flat.shard;
                reduce.count += reductions;
                buckets = buckets || size == 1;
            }
        }
        struct tally found = logged(log, "reduce_scatter", ranks, it->world);
        if (found.count != scatter.count || found.elements != scatter.elements)
            FAIL(it, "%d reduce_scatters of %" PRId64 " elements among %d, not %d of %" PRId64,
                 found.count, found.elements, ranks, scatter.count, scatter.elements);
        found = logged(log, "all_reduce", ranks, it->world);
        if (found.elements != reduce.elements ||
            (buckets ? found.count < reduce.count : found.count != reduce.count))
            FAIL(it, "%d all_reduces of %" PRId64 " elements among %d, not %d of %" PRId64,
                 found.count, found.elements, ranks, reduce.count, reduce.elements);
        found = logged(log, "all_gather", ranks, it->world);
        if (found.elements < gather.elements || found.elements > most)
            FAIL(it, "%" PRId64 " elements gathered among %d, not %" PRId64 " to %" PRId64,
                 found.elements, ranks, gather.elements, most);
    }
}

static void check_close(const struct matrix_case *it, const struct engine_outcome *start,
                        const struct engine_outcome *alone, const struct engine_outcome *found)
{
    double largest = 0, off = 0, way = 0, difference = 0;
    for (int64_t i = 0; i < alone->parameter_elements; i++) {
        double expected = (double)alone->parameters[i];
        double d = (double)found->parameters[i] - expected;
        double moved = expected - (double)start->parameters[i];
        if (!isfinite(d)) FAIL(it, "parameter element %" PRId64 " is not finite", i);
        largest = fmax(largest, fabs(expected));
        off = fmax(off, fabs(d));
        way += moved * moved;
        difference += d * d;
    }
    if (!(way > 0)) FAIL(it, "%s", "nothing was learnt");
    if (!it->low && off > F32_BOUND * largest)
        FAIL(it, "parameters differ by %g of %g", off, largest);
    if (it->low && sqrt(difference / way) > BF16_BOUND)
        FAIL(it, "parameters are off by %g of the way", sqrt(difference / way));
    for (int i = 0; i < it->job.steps; i++) {
        /* Every rank has a mean over its rows. */
        double expected = (double)alone->loss[i], loss = (double)found->loss[i] / it->world;
        if (fabs(expected - loss) > (it->low ? 0.05 : F32_BOUND) * expected)
            FAIL(it, "the loss of step %d is %g on one rank and %g here", i, expected, loss);
        double norm = (double)alone->norm[i], measured = (double)found->norm[i];
        if ((it->job.norm != NORM_NONE) != (measured > 0))
            FAIL(it, "the norm of step %d is %g", i, measured);
        if (fabs(norm - measured) > (it->low ? 0.3 : 10 * F32_BOUND) * norm)
            FAIL(it, "the norm of step %d is %g on one rank and %g here", i, norm, measured);
    }
}

static void check_same_bits(const struct matrix_case *it, const struct engine_outcome *plain,
                            const struct engine_outcome *found)
{
    for (int64_t i = 0; i < plain->parameter_elements; i++)
        if (memcmp(&plain->parameters[i], &found->parameters[i], sizeof(float)) != 0)
            FAIL(it, "parameter element %" PRId64 " is %a, and %a without sharding", i,
                 (double)found->parameters[i], (double)plain->parameters[i]);
    if (memcmp(plain->loss, found->loss, sizeof plain->loss) != 0)
        FAIL(it, "%s", "losses differ from those without sharding");
    if (memcmp(plain->evaluated, found->evaluated, sizeof plain->evaluated) != 0)
        FAIL(it, "%s", "the evaluation differs from that without sharding");
}

/* The same job on `world` ranks without sharding, units, checkpointing. */
static struct engine_outcome *run_plain(const struct matrix_case *it, int world, double lr,
                                        bool full)
{
    struct engine_job job = it->job;
    if (lr == 0) job.steps = 1; /* for the parameters at the start: no step changes them */
    job.policy = (struct wrap_policy){.kind = WRAP_NONE};
    job.strategy = STRATEGY_NO_SHARD;
    job.reshard = RESHARD_DEFAULT;
    job.bucket_bytes = 0;
    job.checkpoint = NULL;
    job.checkpoint_count = 0;
    job.poison = false;
    job.optimizer.lr = lr;
    job.reshard_ranks = 0;
    job.host_apart = false;
    if (full) job.param_dtype = job.reduce_dtype = DTYPE_F32;
    return engine_train(&job, GROUP_LOCAL, world);
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(case, 0, (int)setting("FSDPD_MATRIX_CASES", CASES), .sanitized_every = 3)
{
    struct matrix_case it;
    uint64_t seed = setting("FSDPD_MATRIX_SEED", 1) + (uint64_t)_i;
    draw_case(&it, seed, seed % LARGE_EVERY == 0);
    /* If the case crashes, this line remains. */
    printf("seed %" PRIu64 ": %s\n", seed, buf_text(&it.what));
    fflush(stdout);
    struct engine_outcome *found = engine_train(&it.job, GROUP_LOCAL, it.world);
    if (strcmp(found->collectives, it.world > 1 ? found->planned : "") != 0)
        FAIL(&it, "collectives\n%s\nwhere the plan has\n%s", found->collectives, found->planned);
    for (int r = 0; r < it.world; r++)
        if (found->sent_bytes[r] != found->planned_bytes[r])
            FAIL(&it, "rank %d sent %" PRIu64 " bytes, not %" PRIu64, r, found->sent_bytes[r],
                 found->planned_bytes[r]);
    check_collectives(&it, found->collectives);

    double lr = it.job.optimizer.lr;
    struct engine_outcome *alone = run_plain(&it, 1, lr, true);
    struct engine_outcome *start = run_plain(&it, 1, 0, true);
    check_close(&it, start, alone, found);
    if (!it.parted && !it.mixed) {
        struct engine_outcome *plain = run_plain(&it, it.world, lr, false);
        check_same_bits(&it, plain, found);
        engine_outcome_free(plain);
    }
    engine_outcome_free(start);
    engine_outcome_free(alone);
    engine_outcome_free(found);
    case_deinit(&it);
}
