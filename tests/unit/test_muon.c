/*
 * Muon of a matrix against torch.optim.Muon and against the same formulas in f64
 * (tests/parity/muon.txt, by make_muon_numbers.py): 50 steps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/step_args.h"
#include "tests/testing.h"

enum { STEPS = 50, MOST = 512 };

TESTS_BELOW(.timeout = 60);

/* As in make_block_numbers.py. */
static float fraction(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((float)(*state >> 40) - (1 << 23)) / (1 << 23);
}

struct muon_case {
    int rows, columns;
    struct optimizer_step step;
};

static void read_case(const char *line, struct muon_case *it)
{
    int nesterov;
    char adjust[32];
    *it = (struct muon_case){.step.kind = OPTIMIZER_MUON};
    ck_assert_int_eq(sscanf(line, "case %d %d %lf %d %d %31s %lf %lf", &it->rows, &it->columns,
                            &it->step.momentum, &nesterov, &it->step.ns_steps, adjust, &it->step.lr,
                            &it->step.weight_decay),
                     8);
    it->step.nesterov = nesterov != 0;
    if (strcmp(adjust, "original") != 0) it->step.adjust_lr = ADJUST_LR_MATCH_RMS_ADAMW;
}

static void train(const struct muon_case *it, float *param)
{
    int n = it->rows * it->columns;
    float target[MOST], grad[MOST], average[MOST] = {0};
    void *scratch = mem_alloc(kernel_muon_scratch(it->rows, it->columns));
    uint64_t state = (uint64_t)(it->rows * 1000 + it->columns);
    const struct muon_args args = step_muon_args(&it->step, 0.5F);
    float scale = step_muon_scale(&it->step, it->rows, it->columns);
    ck_assert_int_le(n, MOST);
    for (int i = 0; i < n; i++) param[i] = fraction(&state);
    for (int i = 0; i < n; i++) target[i] = fraction(&state);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < n; i++) /* times the args' scale */
            grad[i] = 2 * ((param[i] - target[i]) * 0.25F + fraction(&state) * 0.125F);
        kernel_muon_momentum((size_t)n, grad, average, &args);
        status_t status =
            kernel_orthogonalize(it->rows, it->columns, it->step.ns_steps, scale, grad, scratch);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        kernel_muon((size_t)n, param, grad, average, &args);
    }
    free(scratch);
}

/* |found - expected| / |expected|, of the line's numbers. */
static double distance(const char *line, const float *found, int n)
{
    double apart = 0, size = 0;
    for (int i = 0; i < n; i++) {
        char *end;
        double expected = strtod(line, &end);
        ck_assert_ptr_ne(line, end);
        line = end;
        apart += (found[i] - expected) * (found[i] - expected);
        size += expected * expected;
    }
    return sqrt(apart / size);
}

/* Torch's iterations are in bf16, which has 3 digits; ours are in f32. */
TEST(fifty_steps_are_those_of_torch)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", "tests/parity/muon.txt");
    struct buf text = {0};
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    struct muon_case it = {0};
    float param[MOST];
    int compared = 0;
    for (const char *line = buf_text(&text); line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        bool exact = strncmp(line, "exact ", 6) == 0;
        if (strncmp(line, "case ", 5) == 0) {
            read_case(line, &it);
            train(&it, param);
        } else if (exact || strncmp(line, "torch ", 6) == 0) {
            double apart = distance(line + 6, param, it.rows * it.columns);
            ck_assert_msg(apart < (exact ? 1e-5 : 1e-2), "%d x %d is %g from %.5s", it.rows,
                          it.columns, apart, line);
            compared++;
        }
    }
    ck_assert_int_eq(compared, 6);
    buf_deinit(&text);
    free(path);
}

/* Nothing may become infinite where there is nothing to make orthogonal. */
TEST(a_matrix_of_zeros_does_not_move)
{
    float matrix[6] = {0}, scratch[64];
    ck_assert_uint_le(kernel_muon_scratch(2, 3), sizeof scratch);
    status_t status = kernel_orthogonalize(2, 3, 5, 1, matrix, scratch);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    for (int i = 0; i < 6; i++) ck_assert_msg(matrix[i] == 0, "%g", (double)matrix[i]);
}
