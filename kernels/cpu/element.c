/*
 * Element-wise ops, and sums over leading dimensions: one loop over memory, split into one part per
 * thread. bf16 is converted in small blocks of f32 on the stack.
 */
#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { BLOCK = 512, ELEMENT_INPUTS = 3, ELEMENT_OUTPUTS = 2 };

struct element_job {
    const struct op_desc *desc;
    const struct kernel_call *call;
    size_t period; /* length of the operand that repeats, or of all */
};

/* Whether it is a GELU by its approximation; another op's attributes are in the same place. */
static bool is_approximate(const struct op_desc *desc)
{
    bool gelu = desc->kind == OP_GELU || desc->kind == OP_GELU_BACKWARD ||
                desc->kind == OP_GELU_MUL || desc->kind == OP_GELU_MUL_BACKWARD;
    return gelu && desc->attrs.gelu.tanh;
}

/* Runs the op on n elements of each operand, in f32. */
static void apply(const struct op_desc *desc, size_t n, float *const *to, const float *const *from)
{
    const struct cpu_loops *loops = cpu_loops_get();
    bool add = desc->accumulate[0], tanh = is_approximate(desc);
    float factor = (float)desc->attrs.scale.factor, offset = (float)desc->attrs.scale.offset;
    switch (desc->kind) {
    case OP_RELU: loops->relu(n, to[0], from[0], add); break;
    case OP_RELU_BACKWARD: loops->relu_backward(n, to[0], from[0], from[1], add); break;
    case OP_MUL: loops->mul(n, to[0], from[0], from[1], add); break;
    case OP_GELU: loops->gelu(n, to[0], from[0], tanh, add); break;
    case OP_GELU_BACKWARD: loops->gelu_backward(n, to[0], from[0], from[1], tanh, add); break;
    case OP_TANH: loops->tanh(n, to[0], from[0], add); break;
    case OP_TANH_BACKWARD: loops->tanh_backward(n, to[0], from[0], from[1], add); break;
    case OP_SCALE: loops->affine(n, to[0], from[0], factor, offset, add); break;
    case OP_RECIPROCAL: loops->reciprocal(n, to[0], from[0], factor, add); break;
    case OP_DIV: loops->div(n, to[0], from[0], from[1], add); break;
    case OP_DIV_BACKWARD: loops->div_backward(n, to[0], from[0], from[1], from[2], add); break;
    case OP_SIGMOID: loops->sigmoid(n, to[0], from[0], add); break;
    case OP_SIGMOID_BACKWARD: loops->sigmoid_backward(n, to[0], from[0], from[1], add); break;
    case OP_SQUARED_RELU: loops->squared_relu(n, to[0], from[0], add); break;
    case OP_SQUARED_RELU_BACKWARD:
        loops->squared_relu_backward(n, to[0], from[0], from[1], add);
        break;
    case OP_FUNCTION:
        loops->function(n, to[0], from[0], (int)desc->attrs.function.kind,
                        (float)desc->attrs.function.parameter, add);
        break;
    case OP_FUNCTION_BACKWARD:
        loops->function_backward(n, to[0], from[0], from[1], (int)desc->attrs.function.kind,
                                 (float)desc->attrs.function.parameter, add);
        break;
    case OP_SILU: loops->silu(n, to[0], from[0], add); break;
    case OP_SILU_BACKWARD: loops->silu_backward(n, to[0], from[0], from[1], add); break;
    case OP_SILU_MUL: loops->silu_mul(n, to[0], from[0], from[1], add); break;
    case OP_GELU_MUL: loops->gelu_mul(n, to[0], from[0], from[1], tanh, add); break;
    case OP_GELU_MUL_BACKWARD:
        loops->gelu_mul_backward(n, to[0], to[1], from[0], from[1], from[2], tanh, add,
                                 desc->accumulate[1]);
        break;
    case OP_SILU_MUL_BACKWARD:
        loops->silu_mul_backward(n, to[0], to[1], from[0], from[1], from[2], add,
                                 desc->accumulate[1]);
        break;
    default: loops->add(n, to[0], from[0], from[1], add); break;
    }
}

/* The offset of an input's element `begin`; the last operand of a sum, a product or a quotient may
 * repeat. */
static size_t place(const struct element_job *job, int input, size_t begin)
{
    bool repeats = input > 0 && input == job->desc->input_count - 1;
    return repeats ? begin % job->period : begin;
}

/* The number of elements that are contiguous in all operands. */
static size_t run_length(const struct element_job *job, size_t begin, size_t end)
{
    size_t left = job->period - begin % job->period;
    return end - begin < left ? end - begin : left;
}

