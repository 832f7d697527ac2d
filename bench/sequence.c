/*
 * Times the memory-bound ops of a GPT-2 step, as bench/sequence.py does for PyTorch: microseconds
 * of the fastest and the median run, nanoseconds per element of the largest operand (without the
 * table of an embedding), and memory traffic (op_desc_bytes). On one thread it measures processor
 * time, which other programs disturb less.
 *
 *     bench/sequence [tokens [threads [seconds per op [part of the ops' names]]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "time_op.h"

enum { WIDTH = 768, INNER = 3072, VOCABULARY = 50257, SCORES = 1024 };

static struct op_timer timer = {.seconds = 0.5, .largest_index = VOCABULARY};
static const char *wanted = "";

static struct tensor_type type_of(enum dtype dtype, int64_t rows, int64_t columns)
{
    return tensor_type_make(dtype, columns > 0 ? 2 : 1, (int64_t[]){rows, columns});
}

static struct op_desc desc_of(enum op_kind kind, struct tensor_type type)
{
    struct op_desc desc = whole_op(kind);
    for (int i = 0; i < desc.input_count; i++) desc.inputs[i] = type;
    for (int i = 0; i < desc.output_count; i++) desc.outputs[i] = type;
    return desc;
}

static void measure(const char *name, const struct op_desc *desc)
{
    if (strstr(name, wanted) == NULL) return;
    struct op_times times = time_op(&timer, desc);
    const struct tensor_type *y = &desc->outputs[0];
    if (desc->kind == OP_EMBEDDING_BACKWARD || desc->kind == OP_SUM_LEADING ||
        desc->kind == OP_ELEMENT_LOSS)
        y = &desc->inputs[0];
    int64_t elements = tensor_element_count(y);
    if (desc->kind == OP_EMBEDDING_BACKWARD) elements *= WIDTH;
    printf("%-36s %9.1f %9.1f %8.3f %8.1f\n", name, times.best_us, times.median_us,
           1e3 * times.best_us / (double)elements,
           (double)op_desc_bytes(desc) / (1e3 * times.best_us));
    fflush(stdout);
}

static void measure_norm(const char *name, enum op_kind kind, enum dtype dtype, int64_t tokens,
                         bool other)
{
    struct op_desc desc = desc_of(kind, type_of(dtype, tokens, WIDTH));
    struct tensor_type row = type_of(dtype, WIDTH, 0), rows = type_of(DTYPE_F32, tokens, 0);
    struct tensor_type gradient = type_of(DTYPE_F32, WIDTH, 0);
    bool centered = kind == OP_LAYER_NORM || kind == OP_LAYER_NORM_BACKWARD;
    if (kind == OP_LAYER_NORM || kind == OP_RMS_NORM) {
        desc.inputs[1] = row;
        if (centered) desc.inputs[2] = row;
        desc.outputs[1] = desc.outputs[centered ? 2 : 1] = rows;
        desc.input_present[centered ? 3 : 2] = desc.output_present[centered ? 3 : 2] = other;
    } else {
        desc.inputs[2] = row;
        desc.inputs[3] = desc.inputs[centered ? 4 : 3] = rows;
        desc.outputs[1] = desc.outputs[2] = gradient;
        desc.input_present[centered ? 5 : 4] = other;
    }
    measure(name, &desc);
}

static void measure_embedding(const char *name, enum op_kind kind, int64_t tokens, bool accumulate)
{
    struct op_desc desc = desc_of(kind, type_of(DTYPE_F32, tokens, WIDTH));
    desc.inputs[0] = type_of(DTYPE_I32, tokens, 0);
    desc.attrs.embedding.padding_index = -1;
    desc.accumulate[0] = accumulate;
    if (kind == OP_EMBEDDING) desc.inputs[1] = type_of(DTYPE_F32, VOCABULARY, WIDTH);
    else desc.outputs[0] = type_of(DTYPE_F32, VOCABULARY, WIDTH);
    measure(name, &desc);
}

/* Losses of every element against another value, without targets. */
static void measure_losses(int64_t tokens)
{
    static const char *const names[] = {[DIFFERENCE_SQUARED] = "mse_loss",
                                        [DIFFERENCE_HUBER] = "huber_loss",
                                        [DIFFERENCE_DIVERGENCE] = "kl_div"};
    for (int d = 0; d <= DIFFERENCE_DIVERGENCE; d++)
        for (int backward = 0; backward < 2 && names[d] != NULL; backward++) {
            enum op_kind kind = backward ? OP_ELEMENT_LOSS_BACKWARD : OP_ELEMENT_LOSS;
            struct op_desc desc = desc_of(kind, type_of(DTYPE_F32, tokens, SCORES));
            char name[64];
            desc.input_present[2] = false;
            if (!backward) desc.outputs[0] = type_of(DTYPE_F32, 1, 0);
            desc.attrs.element_loss.reduction = REDUCTION_MEAN;
            desc.attrs.element_loss.difference = (enum op_difference)d;
            desc.attrs.element_loss.delta = desc.attrs.element_loss.weight = 1;
            desc.attrs.element_loss.computed = true;
            snprintf(name, sizeof name, "%s%s", names[d], backward ? "_backward" : "");
            measure(name, &desc);
        }
}

