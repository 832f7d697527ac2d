/*
 * Times attention, or the fused head, on random operands: the best and the median run of the op and
 * of its backward op (the head's without the weights' gradient and with it), in microseconds,
 * GFLOP/s of the best, and the workspace in bytes. On one thread it measures processor time, which
 * other programs disturb less. bench/attention.py compares with PyTorch. `projections` compares
 * three linear layers, as in a Llama or BERT block's projections to q, k and v, with one layer of
 * their total width, as in GPT-2. With DOCUMENT, rows hold documents of that many tokens (0: none).
 *
 *     bench/attention attention THREADS SECONDS BATCH HEADS TIME HEAD_DIM [DROPOUT [DOCUMENT
 * [WINDOW]]] bench/attention head THREADS SECONDS ROWS COLUMNS CLASSES bench/attention projections
 * THREADS SECONDS ROWS WIDTH
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "time_op.h"

static struct op_timer timer;

static struct op_times measure(const struct op_desc *desc)
{
    struct op_times times = time_op(&timer, desc);
    printf("%s %.1f %.1f %.1f %llu\n", op_info_get(desc->kind)->name, times.best_us,
           times.median_us, op_desc_flops(desc) / times.best_us / 1e3,
           (unsigned long long)times.workspace_bytes);
    return times;
}

static struct tensor_type type_of(enum dtype dtype, int dim_count, int64_t a, int64_t b, int64_t c)
{
    return tensor_type_make(dtype, dim_count, (int64_t[]){a, b, c});
}

/* Causal attention; q, k and v are packed side by side. */
static void measure_attention(int64_t batch, int64_t heads, int64_t time, int64_t head_dim,
                              double dropout, int64_t document, int64_t window)
{
    int64_t width = heads * head_dim;
    struct op_desc desc = whole_op(OP_ATTENTION);
    desc.attrs.attention.heads = desc.attrs.attention.kv_heads = heads;
    desc.attrs.attention.causal = true;
    desc.attrs.attention.p = dropout;
    desc.attrs.attention.window = window;
    desc.input_present[1] = desc.input_present[2] = desc.input_present[3] = false;
    timer.document = document;
    desc.input_present[4] = false;
    desc.input_present[5] = document > 0;
    desc.output_present[2] = desc.output_present[3] = false; /* the cache */
    desc.inputs[5] = type_of(DTYPE_I32, 2, batch, time, 0);
    desc.inputs[0] = type_of(DTYPE_F32, 3, batch, time, 3 * width);
    desc.outputs[0] = type_of(DTYPE_F32, 3, batch, time, width);
    desc.outputs[1] = type_of(DTYPE_F32, 3, batch, heads, time);
    measure(&desc);
    struct op_desc backward = whole_op(OP_ATTENTION_BACKWARD);
    backward.attrs = desc.attrs;
    backward.inputs[0] = backward.inputs[4] = desc.outputs[0];
    backward.inputs[1] = backward.outputs[0] = desc.inputs[0];
    backward.inputs[5] = desc.outputs[1];
    backward.input_present[8] = document > 0;
    backward.inputs[8] = desc.inputs[5];
    backward.input_present[2] = backward.input_present[3] = backward.input_present[6] = false;
    backward.input_present[7] = false;
    backward.output_present[1] = backward.output_present[2] = backward.output_present[3] = false;
    measure(&backward);
}

