/* Timing of ops; see time_op.h. */
#include "time_op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_RUNS = 100000 };

/* Not the optional operands of fused activations and of rows of several documents. */
static bool usual(const struct op_operand *operand)
{
    return strcmp(operand->name, "starts") != 0 && strcmp(operand->name, "preactivation") != 0;
}

struct op_desc whole_op(enum op_kind kind)
{
    const struct op_info *info = op_info_get(kind);
    struct op_desc desc = {.kind = kind,
                           .input_count = info->input_count,
                           .output_count = info->output_count};
    for (int i = 0; i < info->input_count; i++)
        desc.input_present[i] = usual(&info->inputs[i]);
    for (int i = 0; i < info->output_count; i++) desc.output_present[i] = usual(&info->outputs[i]);
    return desc;
}

void *operand_new(const struct tensor_type *type, int64_t largest_index)
{
    uint64_t bytes = round_up(tensor_bytes(type), 64);
    void *memory = aligned_alloc(64, bytes);
    if (memory == NULL) abort();
    memset(memory, 0, bytes);
    int64_t count = tensor_element_count(type);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)(rand() % 2001 - 1000) / 1000;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (type->dtype == DTYPE_F32) ((float *)memory)[i] = value;
        if (type->dtype == DTYPE_BF16) ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
        if (type->dtype == DTYPE_I32 && largest_index > 0)
            ((int32_t *)memory)[i] = (int32_t)(rand() % largest_index);
    }
    return memory;
}

static void *starts_new(const struct tensor_type *type, int64_t document)
{
    int32_t *starts = operand_new(type, 0);
    for (int64_t i = 0; i < tensor_element_count(type); i++)
        starts[i] = (int32_t)(i % type->dims[1] / document * document);
    return starts;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct op_times times_of(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, compare_doubles);
    return (struct op_times){.best_us = times[0], .median_us = times[count / 2]};
}

double clock_us(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

struct op_times time_op(const struct op_timer *timer, const struct op_desc *desc)
{
    struct kernel *kernel;
    status_t status = kernel_new(KERNELS_CPU, desc, &kernel);
    if (status != NULL) {
        fprintf(stderr, "%s: %s\n", op_info_get(desc->kind)->name, status_message(status));
        exit(1);
    }
    struct kernel_call call = {.seed = 1};
    for (int i = 0; i < desc->input_count; i++)
        if (desc->input_present[i])
            call.inputs[i] = strcmp(op_info_get(desc->kind)->inputs[i].name, "starts") == 0
                                 ? starts_new(&desc->inputs[i], timer->document)
                                 : operand_new(&desc->inputs[i], timer->largest_index);
    for (int i = 0; i < desc->output_count; i++)
        if (desc->output_present[i])
            call.outputs[i] = operand_new(&desc->outputs[i], timer->largest_index);
    uint64_t workspace = kernel_workspace_bytes(kernel);
    call.workspace = aligned_alloc(64, (workspace + 127) / 64 * 64);
    static double times[MAX_RUNS];
    int count = 0;
    status_free(kernel_run(kernel, &call)); /* warm-up */
    double end = clock_us(CLOCK_MONOTONIC) + timer->seconds * 1e6;
    do {
        double start = clock_us(timer->clock);
        if (kernel_run(kernel, &call) != NULL) abort();
        times[count++] = clock_us(timer->clock) - start;
    } while (count < MAX_RUNS && clock_us(CLOCK_MONOTONIC) < end);
    for (int i = 0; i < desc->input_count; i++) free((void *)call.inputs[i]);
    for (int i = 0; i < desc->output_count; i++) free(call.outputs[i]);
    free(call.workspace);
    kernel_free(kernel);
    struct op_times result = times_of(times, count);
    result.workspace_bytes = workspace;
    return result;
}
