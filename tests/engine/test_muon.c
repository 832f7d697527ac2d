/*
 * Optimizers against PyTorch and bitsandbytes, however ranks share a tiny GPT or an MLP: Muon of
 * matrices with AdamW of other parameters, Adafactor, and AdamW with state in 8 bits. 50 steps
 * (tests/parity/muon.txt, adafactor.txt and optimizers.txt, by make_muon_numbers.py,
 * make_adafactor_numbers.py and make_optimizer_numbers.py).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine.h"
#include "tests/testing.h"

enum { VOCABULARY = 37, CONTEXT = 15, INPUTS = 24, ROWS = 30, STEPS = 50, PARAMETERS = 10 };

#define GPT(width, thrice, fourfold)                                                               \
    "name: Tiny\n"                                                                                 \
    "input: tokens\n"                                                                              \
    "vocabulary: 37\n"                                                                             \
    "context: 15\n"                                                                                \
    "modules:\n"                                                                                   \
    "  wte: Embedding(37, " width ")\n"                                                            \
    "  wpe: Embedding(15, " width ")\n"                                                            \
    "  c_attn: Linear(" width ", " thrice ")\n"                                                    \
    "  up: Linear(" width ", " fourfold ")\n"                                                      \
    "  down: Linear(" fourfold ", " width ")\n"                                                    \
    "  head: Linear(" width ", 37)\n"                                                              \
    "forward:\n"                                                                                   \
    "  - y = wte(x) + wpe(positions(x))\n"                                                         \
    "  - y += attention(c_attn(y), num_heads=3, is_causal=True)\n"                                 \
    "  - y += down(relu(up(y)))\n"                                                                 \
    "  - output = head(y)\n"                                                                       \
    "loss: cross_entropy(output, target)\n"

/* Of weights and biases in their order, sizes, and which are the matrices. */
struct network {
    const char *model;
    int sizes[PARAMETERS];
    bool matrices[PARAMETERS];
    int each; /* the parameters of which the numbers have the first, and so on */
};

static const struct network gpt = {GPT("24", "72", "96"),
                                   {37 * 24, 15 * 24, 72 * 24, 72, 96 * 24, 96, 24 * 96, 24,
                                    37 * 24, 37},
                                   {[2] = true, [4] = true, [6] = true},
                                   7};
static const struct network wide_gpt = {GPT("48", "144", "192"),
                                        {37 * 48, 15 * 48, 144 * 48, 144, 192 * 48, 192, 48 * 192,
                                         48, 37 * 48, 37},
                                        {[2] = true, [4] = true, [6] = true},
                                        29};
static const struct network mlp = {"name: Mlp\n"
                                   "input: [24]\n"
                                   "classes: 10\n"
                                   "modules:\n"
                                   "  up: Linear(24, 192)\n"
                                   "  down: Linear(192, 24)\n"
                                   "  head: Linear(24, 10)\n"
                                   "forward:\n"
                                   "  - output = head(relu(down(relu(up(x)))))\n"
                                   "loss: cross_entropy(output, target)\n",
                                   {192 * 24, 192, 24 * 192, 24, 10 * 24, 10},
                                   {[0] = true, [2] = true},
                                   29};

static uint64_t drawn;

static int64_t bits(void)
{
    drawn = drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)(drawn >> 40);
}

static float fraction(void)
{
    return ((float)bits() - (1 << 23)) / (1 << 23);
}

static const struct network *network; /* of the test, */
static float *parameters[PARAMETERS]; /* and what it begins with */
static int32_t windows[STEPS * 2 * ROWS * CONTEXT];

static void draw_tokens(int32_t *rows, int32_t *targets)
{
    for (int i = 0; i < ROWS * CONTEXT; i++) rows[i] = (int32_t)(bits() % VOCABULARY);
    for (int i = 0; i < ROWS * CONTEXT; i++) targets[i] = (int32_t)(bits() % VOCABULARY);
    for (int i = 0; i < ROWS * CONTEXT; i++)
        if (rows[i] % 3 == 0) targets[i] = rows[i];
}

