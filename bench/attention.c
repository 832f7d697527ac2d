/*
 * Times attention, or the fused head, on random operands: the best and the median run of the op and
 * of its backward op, in microseconds, GFLOP/s of the best, and the workspace in bytes. On one
 * thread it is processor time, which what else the machine does disturbs less. bench/attention.py
 * compares with PyTorch.
 *
 *     bench/attention attention THREADS SECONDS BATCH HEADS TIME HEAD_DIM [DROPOUT]
 *     bench/attention head THREADS SECONDS ROWS COLUMNS CLASSES
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

enum { MAX_RUNS = 100000 };

static double seconds;
static clockid_t clock_used;
static int64_t largest_index = 1;

static struct op_desc desc_of(enum op_kind kind)
{
    const struct op_info *info = op_info_get(kind);
    struct op_desc desc = {.kind = kind,
                           .input_count = info->input_count,
                           .output_count = info->output_count};
    for (int i = 0; i < info->input_count; i++) desc.input_present[i] = true;
    for (int i = 0; i < info->output_count; i++) desc.output_present[i] = true;
    return desc;
}

static void *operand_new(const struct tensor_type *type)
{
    uint64_t bytes = (tensor_bytes(type) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (memory == NULL) abort();
    memset(memory, 0, bytes);
    int64_t count = tensor_element_count(type);
    for (int64_t i = 0; i < count; i++) {
        if (type->dtype == DTYPE_F32) ((float *)memory)[i] = (float)(rand() % 2001 - 1000) / 1000;
        if (type->dtype == DTYPE_I32) ((int32_t *)memory)[i] = rand() % (int)largest_index;
    }
    return memory;
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(clock_used, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct op_desc *desc)
{
    struct kernel *kernel;
    status_t status = kernel_new(KERNELS_CPU, desc, &kernel);
    if (status != NULL) {
        fprintf(stderr, "%s\n", status_message(status));
        exit(1);
    }
    struct kernel_call call = {.seed = 1};
    for (int i = 0; i < desc->input_count; i++)
        if (desc->input_present[i]) call.inputs[i] = operand_new(&desc->inputs[i]);
    for (int i = 0; i < desc->output_count; i++)
        if (desc->output_present[i]) call.outputs[i] = operand_new(&desc->outputs[i]);
    uint64_t workspace = kernel_workspace_bytes(kernel);
    call.workspace = aligned_alloc(64, (workspace + 127) / 64 * 64);
    static double times[MAX_RUNS];
    int count = 0;
    status_free(kernel_run(kernel, &call)); /* warms up */
    double end = now_us() + seconds * 1e6;
    do {
        double start = now_us();
        if (kernel_run(kernel, &call) != NULL) abort();
        times[count++] = now_us() - start;
    } while (count < MAX_RUNS && now_us() < end);
    qsort(times, (size_t)count, sizeof *times, compare_doubles);
    printf("%s %.1f %.1f %.1f %llu\n", op_info_get(desc->kind)->name, times[0], times[count / 2],
           op_desc_flops(desc) / times[0] / 1e3, (unsigned long long)workspace);
    for (int i = 0; i < OP_MAX_INPUTS; i++) free((void *)call.inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) free(call.outputs[i]);
    free(call.workspace);
    kernel_free(kernel);
}

static struct tensor_type type_of(enum dtype dtype, int dim_count, int64_t a, int64_t b, int64_t c)
{
    return tensor_type_make(dtype, dim_count, (int64_t[]){a, b, c});
}

/* Causal, on q, k and v side by side. */
static void measure_attention(int64_t batch, int64_t heads, int64_t time, int64_t head_dim,
                              double dropout)
{
    int64_t width = heads * head_dim;
    struct op_desc desc = desc_of(OP_ATTENTION);
    desc.attrs.attention.heads = desc.attrs.attention.kv_heads = heads;
    desc.attrs.attention.causal = true;
    desc.attrs.attention.p = dropout;
    desc.input_present[1] = desc.input_present[2] = desc.input_present[3] = false;
    desc.inputs[0] = type_of(DTYPE_F32, 3, batch, time, 3 * width);
    desc.outputs[0] = type_of(DTYPE_F32, 3, batch, time, width);
    desc.outputs[1] = type_of(DTYPE_F32, 3, batch, heads, time);
    measure(&desc);
    struct op_desc backward = desc_of(OP_ATTENTION_BACKWARD);
    backward.attrs = desc.attrs;
    backward.inputs[0] = backward.inputs[4] = desc.outputs[0];
    backward.inputs[1] = backward.outputs[0] = desc.inputs[0];
    backward.inputs[5] = desc.outputs[1];
    backward.input_present[2] = backward.input_present[3] = backward.input_present[6] = false;
    backward.output_present[1] = backward.output_present[2] = false;
    measure(&backward);
}

static void measure_head(int64_t rows, int64_t columns, int64_t classes)
{
    largest_index = classes;
    struct op_desc desc = desc_of(OP_LINEAR_CROSS_ENTROPY);
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
    backward.output_present[2] = true;
    measure(&backward);
}

int main(int argc, char **argv)
{
    int64_t sizes[4] = {0};
    for (int i = 0; i < 4 && i + 4 < argc; i++) sizes[i] = atoll(argv[i + 4]);
    bool attention = (argc == 8 || argc == 9) && strcmp(argv[1], "attention") == 0;
    bool head = argc == 7 && strcmp(argv[1], "head") == 0;
    bool sized = sizes[0] > 0 && sizes[1] > 0 && sizes[2] > 0 && (head || sizes[3] > 0);
    if ((!attention && !head) || !sized) {
        fprintf(stderr,
                "usage: %s attention THREADS SECONDS BATCH HEADS TIME HEAD_DIM [DROPOUT]\n"
                "       %s head THREADS SECONDS ROWS COLUMNS CLASSES\n",
                argv[0], argv[0]);
        return 2;
    }
    int threads = atoi(argv[2]);
    kernels_set_threads(threads);
    clock_used = threads > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID;
    seconds = atof(argv[3]);
    if (attention)
        measure_attention(sizes[0], sizes[1], sizes[2], sizes[3], argc > 8 ? atof(argv[8]) : 0);
    else measure_head(sizes[0], sizes[1], sizes[2]);
    return 0;
}
