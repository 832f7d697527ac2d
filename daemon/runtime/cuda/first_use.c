/*
 * The first use of a plan of cuDNN's checks it: before a run, once for each shape, the library and
 * our own kernel compute the same small block, and their results are compared. The plan computes
 * the whole shape of the job, of which only the first sample is not zero; our kernel computes that
 * sample. An engine that gives wrong numbers on some device or in some version would otherwise
 * train in silence. A refused plan is named in the device's notes, and our own kernel runs the op.
 *
 * Plans for the planner are not compared: the device may be in use.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/bfloat16.h"
#include "runtime/cuda/device_cuda.h"

/* Differences are taken over runs of that many elements, relative to their size, or to a part of
 * the usual size where they are small. Sums of bf16 differ by up to a hundredth. */
enum { RUN = 256 };
#define MOST_DIFFERENCE 0.05
#define MOST_DIFFERENCE_F32 0.005
#define SMALLEST_SIZE 0.25

/* Of our kernel: a second or so. */
#define MOST_FLOPS 4e12

/* ---- the block ---- */

static bool is_attention(const struct op_desc *desc)
{
    return desc->kind == OP_ATTENTION || desc->kind == OP_ATTENTION_BACKWARD;
}

static bool is_batched(const struct op_desc *desc, bool input, int index)
{
    if (is_attention(desc)) return true;
    return desc->kind == OP_CONV2D_BACKWARD_WEIGHTS ? input : index == 0;
}

/* The op on the first sample alone. */
static struct op_desc first_sample_of(const struct op_desc *desc)
{
    struct op_desc first = *desc;
    for (int i = 0; i < desc->input_count; i++)
        if (desc->input_present[i] && is_batched(desc, true, i)) first.inputs[i].dims[0] = 1;
    for (int i = 0; i < desc->output_count; i++)
        if (desc->output_present[i] && is_batched(desc, false, i)) first.outputs[i].dims[0] = 1;
    return first;
}

/* Both computations; their memory, of the device. */
struct comparison {
    const struct op_desc *desc;
    struct op_desc first;
    struct cuda_prepared *prepared, *own;
    struct kernel_call call, own_call;
    cudaStream_t stream;
    char *memory;
    size_t bytes;
};

static void *take(struct comparison *c, uint64_t bytes)
{
    void *at = (void *)((uintptr_t)c->memory + c->bytes); /* of NULL: memory is counted */
    c->bytes += round_up(bytes, 256);
    return at;
}

static void place(struct comparison *c)
{
    c->bytes = 0;
    for (int i = 0; i < c->desc->input_count; i++)
        if (c->desc->input_present[i])
            c->call.inputs[i] = c->own_call.inputs[i] = take(c, tensor_bytes(&c->desc->inputs[i]));
    for (int i = 0; i < c->desc->output_count; i++) {
        if (!c->desc->output_present[i]) continue;
        c->call.outputs[i] = take(c, tensor_bytes(&c->desc->outputs[i]));
        c->own_call.outputs[i] = take(c, tensor_bytes(&c->first.outputs[i]));
    }
    c->call.workspace = take(c, c->prepared->workspace_bytes);
    c->own_call.workspace = take(c, c->own->workspace_bytes);
}