int main(int argc, char **argv)
{
    int64_t tokens = argc > 1 ? atoll(argv[1]) : 4096;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    timer.clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    if (argc > 3) timer.seconds = atof(argv[3]);
    if (argc > 4) wanted = argv[4];
    kernels_set_threads(threads);
    printf("%lld tokens, %d threads%27s %9s %8s %8s\n", (long long)tokens, threads, "best us",
           "median us", "ns/el", "GB/s");
    static const char *const dtypes[] = {[DTYPE_F32] = "", [DTYPE_BF16] = ", bf16"};
    for (int d = 0; d < 2; d++) {
        enum dtype dtype = d ? DTYPE_BF16 : DTYPE_F32;
        char name[64];
#define NAME(text) (snprintf(name, sizeof name, "%s%s", text, dtypes[dtype]), name)
        measure_norm(NAME("layer_norm"), OP_LAYER_NORM, dtype, tokens, false);
        measure_norm(NAME("layer_norm, residual"), OP_LAYER_NORM, dtype, tokens, true);
        measure_norm(NAME("layer_norm_backward"), OP_LAYER_NORM_BACKWARD, dtype, tokens, false);
        measure_norm(NAME("layer_norm_backward, other"), OP_LAYER_NORM_BACKWARD, dtype, tokens,
                     true);
        measure_norm(NAME("rms_norm"), OP_RMS_NORM, dtype, tokens, false);
        measure_norm(NAME("rms_norm_backward"), OP_RMS_NORM_BACKWARD, dtype, tokens, false);
        struct tensor_type inner = type_of(dtype, tokens, INNER);
        for (int tanh = 0; tanh < 2; tanh++) {
            struct op_desc desc = desc_of(OP_GELU, inner);
            desc.attrs.gelu.tanh = tanh;
            measure(NAME(tanh ? "gelu, tanh" : "gelu"), &desc);
            desc = desc_of(OP_GELU_BACKWARD, inner);
            desc.attrs.gelu.tanh = tanh;
            measure(NAME(tanh ? "gelu_backward, tanh" : "gelu_backward"), &desc);
        }
        struct op_desc desc = desc_of(OP_SILU, inner);
        measure(NAME("silu"), &desc);
        desc = desc_of(OP_SILU_BACKWARD, inner);
        measure(NAME("silu_backward"), &desc);
        desc = desc_of(OP_SILU_MUL, inner);
        measure(NAME("silu_mul"), &desc);
        desc = desc_of(OP_SILU_MUL_BACKWARD, inner);
        measure(NAME("silu_mul_backward"), &desc);
        struct tensor_type states = tensor_type_make(dtype, 3, (int64_t[]){4, tokens / 4, WIDTH});
        desc = desc_of(OP_ADD, states);
        measure(NAME("add"), &desc);
        desc.inputs[1] = type_of(dtype, tokens / 4, WIDTH);
        measure(NAME("add, broadcast"), &desc);
        desc = desc_of(OP_SUM_LEADING, states);
        desc.outputs[0] = type_of(dtype, tokens / 4, WIDTH);
        measure(NAME("sum_leading"), &desc);
        desc.outputs[0] = type_of(dtype, WIDTH, 0);
        measure(NAME("sum_leading, to a row"), &desc);
    }
    struct op_desc desc = desc_of(OP_SOFTMAX, type_of(DTYPE_F32, tokens, SCORES));
    measure("softmax", &desc);
    desc = desc_of(OP_SOFTMAX_BACKWARD, type_of(DTYPE_F32, tokens, SCORES));
    measure("softmax_backward", &desc);
    measure_losses(tokens);
    desc = desc_of(OP_DROPOUT, type_of(DTYPE_F32, tokens, WIDTH));
    desc.attrs.dropout.normal = true;
    measure("randn_like", &desc);
    measure_embedding("embedding", OP_EMBEDDING, tokens, false);
    measure_embedding("embedding_backward", OP_EMBEDDING_BACKWARD, tokens, false);
    measure_embedding("embedding_backward, accumulating", OP_EMBEDDING_BACKWARD, tokens, true);
    return 0;
}
