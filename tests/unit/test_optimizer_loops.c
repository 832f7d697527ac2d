/* The optimizers' loops: every level that this processor can run gives the bits of the scalar
 * formula. */
#include "loops_fixture.h"
#include "tests/testing.h"

TESTS_BELOW(.timeout = 120);

/* The formulas, written out once more. */

static void plain_adadelta(size_t n, float *p, const float *grad, float *v, float *a,
                           const struct adadelta_args *k)
{
    for (size_t i = 0; i < n; i++) {
        float scaled = grad[i] * k->grad_scale;
        float g = k->weight_decay != 0 ? fmaf(p[i], k->weight_decay, scaled) : scaled;
        float decayed = k->rho * v[i];
        scaled = k->one_minus_rho * g;
        v[i] = fmaf(scaled, g, decayed);
        float above = sqrtf(a[i] + k->eps), below = sqrtf(v[i] + k->eps);
        float d = above / below;
        d = d * g;
        p[i] = fmaf(d, -k->lr, p[i]);
        scaled = k->one_minus_rho * d;
        decayed = k->rho * a[i];
        a[i] = fmaf(scaled, d, decayed);
    }
}

static void plain_sgd(size_t n, float *p, const float *grad, float *buffer,
                      const struct sgd_args *k)
{
    for (size_t i = 0; i < n; i++) {
        float scaled = grad[i] * k->grad_scale;
        float g = k->weight_decay != 0 ? fmaf(p[i], k->weight_decay, scaled) : scaled;
        if (k->momentum != 0) {
            float decayed = k->momentum * buffer[i];
            buffer[i] = k->first_step ? g : fmaf(g, k->one_minus_dampening, decayed);
            g = k->nesterov ? fmaf(buffer[i], k->momentum, g) : buffer[i];
        }
        p[i] = fmaf(g, -k->lr, p[i]);
    }
}

static void plain_adam(size_t n, float *p, const float *grad, float *m, float *v,
                       const struct adam_args *k)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = p[i] * k->shrink;
        float scaled = grad[i] * k->grad_scale;
        float g = k->weight_decay != 0 ? fmaf(p[i], k->weight_decay, scaled) : scaled;
        float decayed = k->beta1 * m[i];
        m[i] = fmaf(g, k->one_minus_beta1, decayed);
        decayed = k->beta2 * v[i];
        scaled = k->one_minus_beta2 * g;
        v[i] = fmaf(scaled, g, decayed);
        float below = sqrtf(v[i]) / k->corrected_root;
        below = below + k->eps;
        float above = -k->corrected_lr * m[i];
        p[i] = p[i] + above / below;
    }
}

static void plain_radam(size_t n, float *p, const float *grad, float *m, float *v,
                        const struct radam_args *k)
{
    for (size_t i = 0; i < n; i++) {
        float scaled = grad[i] * k->grad_scale;
        float g = k->weight_decay != 0 ? fmaf(p[i], k->weight_decay, scaled) : scaled;
        float decayed = k->beta1 * m[i];
        m[i] = fmaf(g, k->one_minus_beta1, decayed);
        decayed = k->beta2 * v[i];
        scaled = k->one_minus_beta2 * g;
        v[i] = fmaf(scaled, g, decayed);
        float step = m[i] / k->correction;
        step = step * k->lr;
        if (k->rectified != 0) {
            float below = sqrtf(v[i]) + k->eps;
            float factor = 1 / below;
            factor = factor * k->root;
            step = step * factor;
            step = step * k->rectified;
        }
        p[i] = p[i] - step;
    }
}

static void plain_lion(size_t n, float *p, const float *grad, float *m, const struct lion_args *k)
{
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * k->grad_scale;
        float mean = m[i] * k->beta1, part = g * k->one_minus_beta1;
        mean += part;
        float kept = p[i] * k->shrink, decayed = k->beta2 * m[i];
        p[i] = mean == 0 ? kept : kept - copysignf(k->lr, mean);
        if (isnan(mean)) p[i] = NAN;
        m[i] = fmaf(g, k->one_minus_beta2, decayed);
    }
}