static void draw_rows(int32_t *rows, int32_t *targets)
{
    for (int i = 0; i < ROWS * INPUTS; i++) {
        float value = fraction();
        memcpy(&rows[i], &value, sizeof value);
        if (i % INPUTS == 0) targets[i / INPUTS] = (int32_t)(((double)value + 1) * 5);
    }
}

/* As in make_muon_numbers.py and make_optimizer_numbers.py. */
static void draw_all(const struct network *of)
{
    int words = of == &mlp ? INPUTS : CONTEXT, all = words + (of == &mlp ? 1 : CONTEXT);
    network = of;
    drawn = 11;
    for (int p = 0; p < PARAMETERS && of->sizes[p] > 0; p++) {
        parameters[p] = mem_alloc_array((size_t)of->sizes[p], sizeof **parameters);
        for (int i = 0; i < of->sizes[p]; i++) parameters[p][i] = fraction() * 0.25F;
    }
    for (int step = 0; step < STEPS; step++) {
        int32_t *rows = windows + step * ROWS * all, *targets = rows + ROWS * words;
        if (of == &mlp) draw_rows(rows, targets);
        else draw_tokens(rows, targets);
    }
}

static void forget_all(void)
{
    for (int p = 0; p < PARAMETERS; p++) free(parameters[p]);
}

TESTS_BELOW(.timeout = 60, .tear_down = forget_all);

/* The numbers of a line of the file. */
static int read_line(const char *numbers, const char *name, double *values, int most)
{
    const char *root = getenv("srcdir");
    AUTO_FREE char *path = file_path_join(root != NULL ? root : ".", numbers);
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    const char *line = strstr(buf_text(&text), name);
    ck_assert_ptr_nonnull(line);
    int count = 0;
    for (line += strlen(name); *line == ' ' && count < most; count++) {
        char *end;
        values[count] = strtod(line, &end);
        line = end;
    }
    return count;
}

static const struct optimizer_step adamw = {.kind = OPTIMIZER_ADAMW,
                                            .lr = 0.5, /* of the other's */
                                            .beta1 = 0.9,
                                            .beta2 = 0.99,
                                            .eps = 1e-8,
                                            .weight_decay = 0.01};
#define MUON(rate)                                                                                 \
    {                                                                                              \
        .kind = OPTIMIZER_MUON, .lr = (rate), .weight_decay = 0.1, .momentum = 0.95,               \
        .nesterov = true, .ns_steps = 5, .others = &adamw                                          \
    }
#define ADAFACTOR                                                                                  \
    {                                                                                              \
        .kind = OPTIMIZER_ADAFACTOR, .lr = 0.02, .weight_decay = 0.1, .eps1 = 0x1p-23,             \
        .eps2 = 1e-3, .clip = 1, .beta2_decay = -0.8                                               \
    }
#define PACKED                                                                                     \
    {                                                                                              \
        .kind = OPTIMIZER_ADAMW, .state = STATE_INT8, .lr = 0.002, .weight_decay = 0.1,            \
        .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8                                                   \
    }

struct way {
    int world;
    enum strategy strategy;
    enum wrap_kind wrap;
    enum group_kind kind;
};

static struct engine_outcome *train(const struct optimizer_step *optimizer, const struct way *way)
{
    struct engine_job job = {.model = network->model,
                             .policy = {.kind = way->wrap, .min_num_params = 2000},
                             .strategy = way->strategy,
                             .shard_size = 2,
                             .optimizer = *optimizer,
                             .matrices = optimizer->others != NULL ? network->matrices : NULL,
                             .global_batch = ROWS,
                             .steps = STEPS,
                             .poison = true,
                             .parameters = parameters,
                             .windows = windows};
    return engine_train(&job, way->kind, way->world);
}