/* From -1 to 1. */
static float next_value(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

/* Of an input's first sample. A log-sum-exp is about that of equal scores; every eighth key is
 * hidden. */
static void *make_values(const struct comparison *c, int input)
{
    const struct tensor_type *type = &c->first.inputs[input];
    int64_t count = tensor_element_count(type);
    bool lse = c->desc->kind == OP_ATTENTION_BACKWARD && input == 5;
    float usual = lse ? logf((float)type->dims[2]) : 0;
    uint64_t state = (uint64_t)input + 1;
    void *values = mem_alloc(tensor_bytes(type) + 1);
    for (int64_t i = 0; i < count; i++) {
        float value = lse ? usual : next_value(&state);
        if (type->dtype == DTYPE_BF16) ((uint16_t *)values)[i] = bfloat16_from_f32(value);
        else if (type->dtype == DTYPE_F32) ((float *)values)[i] = value;
        else if (type->dtype == DTYPE_U8) ((uint8_t *)values)[i] = i % 8 != 5;
    }
    return values;
}

static status_t fill(const struct comparison *c)
{
    TRY_CUDA(cudaMemsetAsync(c->memory, 0, c->bytes, c->stream));
    for (int i = 0; i < c->desc->input_count; i++) {
        if (!c->desc->input_present[i]) continue;
        AUTO_FREE void *values = make_values(c, i);
        TRY_CUDA(cudaMemcpyAsync((void *)c->call.inputs[i], values,
                                 tensor_bytes(&c->first.inputs[i]), cudaMemcpyHostToDevice,
                                 c->stream));
        TRY_CUDA(cudaStreamSynchronize(c->stream));
    }
    return NULL;
}

/* ---- its results ---- */

/* Of one output; negative: there is no difference worth mention. */
struct difference {
    double relative;
    int64_t element;
};

static struct difference compare_values(const struct tensor_type *type, const void *values,
                                        const void *expected, double most)
{
    struct difference found = {-1, 0};
    int64_t count = tensor_element_count(type);
    double usual = 0;
    for (int pass = 0; pass < 2; pass++) /* the first one finds the usual size */
        for (int64_t i = 0; i < count; i += RUN) {
            double size = 0, apart = 0;
            for (int64_t j = i; j < i + RUN && j < count; j++) {
                bool wide = type->dtype == DTYPE_F32;
                double a = wide ? ((const float *)values)[j]
                                : bfloat16_to_f32(((const uint16_t *)values)[j]);
                double b = wide ? ((const float *)expected)[j]
                                : bfloat16_to_f32(((const uint16_t *)expected)[j]);
                if (isinf(b) && a == b) continue; /* rows that see no key */
                size += b * b;
                apart += (a - b) * (a - b);
            }
            if (pass == 0) usual += size / ((double)(count + RUN - 1) / RUN);
            double least = SMALLEST_SIZE * SMALLEST_SIZE * usual;
            double relative = sqrt(apart / (size > least ? size : least > 0 ? least : 1));
            if (pass == 0 || relative <= most || relative <= found.relative) continue;
            found = (struct difference){relative, i};
        }
    return found;
}

static status_t compare_output(const struct comparison *c, int output)
{
    const struct tensor_type *type = &c->first.outputs[output];
    uint64_t bytes = tensor_bytes(type);
    double most = c->desc->inputs[0].dtype == DTYPE_F32 ? MOST_DIFFERENCE_F32 : MOST_DIFFERENCE;
    AUTO_FREE void *values = mem_alloc(bytes);
    AUTO_FREE void *expected = mem_alloc(bytes);
    TRY_CUDA(cudaMemcpyAsync(values, c->call.outputs[output], bytes, cudaMemcpyDeviceToHost,
                             c->stream));
    TRY_CUDA(cudaMemcpyAsync(expected, c->own_call.outputs[output], bytes, cudaMemcpyDeviceToHost,
                             c->stream));
    TRY_CUDA(cudaStreamSynchronize(c->stream));
    struct difference found = compare_values(type, values, expected, most);
    if (found.relative < 0) return NULL;
    return status_new(STATUS_UNIMPLEMENTED,
                      "cuDNN's result %s differs from that of fsdpd's own kernel by %.3g of its "
                      "size at element %lld of a sample",
                      op_info_get(c->desc->kind)->outputs[output].name, found.relative,
                      (long long)found.element);
}

static status_t run_both(struct comparison *c, struct cuda_lane *lane)
{
    TRY(c->prepared->run(c->prepared, lane, &c->call));
    TRY(c->own->run(c->own, lane, &c->own_call));
    for (int i = 0; i < c->desc->output_count; i++)
        if (c->desc->output_present[i]) TRY(compare_output(c, i));
    return NULL;
}

static status_t compare_on(struct comparison *c, struct cuda_device *device)
{
    struct cuda_lane lane = {.base.device = &device->base, .beside = -1};
    place(c);
    TRY_CUDA(cudaMalloc((void **)&c->memory, c->bytes));
    place(c);
    TRY_CUDA(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    lane.stream = c->stream;
    TRY(fill(c));
    return run_both(c, &lane);
}

static status_t compare(struct cuda_device *device, const struct op_desc *desc,
                        struct cuda_prepared *prepared)
{
    struct comparison c = {.desc = desc, .first = first_sample_of(desc), .prepared = prepared};
    if (op_desc_flops(&c.first) > MOST_FLOPS)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "a sample is too long");
    TRY(cuda_prepare_own(&c.first, &c.own));
    status_t status = compare_on(&c, device);
    if (c.stream != NULL) cudaStreamSynchronize(c.stream);
    if (c.stream != NULL) cudaStreamDestroy(c.stream);
    cuda_release(c.memory);
    cuda_unprepare(c.own);
    return status;
}

status_t cuda_first_use(struct cuda_device *device, struct cuda_planned *planned,
                        struct cuda_prepared *prepared)
{
    const struct op_desc *desc = &prepared->op.desc;
    const char *name = op_info_get(desc->kind)->name;
    if (planned->compared || !device->base.may_time ||
        cuda_is_switched("FSDPD_CUDA_COMPARE", "off"))
        return NULL;
    status_t status = compare(device, desc, prepared);
    enum status_code code = status_code(status);
    if (code != STATUS_OK && code != STATUS_UNIMPLEMENTED && code != STATUS_RESOURCE_EXHAUSTED)
        return status_wrap(status, "the first use of cuDNN's %s", name);
    planned->compared = true;
    if (code == STATUS_UNIMPLEMENTED) {
        planned->refused = code;
        planned->refusal = mem_strdup(status_message(status));
        return status;
    }
    if (code == STATUS_RESOURCE_EXHAUSTED)
        cuda_note(device, "%s of cuDNN was not compared with fsdpd's own kernel: %s", name,
                  status_message(status));
    else cuda_note(device, "cuDNN's results of this job's shapes agree with fsdpd's own kernels");
    status_free(status);
    return NULL;
}