static void plain_adagrad(size_t n, float *p, const float *grad, float *sum,
                          const struct adagrad_args *k)
{
    for (size_t i = 0; i < n; i++) {
        float scaled = grad[i] * k->grad_scale;
        float g = k->weight_decay != 0 ? fmaf(p[i], k->weight_decay, scaled) : scaled;
        sum[i] = fmaf(g, g, sum[i]);
        float root = sqrtf(sum[i]), above = -k->decayed_lr * g;
        float below = root + k->eps;
        p[i] = p[i] + above / below;
    }
}

struct state {
    float param[MOST], grad[MOST], first[MOST], second[MOST];
};

static void random_optimizer_state(struct state *state)
{
    random_state(state->param, MOST, false);
    random_state(state->grad, MOST, false);
    random_state(state->first, MOST, true);
    random_state(state->second, MOST, true);
}

/* One call of a loop on `n` elements of `found`. */
struct turn {
    const struct cpu_loops *loops; /* of the level, or of the one that the public function takes */
    bool by_function;              /* the public function is called */
    size_t n;
    int variant; /* of the arguments */
};

static struct state start, found, expected;

static void expect_moved(size_t least)
{
    ck_assert(memcmp(found.param, start.param, least * sizeof(float)) != 0);
}

/* Takes a turn at every level that this processor can run, by the public function, too, if there is
 * one, for all sizes and variants. `take` gets random state in all three, and writes what the
 * formula gives to `expected`; then the two have the same bits. */
static void take_turns(bool has_function, int variants, void (*take)(const struct turn *turn))
{
    for (int level = 0; level < CPU_LEVEL_COUNT + has_function; level++) {
        const struct cpu_loops *loops =
            level < CPU_LEVEL_COUNT ? cpu_loops_at((enum cpu_level)level) : cpu_loops_get();
        if (loops == NULL) continue;
        for (int i = 0; i < SIZE_COUNT * variants; i++) {
            const struct turn turn = {loops, level == CPU_LEVEL_COUNT, sizes[i / variants],
                                      i % variants};
            random_optimizer_state(&start);
            found = expected = start;
            take(&turn);
            assert_same_bits(found.param, expected.param, MOST, "parameter", loops->name);
            assert_same_bits(found.grad, expected.grad, MOST, "gradient", loops->name);
            assert_same_bits(found.first, expected.first, MOST, "average", loops->name);
            assert_same_bits(found.second, expected.second, MOST, "square", loops->name);
        }
    }
}

static void take_adadelta(const struct turn *t)
{
    const struct adadelta_args args = {.lr = 0.7f,
                                       .rho = 0.9f,
                                       .eps = 1e-6f,
                                       .weight_decay = t->variant ? 0.01f : 0,
                                       .grad_scale = t->variant ? 0.3f : 1,
                                       .one_minus_rho = (float)(1 - 0.9)};
    plain_adadelta(t->n, expected.param, start.grad, expected.first, expected.second, &args);
    if (t->by_function)
        kernel_adadelta(t->n, found.param, found.grad, found.first, found.second, &args);
    else t->loops->adadelta(t->n, found.param, found.grad, found.first, found.second, &args);
    if (t->n > 0) expect_moved(t->n);
}

TEST(adadelta)
{
    take_turns(true, 2, take_adadelta);
}

static void take_sgd(const struct turn *t)
{
    const struct sgd_args args = {.lr = 0.1f,
                                  .momentum = t->variant & 1 ? 0.9f : 0,
                                  .one_minus_dampening = t->variant & 2 ? 0.8f : 1,
                                  .weight_decay = t->variant & 4 ? 1e-3f : 0,
                                  .grad_scale = t->variant & 2 ? 0.3f : 1,
                                  .nesterov = t->variant & 8,
                                  .first_step = t->variant & 16};
    if (args.first_step) found.first[0] = expected.first[0] = NAN; /* not read */
    float *buffer = args.momentum != 0 ? found.first : NULL;
    plain_sgd(t->n, expected.param, start.grad, expected.first, &args);
    if (t->by_function) kernel_sgd(t->n, found.param, found.grad, buffer, &args);
    else t->loops->sgd(t->n, found.param, found.grad, buffer, &args);
}

TEST(sgd)
{
    take_turns(true, 32, take_sgd);
}