static void part_f32(const void *argument, size_t begin, size_t end)
{
    const struct element_job *job = argument;
    const struct op_desc *desc = job->desc;
    while (begin < end) {
        size_t n = run_length(job, begin, end);
        const float *from[ELEMENT_INPUTS] = {0};
        float *to[ELEMENT_OUTPUTS] = {0};
        for (int i = 0; i < desc->input_count; i++)
            from[i] = (const float *)job->call->inputs[i] + place(job, i, begin);
        for (int i = 0; i < desc->output_count; i++) to[i] = (float *)job->call->outputs[i] + begin;
        apply(desc, n, to, from);
        begin += n;
    }
}

static void part_bf16(const void *argument, size_t begin, size_t end)
{
    const struct element_job *job = argument;
    const struct op_desc *desc = job->desc;
    const struct cpu_loops *loops = cpu_loops_get();
    _Alignas(64) float blocks[ELEMENT_INPUTS + ELEMENT_OUTPUTS][BLOCK];
    const float *from[] = {blocks[0], blocks[1], blocks[2]};
    float *to[] = {blocks[3], blocks[4]};
    while (begin < end) {
        size_t n = run_length(job, begin, end < begin + BLOCK ? end : begin + BLOCK);
        for (int i = 0; i < desc->input_count; i++)
            loops->bf16_to_f32(n, blocks[i],
                               (const uint16_t *)job->call->inputs[i] + place(job, i, begin));
        apply(desc, n, to, from);
        for (int i = 0; i < desc->output_count; i++)
            loops->f32_to_bf16(n, (uint16_t *)job->call->outputs[i] + begin, to[i]);
        begin += n;
    }
}

void cpu_run_element(const struct op_desc *desc, int threads, const struct kernel_call *call)
{
    size_t count = (size_t)tensor_element_count(&desc->outputs[0]);
    size_t period = (size_t)tensor_element_count(&desc->inputs[desc->input_count - 1]);
    struct element_job job = {desc, call, period};
    bool is_bf16 = desc->outputs[0].dtype == DTYPE_BF16;
    cpu_parallel(threads, count, CPU_GRAIN, is_bf16 ? part_bf16 : part_f32, &job);
}

static status_t run_element(const struct kernel *kernel, const struct kernel_call *call)
{
    cpu_run_element(&kernel->desc, kernel->threads, call);
    return NULL;
}

/* Whether elements of the same index have the same offset in all operands, except one that
 * repeats. */
static bool same_places(const struct op_desc *desc)
{
    const struct tensor_type *y = &desc->outputs[0];
    for (int i = 0; i < desc->input_count; i++) {
        bool broadcast = desc->inputs[i].dim_count < y->dim_count;
        if (broadcast ? !cpu_is_plain(y) : !cpu_same_order(&desc->inputs[i], y)) return false;
    }
    return true;
}

status_t cpu_prepare_element(struct kernel *kernel)
{
    if (same_places(&kernel->desc)) {
        kernel->run = run_element;
        return NULL;
    }
    return cpu_leave_to_reference(kernel);
}

/* Sums some columns over leading dimensions; each thread has its own. */
static void sum_part(const void *argument, size_t begin, size_t end)
{
    const struct element_job *job = argument;
    const struct op_desc *desc = job->desc;
    const struct cpu_loops *loops = cpu_loops_get();
    size_t columns = job->period, rows = (size_t)tensor_element_count(&desc->inputs[0]) / columns;
    if (desc->inputs[0].dtype == DTYPE_F32) {
        loops->sum_columns(rows, end - begin, columns, (float *)job->call->outputs[0] + begin,
                           (const float *)job->call->inputs[0] + begin, desc->accumulate[0]);
        return;
    }
    _Alignas(64) float sums[BLOCK];
    for (; begin < end; begin += BLOCK) {
        size_t n = end - begin < BLOCK ? end - begin : BLOCK;
        loops->sum_columns_bf16(rows, n, columns, sums,
                                (const uint16_t *)job->call->inputs[0] + begin, false);
        loops->f32_to_bf16(n, (uint16_t *)job->call->outputs[0] + begin, sums);
    }
}

static status_t run_sum_leading(const struct kernel *kernel, const struct kernel_call *call)
{
    size_t count = (size_t)tensor_element_count(&kernel->desc.inputs[0]);
    size_t columns = (size_t)tensor_element_count(&kernel->desc.outputs[0]);
    struct element_job job = {&kernel->desc, call, columns};
    size_t rows = count / columns, grain = (CPU_GRAIN + rows - 1) / rows;
    cpu_parallel(kernel->threads, columns, round_up(grain, 64), sum_part, &job);
    return NULL;
}

status_t cpu_prepare_sum_leading(struct kernel *kernel)
{
    kernel->run = run_sum_leading;
    return NULL;
}