static void measure_head(int64_t rows, int64_t columns, int64_t classes)
{
    timer.largest_index = classes;
    struct op_desc desc = whole_op(OP_LINEAR_CROSS_ENTROPY);
    desc.attrs.loss.reduction = REDUCTION_MEAN;
    desc.input_present[2] = false;
    desc.inputs[0] = type_of(DTYPE_F32, 2, rows, columns, 0);
    desc.inputs[1] = type_of(DTYPE_F32, 2, classes, columns, 0);
    desc.inputs[3] = type_of(DTYPE_I32, 1, rows, 0, 0);
    desc.outputs[0] = desc.outputs[1] = type_of(DTYPE_F32, 1, 1, 0, 0);
    measure(&desc);
    struct op_desc backward = desc;
    backward.kind = OP_LINEAR_CROSS_ENTROPY_BACKWARD;
    backward.output_count = 4;
    backward.outputs[1] = desc.inputs[0];
    backward.outputs[2] = desc.inputs[1];
    backward.output_present[2] = false; /* a head that is not trained */
    measure(&backward);
    backward.output_present[2] = true;
    measure(&backward);
}

/* Times forward, and backward with respect to the input and the weights. With `accumulate`,
 * gradients are added to existing ones. */
static double measure_linear(int64_t rows, int64_t in, int64_t out, bool accumulate)
{
    struct tensor_type x = type_of(DTYPE_F32, 2, rows, in, 0),
                       y = type_of(DTYPE_F32, 2, rows, out, 0);
    struct tensor_type weight = type_of(DTYPE_F32, 2, out, in, 0);
    struct op_desc desc = whole_op(OP_LINEAR);
    desc.input_present[2] = false;
    desc.inputs[0] = x, desc.inputs[1] = weight, desc.outputs[0] = y;
    double best = measure(&desc).best_us;
    desc = whole_op(OP_LINEAR_BACKWARD_WEIGHTS);
    desc.output_present[1] = false;
    desc.inputs[0] = x, desc.inputs[1] = y, desc.outputs[0] = weight;
    best += measure(&desc).best_us;
    desc = whole_op(OP_LINEAR_BACKWARD_DATA);
    desc.inputs[0] = y, desc.inputs[1] = weight, desc.outputs[0] = x;
    desc.accumulate[0] = accumulate;
    return best + measure(&desc).best_us;
}

static void measure_projections(int64_t rows, int64_t width)
{
    double one = measure_linear(rows, width, 3 * width, false);
    double three = measure_linear(rows, width, width, false);
    for (int i = 1; i < 3; i++) three += measure_linear(rows, width, width, true);
    printf("one %.1f us, three %.1f us, ratio %.2f\n", one, three, one / three);
}

int main(int argc, char **argv)
{
    int64_t sizes[4] = {0};
    for (int i = 0; i < 4 && i + 4 < argc; i++) sizes[i] = atoll(argv[i + 4]);
    bool attention = argc >= 8 && argc <= 11 && strcmp(argv[1], "attention") == 0;
    bool head = argc == 7 && strcmp(argv[1], "head") == 0;
    bool projections = argc == 6 && strcmp(argv[1], "projections") == 0;
    bool sized = sizes[0] > 0 && sizes[1] > 0 && (projections || sizes[2] > 0) &&
                 (!attention || sizes[3] > 0);
    if ((!attention && !head && !projections) || !sized) {
        fprintf(stderr,
                "usage: %s attention THREADS SECONDS BATCH HEADS TIME HEAD_DIM [DROPOUT [DOCUMENT "
                "[WINDOW]]]\n"
                "       %s head THREADS SECONDS ROWS COLUMNS CLASSES\n"
                "       %s projections THREADS SECONDS ROWS WIDTH\n",
                argv[0], argv[0], argv[0]);
        return 2;
    }
    int threads = atoi(argv[2]);
    kernels_set_threads(threads);
    timer.clock = threads > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID;
    timer.seconds = atof(argv[3]);
    if (attention)
        measure_attention(sizes[0], sizes[1], sizes[2], sizes[3], argc > 8 ? atof(argv[8]) : 0,
                          argc > 9 ? atoll(argv[9]) : 0, argc > 10 ? atoll(argv[10]) : 0);
    else if (head) measure_head(sizes[0], sizes[1], sizes[2]);
    else measure_projections(sizes[0], sizes[1]);
    return 0;
}