static void take_adam(const struct turn *t)
{
    const struct adam_args args = {.beta1 = 0.9f,
                                   .one_minus_beta1 = (float)(1 - 0.9),
                                   .beta2 = 0.999f,
                                   .one_minus_beta2 = (float)(1 - 0.999),
                                   .eps = 1e-8f,
                                   .weight_decay = t->variant & 1 ? 0.01f : 0,
                                   .shrink = t->variant & 2 ? 0.99f : 1,
                                   .corrected_lr = 0.01f,
                                   .corrected_root = 0.0316f,
                                   .grad_scale = t->variant & 4 ? 0.3f : 1};
    plain_adam(t->n, expected.param, start.grad, expected.first, expected.second, &args);
    if (t->by_function)
        kernel_adam(t->n, found.param, found.grad, found.first, found.second, &args);
    else t->loops->adam(t->n, found.param, found.grad, found.first, found.second, &args);
    if (t->n >= 64) expect_moved(t->n);
}

TEST(adam)
{
    take_turns(true, 8, take_adam);
}

static void take_lion(const struct turn *t)
{
    const struct lion_args args = {.lr = 0.01f,
                                   .beta1 = 0.9f,
                                   .one_minus_beta1 = (float)(1 - 0.9),
                                   .beta2 = 0.99f,
                                   .one_minus_beta2 = (float)(1 - 0.99),
                                   .shrink = t->variant & 1 ? 0.99f : 1,
                                   .grad_scale = t->variant & 2 ? 0.3f : 1};
    if (t->n > 2) start.grad[0] = start.first[0] = 0; /* it does not move */
    if (t->n > 2) start.grad[1] = NAN;
    found = expected = start;
    plain_lion(t->n, expected.param, start.grad, expected.first, &args);
    if (t->by_function) kernel_lion(t->n, found.param, found.grad, found.first, &args);
    else t->loops->lion(t->n, found.param, found.grad, found.first, &args);
    if (t->n > 2) {
        ck_assert(isnan(found.param[1]) && isnan(found.first[1]));
        found.param[1] = expected.param[1] = found.first[1] = expected.first[1] = 0;
    }
    if (t->n >= 64) expect_moved(t->n);
}

TEST(lion)
{
    take_turns(true, 4, take_lion);
}

static void take_radam(const struct turn *t)
{
    const struct radam_args args = {.lr = 0.01f,
                                    .beta1 = 0.9f,
                                    .one_minus_beta1 = (float)(1 - 0.9),
                                    .beta2 = 0.99f,
                                    .one_minus_beta2 = (float)(1 - 0.99),
                                    .eps = 1e-8f,
                                    .weight_decay = t->variant & 1 ? 0.01f : 0,
                                    .correction = 0.3f,
                                    .root = 0.2f,
                                    .rectified = t->variant & 4 ? 0.6f : 0,
                                    .grad_scale = t->variant & 2 ? 0.3f : 1};
    plain_radam(t->n, expected.param, start.grad, expected.first, expected.second, &args);
    if (t->by_function)
        kernel_radam(t->n, found.param, found.grad, found.first, found.second, &args);
    else t->loops->radam(t->n, found.param, found.grad, found.first, found.second, &args);
    if (t->n >= 64) expect_moved(t->n);
}

TEST(radam)
{
    take_turns(true, 8, take_radam);
}

static void take_adagrad(const struct turn *t)
{
    const struct adagrad_args args = {.decayed_lr = 0.01f,
                                      .eps = 1e-10f,
                                      .weight_decay = t->variant & 1 ? 0.01f : 0,
                                      .grad_scale = t->variant & 2 ? 0.3f : 1};
    plain_adagrad(t->n, expected.param, start.grad, expected.first, &args);
    if (t->by_function) kernel_adagrad(t->n, found.param, found.grad, found.first, &args);
    else t->loops->adagrad(t->n, found.param, found.grad, found.first, &args);
    if (t->n >= 64) expect_moved(t->n);
}

TEST(adagrad)
{
    take_turns(true, 4, take_adagrad);
}