/* Bounds are relative, of the losses and of the parameters' distance; 0: there are no numbers. */
static void expect_numbers(const struct engine_outcome *found, int world, const char *file,
                           const char *name, double loss_bound, double bound)
{
    static double expected[2000];
    AUTO_FREE char *losses = mem_printf("losses-%s", name);
    AUTO_FREE char *values = mem_printf("values-%s", name);
    if (bound == 0) return;
    ck_assert_int_eq(read_line(file, losses, expected, STEPS), STEPS);
    double most = 0, apart = 0, size = 0;
    for (int step = 0; step < STEPS; step++)
        most = fmax(most, fabs((double)found->loss[step] / world / expected[step] - 1));
    int count = read_line(file, values, expected, 2000);
    ck_assert_int_eq(count, (found->parameter_elements + network->each - 1) / network->each);
    for (int i = 0; i < count; i++) {
        double value = (double)found->parameters[i * network->each];
        apart += (value - expected[i]) * (value - expected[i]);
        size += expected[i] * expected[i];
    }
    ck_assert_msg(most < loss_bound && sqrt(apart / size) < bound,
                  "%s: losses within %g, parameters %g apart", name, most, sqrt(apart / size));
}

static const struct way ways[] = {{1, STRATEGY_FULL_SHARD, WRAP_SIZE, GROUP_LOCAL},
                                  {2, STRATEGY_HYBRID_SHARD, WRAP_SIZE, GROUP_LOCAL},
                                  {3, STRATEGY_FULL_SHARD, WRAP_SIZE, GROUP_GLOO},
                                  {5, STRATEGY_FULL_SHARD, WRAP_NONE, GROUP_SHARED},
                                  {5, STRATEGY_NO_SHARD, WRAP_SIZE, GROUP_LOCAL}};

/*
 * Exact: the same formulas in f64.
 *
 * Muon: an iteration magnifies rounding in directions in which the momentum is small, and training
 * moves it apart. PyTorch's, in bf16, is 2e-3 of the GPT's parameters from exact after 50 steps at
 * a rate of 0.004 and 2.5e-2 at 0.02, as are we from it, and f32 is 5e-4 from exact at most,
 * whatever the world. (Of one matrix with given gradients it
 * is within 1e-2 and 1e-5: tests/unit/test_muon.c.)
 *
 * 8 bits: from the same gradients codes are bitsandbytes' (tests/unit/test_blocks.c), but a
 * gradient that is rounded otherwise may get the next code, which is up to a tenth of its value
 * away.
 */
static const struct {
    const struct network *network;
    struct optimizer_step optimizer;
    const char *file, *torch, *exact;
    double bounds[4]; /* losses and parameters, of torch; of exact */
} cases[] = {
    {&gpt, MUON(0.02), "muon.txt", "torch", "exact", {1e-3, 5e-2, 1e-4, 1e-3}},
    {&gpt, ADAFACTOR, "adafactor.txt", "torch", "exact", {1e-5, 1e-4, 1e-5, 1e-4}},
    {&wide_gpt, PACKED, "optimizers.txt", "gpt-packed-torch", "", {1e-5, 1e-3}},
    {&wide_gpt,
     MUON(0.004),
     "optimizers.txt",
     "gpt-muon-torch",
     "gpt-muon-exact",
     {1e-3, 1e-2, 1e-4, 1e-3}},
    {&mlp,
     MUON(0.004),
     "optimizers.txt",
     "mlp-muon-torch",
     "mlp-muon-exact",
     {1e-3, 1e-2, 1e-5, 1e-4}},
    {&mlp,
     ADAFACTOR,
     "optimizers.txt",
     "mlp-adafactor-torch",
     "mlp-adafactor-exact",
     {1e-5, 1e-4, 1e-5, 1e-4}},
    {&mlp, PACKED, "optimizers.txt", "mlp-packed-torch", "", {1e-5, 1e-3}},
};
enum { CASES = COUNT_OF(cases), WAYS = COUNT_OF(ways) };

/* PyTorch's numbers, and the bits of other shards and units, but for hybrid shards, which add in
 * another order. (Adafactor's sums of squares are f64, so another cut changes statistics at most in
 * the last bit of an f32, and rarely.) */