/* torch.lerp's two formulas; a weight of 1 gives the parameters themselves. */
static void take_average(const struct turn *t)
{
    static const float weights[] = {1, 0.75f, 0.25f, 1e-4f};
    const int w = t->variant;
    const struct average_args args = {weights[w]};
    for (size_t i = 0; i < t->n; i++) {
        float distance = start.param[i] - start.first[i];
        expected.first[i] = w < 2 ? fmaf(-distance, 1 - weights[w], start.param[i])
                                  : fmaf(distance, weights[w], start.first[i]);
        ck_assert(w > 0 || expected.first[i] == start.param[i]);
    }
    if (t->by_function) kernel_average(t->n, found.first, start.param, &args);
    else t->loops->average(t->n, found.first, start.param, &args);
}

TEST(average)
{
    take_turns(true, 4, take_average);
}

static void take_muon(const struct turn *t)
{
    const bool long_memory = t->variant & 1;
    const struct muon_args args = {.lr = 0.02f,
                                   .momentum = long_memory ? 0.95f : 0.3f,
                                   .one_minus_momentum = (float)(1 - (long_memory ? 0.95 : 0.3)),
                                   .shrink = t->variant & 2 ? 0.99f : 1,
                                   .grad_scale = t->variant & 2 ? 0.3f : 1,
                                   .nesterov = t->variant & 4};
    for (size_t i = 0; i < t->n; i++) {
        float g = start.grad[i] * args.grad_scale;
        float m = kernel_lerp(start.first[i], g, args.one_minus_momentum, args.momentum);
        expected.first[i] = m;
        expected.grad[i] =
            args.nesterov ? kernel_lerp(g, m, args.momentum, args.one_minus_momentum) : m;
        float shrunk = start.param[i] * args.shrink;
        expected.param[i] = fmaf(expected.grad[i], -args.lr, shrunk);
    }
    t->loops->muon_momentum(t->n, found.grad, found.first, &args);
    t->loops->muon(t->n, found.param, found.grad, &args);
}

TEST(muon)
{
    take_turns(false, 8, take_muon);
}

static void take_adafactor(const struct turn *t)
{
    const float scale = 0.3f, row = 2.5f, least = 1e-3f;
    const float weight = t->variant == 0 ? 0.2f : 0.7f, rest = 1 - weight;
    for (size_t i = 0; i < t->n; i++) {
        float variance = row * start.second[i];
        expected.param[i] *= scale / sqrtf(variance > least ? variance : least);
        float g = start.grad[i] * scale;
        variance = kernel_lerp(start.first[i], g * g, weight, rest);
        expected.first[i] = variance;
        expected.grad[i] = g / sqrtf(variance > least ? variance : least);
    }
    t->loops->factor_row(t->n, found.param, scale, row, found.second, least);
    t->loops->variance(t->n, found.grad, scale, found.first, weight, rest, least);
    assert_same_bits(found.grad, expected.grad, MOST, "update", t->loops->name);
    for (size_t i = 0; i < t->n; i++) expected.grad[i] *= row;
    t->loops->scale(t->n, found.grad, row);
}

TEST(adafactor)
{
    take_turns(false, 2, take_adafactor);
}

/* A block is rounded to the code whose range of the 65,536 steps it falls into. */
static void plain_codes(size_t n, const float *values, const uint8_t *nearest, uint8_t *codes,
                        float *most)
{
    *most = 0;
    for (size_t i = 0; i < n; i++) *most = fabsf(values[i]) > *most ? fabsf(values[i]) : *most;
    for (size_t i = 0; i < n; i++) {
        float value = fminf(fmaxf(values[i] * (1 / *most), -1), 1) + 1;
        float step = value * 0.5f * 65535 + 0.5f;
        codes[i] = nearest[isnan(values[i] * (1 / *most)) ? 0 : (unsigned)step];
    }
}

TEST(codes)
{
    static uint8_t nearest[65536], packed[KERNEL_PACKED_BLOCK], wanted[KERNEL_PACKED_BLOCK];
    static struct state moved, plain;
    float map[256], square_map[256], most, largest;
    kernel_packed_map(true, map);
    kernel_packed_map(false, square_map);
    for (size_t i = 0; i < COUNT_OF(nearest); i++) nearest[i] = (uint8_t)(i / 256 ^ i % 7);
    for (int level = 0; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (int s = 0; s < SIZE_COUNT && sizes[s] <= KERNEL_PACKED_BLOCK; s++)
            for (int odd = 0; odd < 4; odd++) {
                size_t n = sizes[s];
                random_optimizer_state(&start);
                for (size_t i = 0; odd == 1 && i < n; i++) start.param[i] = 0;
                if (odd == 2 && n > 3) start.param[3] = NAN;
                if (odd == 3 && n > 5) start.param[5] = -INFINITY;
                plain_codes(n, start.param, nearest, wanted, &largest);
                loops->pack_codes(n, start.param, nearest, packed, &most);
                ck_assert(most == largest && memcmp(packed, wanted, n) == 0);
                loops->unpack_codes(n, packed, map, 0.7f, moved.first);
                for (size_t i = 0; i < n; i++) plain.first[i] = map[packed[i]] * 0.7f;
                assert_same_bits(moved.first, plain.first, n, "value", loops->name);

                const struct adam_args args = {.beta1 = 0.9f,
                                               .one_minus_beta1 = (float)(1 - 0.9),
                                               .beta2 = 0.999f,
                                               .one_minus_beta2 = (float)(1 - 0.999),
                                               .eps = 1e-8f,
                                               .shrink = 0.99f,
                                               .corrected_lr = 0.01f,
                                               .corrected_root = 0.0316f,
                                               .grad_scale = 0.3f};
                const struct adam_codes codes = {packed, wanted, map, square_map, 0.7f, 0.2f};
                random_optimizer_state(&start);
                moved = plain = start;
                for (size_t i = 0; i < n; i++) {
                    plain.first[i] = map[packed[i]] * 0.7f;
                    plain.second[i] = square_map[wanted[i]] * 0.2f;
                }
                plain_adam(n, plain.param, start.grad, plain.first, plain.second, &args);
                loops->adam_codes(n, moved.param, start.grad, &codes, moved.first, moved.second,
                                  &args);
                assert_same_bits(moved.param, plain.param, MOST, "parameter", loops->name);
                assert_same_bits(moved.first, plain.first, MOST, "average", loops->name);
                assert_same_bits(moved.second, plain.second, MOST, "square", loops->name);
            }
    }
}

TEST(norms)
{
    static float values[MOST];
    for (int level = 0; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (int s = 0; s < SIZE_COUNT; s++) {
            rng.state = (unsigned)s + 1;
            random_state(values, MOST, false);
            size_t n = sizes[s];
            double sum, max, base_sum, wanted = 0, most = 0;
            for (size_t i = 0; i < n; i++) {
                wanted += (double)values[i] * values[i];
                most = fabs((double)values[i]) > most ? fabs((double)values[i]) : most;
            }
            loops->sum_squares(n, values, &sum);
            loops->max_abs(n, values, &max);
            cpu_loops_base->sum_squares(n, values, &base_sum);
            ck_assert(sum == base_sum && max == most);
            ck_assert(fabs(sum - wanted) <= 1e-12 * wanted);
            for (size_t i = 0; i<n; i += n> 40 ? 13 : 1) {
                float before = values[i];
                values[i] = NAN;
                loops->sum_squares(n, values, &sum);
                loops->max_abs(n, values, &max);
                ck_assert(isnan(sum) && isnan(max));
                values[i] = before;
            }
        }
    }
}

/* A thread's part ends where another's begins, at any position. */
TEST(optimizer_threads)
{
    enum { N = 100003 };
    float *memory[2][4];
    for (int run = 0; run < 2; run++) {
        rng.state = 5;
        for (int i = 0; i < 4; i++) {
            memory[run][i] = mem_alloc_array(N, sizeof(float));
            random_state(memory[run][i], N, i >= 2);
        }
        kernels_set_threads(run == 0 ? 1 : 3);
        struct adadelta_args args = {
            .lr = 1, .rho = 0.9f, .eps = 1e-6f, .one_minus_rho = 0.1f, .grad_scale = 1};
        kernel_adadelta(N, memory[run][0], memory[run][1], memory[run][2], memory[run][3], &args);
    }
    for (int i = 0; i < 4; i++) {
        assert_same_bits(memory[1][i], memory[0][i], N, "threads", "3");
        free(memory[0][i]);
        free(memory[1][i]);
    }
}