LOOP_TEST(fifty_steps, 0, CASES *WAYS, .sanitized_every = 4)
{
    int number = _i / WAYS;
    struct way way = ways[_i % WAYS],
               plain = {way.world, STRATEGY_NO_SHARD, WRAP_NONE, GROUP_LOCAL};
    const double *bounds = cases[number].bounds;
    draw_all(cases[number].network);
    struct engine_outcome *whole = train(&cases[number].optimizer, &plain);
    struct engine_outcome *found = train(&cases[number].optimizer, &way);
    AUTO_FREE char *file = file_path_join("tests/parity", cases[number].file);
    expect_numbers(found, way.world, file, cases[number].torch, bounds[0], bounds[1]);
    expect_numbers(found, way.world, file, cases[number].exact, bounds[2], bounds[3]);
    size_t bytes = (size_t)found->parameter_elements * sizeof(float);
    bool same = memcmp(found->parameters, whole->parameters, bytes) == 0;
    ck_assert(same || way.strategy == STRATEGY_HYBRID_SHARD);
    engine_outcome_free(whole);
    engine_outcome_free(found);
}

/* Gradients of a loss that is linear in the parameters, and whose sums are exact: those of every
 * world have the same bits, so that only what the optimizer does with its shards could differ.
 * Every rank has the same rows, as a world's mean of them is exact then. */
static const struct network line = {"name: Line\n"
                                    "input: [64]\n"
                                    "classes: 80\n"
                                    "modules:\n"
                                    "  one: Linear(64, 80)\n"
                                    "  two: Linear(64, 80)\n"
                                    "forward:\n"
                                    "  - output = one(x) + two(x)\n"
                                    "loss: nll_loss(output, target)\n",
                                    {80 * 64, 80, 80 * 64, 80},
                                    {[0] = true, [2] = true},
                                    1};

static struct engine_outcome *train_line(const struct optimizer_step *optimizer,
                                         const struct way *way)
{
    enum { SAME = 32, WORDS = 64 };
    int all = way->world * SAME;
    int32_t *rows = mem_alloc_array((size_t)(STEPS * all * (WORDS + 1)), sizeof *rows);
    drawn = 5;
    for (int step = 0; step < STEPS; step++) {
        int32_t *samples = rows + step * all * (WORDS + 1), *targets = samples + all * WORDS;
        for (int i = 0; i < SAME * WORDS; i++) {
            float value = (float)(bits() % 17 - 8) / 8;
            memcpy(&samples[i], &value, sizeof value);
        }
        for (int i = 0; i < SAME; i++) targets[i] = (int32_t)(bits() % 80);
        for (int rank = 1; rank < way->world; rank++) {
            memcpy(samples + rank * SAME * WORDS, samples, SAME * WORDS * sizeof *samples);
            memcpy(targets + rank * SAME, targets, SAME * sizeof *targets);
        }
    }
    struct engine_job job = {.model = line.model,
                             .policy = {.kind = way->wrap, .min_num_params = 2000},
                             .strategy = way->strategy,
                             .shard_size = 2,
                             .optimizer = *optimizer,
                             .matrices = optimizer->others != NULL ? line.matrices : NULL,
                             .global_batch = all,
                             .steps = STEPS,
                             .poison = true,
                             .windows = rows};
    struct engine_outcome *outcome = engine_train(&job, way->kind, way->world);
    free(rows);
    return outcome;
}

/* The same bits at any world with 8 bits; 1e-5 with what is computed of whole matrices. */
LOOP_TEST(any_world, 0, 3)
{
    static const struct optimizer_step optimizers[] = {PACKED, MUON(0.02), ADAFACTOR};
    static const double bounds[] = {0, 1e-5, 1e-5};
    struct way alone = {1, STRATEGY_NO_SHARD, WRAP_NONE, GROUP_LOCAL};
    struct engine_outcome *expected = train_line(&optimizers[_i], &alone);
    for (int w = 0; w < WAYS; w++) {
        struct engine_outcome *found = train_line(&optimizers[_i], &ways[w]);
        double apart = 0, size = 0;
        for (int64_t i = 0; i < found->parameter_elements; i++) {
            double value = (double)expected->parameters[i];
            apart += pow((double)found->parameters[i] - value, 2);
            size += value * value;
        }
        ck_assert_msg(sqrt(apart / size) <= bounds[_i], "%g from one rank's in way %d",
                      sqrt(apart / size), w);
        ck_assert_double_gt(size, 0);
        engine_outcome_free(found);
    }
    engine_outcome_free(expected);
}
