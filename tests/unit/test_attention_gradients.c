/*
 * Gradients of attention, of rotary positions and of the fused head: the reference's against
 * slopes, central differences of its own forward pass.
 */
#include "attention_fixture.h"
#include "tests/testing.h"

static double weighted_output(const struct world *world, int output, const float *weighting)
{
    world_run(world, KERNELS_REFERENCE);
    double sum = 0;
    int64_t count = tensor_element_count(&world->desc.outputs[output]);
    for (int64_t i = 0; i < count; i++)
        sum += (double)(weighting != NULL ? weighting[i] : 1) * output_of(world, output)[i];
    return sum;
}

/* Slopes of the weighted sum of an output, along each element of an input (or every few). */
static void check_slopes(const struct world *world, int input, const float *gradient,
                         const float *weighting)
{
    int64_t count = tensor_element_count(&world->desc.inputs[input]);
    double largest = 0.1;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(gradient[i]));
    for (int64_t i = 0; i < count; i += 1 + count / 150) {
        float *value = input_of(world, input) + i, kept = *value;
        double slopes[2];
        for (int halved = 0; halved < 2; halved++) { /* extrapolated: the error is of order h^4 */
            float step = halved ? 0.015625f : 0.03125f;
            *value = kept + step;
            double above = weighted_output(world, 0, weighting), width = *value;
            *value = kept - step;
            width -= *value;
            slopes[halved] = (above - weighted_output(world, 0, weighting)) / width;
            *value = kept;
        }
        double slope = (4 * slopes[1] - slopes[0]) / 3;
        ck_assert_msg(fabs(slope - gradient[i]) <= 1e-4 * largest,
                      "%s: the gradient of %s at %lld is %g, the slope %g",
                      op_info_get(world->desc.kind)->name,
                      op_info_get(world->desc.kind)->inputs[input].name, (long long)i, gradient[i],
                      slope);
    }
}

TESTS_BELOW(.timeout = 300);

LOOP_TEST(attention_slopes, 0, 17)
{
    static const struct attention_case cases[] = {
        {2, 5, 2, 1, 3, .packed = true, .causal = true},
        {1, 6, 1, 3, 4, .causal = true, .scale = 0.9},
        {2, 4, 1, 2, 5, .packed = true, .masked = true},
        {2, 5, 2, 2, 2, .masked = true, .causal = true, .p = 0.3},
        {1, 7, 1, 1, 4, .p = 0.5, .scale = 2},
        {1, 9, 2, 1, 3, .causal = true, .window = 3},
        {2, 9, 1, 2, 3, .packed = true, .window = 3},
        {1, 8, 1, 1, 4, .masked = true, .p = 0.3, .window = 2, .documents = true},
        {2, 5, 1, 2, 4, .packed = true, .scale = 1.5, .softcap = 0.8},
        {1, 7, 1, 2, 3, .causal = true, .masked = true, .window = 2, .softcap = 1.5},
        {2, 7, 1, 2, 3, .packed = true, .causal = true, .documents = true},
        {2, 7, 2, 1, 3, .masked = true, .p = 0.3, .documents = true},
        {2, 5, 1, 2, 3, .packed = true, .biased = true},
        {1, 6, 2, 1, 3, .masked = true, .p = 0.3, .softcap = 1.5, .biased = true},
        {2, 7, 1, 2, 3, .causal = true, .window = 3, .documents = true, .biased = true},
        {2, 7, 1, 3, 2, .packed = true, .causal = true, .documents = true, .alibi = 8},
        {1, 7, 3, 1, 4, .causal = true, .softcap = 1.5, .alibi = 3, .rounded = true},
    };
    struct random random = {(uint64_t)_i + 77};
    struct world forward = {0}, backward = {0};
    fill_attention(&random, &forward, &cases[_i]);
    world_run(&forward, KERNELS_REFERENCE);
    fill_attention_backward(&random, &backward, &forward);
    world_run(&backward, KERNELS_REFERENCE);
    for (int i = 0; i < 3; i++)
        if (forward.desc.input_present[i])
            check_slopes(&forward, i, output_of(&backward, i), input_of(&backward, 0));
    if (cases[_i].biased)
        check_slopes(&forward, 4, output_of(&backward, 3), input_of(&backward, 0));
    world_free(&forward);
    world_free(&backward);
}

LOOP_TEST(rope_slopes, 0, 6)
{
    struct random random = {(uint64_t)_i + 770};
    struct world forward = {0};
    fill_rope(&random, &forward, OP_ROPE);
    struct world backward = {.desc = forward.desc};
    backward.desc.kind = OP_ROPE_BACKWARD;
    world_fill(&random, &backward);
    if (backward.desc.input_present[1])
        memcpy(backward.inputs[1].memory, forward.inputs[1].memory, forward.inputs[1].bytes);
    world_run(&backward, KERNELS_REFERENCE);
    check_slopes(&forward, 0, output_of(&backward, 0), input_of(&backward, 0));
    world_free(&forward);
    world_free(&backward);
}

LOOP_TEST(head_slopes, 0, 4)
{
    struct random random = {(uint64_t)_i + 7700};
    struct world forward = {.desc = desc_of(OP_LINEAR_CROSS_ENTROPY)};
    struct world backward = {.desc = desc_of(OP_LINEAR_CROSS_ENTROPY_BACKWARD)};
    struct op_desc *desc = &forward.desc;
    desc->attrs.loss.reduction = _i % 2 ? REDUCTION_SUM : REDUCTION_MEAN;
    desc->inputs[0] = type_of(DTYPE_F32, 3, 2, 3, 4, 0);
    desc->inputs[1] = type_of(DTYPE_F32, 2, 7, 4, 0, 0);
    desc->inputs[2] = type_of(DTYPE_F32, 1, 7, 0, 0, 0);
    desc->inputs[3] = type_of(DTYPE_I32, 2, 2, 3, 0, 0);
    desc->outputs[0] = desc->outputs[1] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    world_fill(&random, &forward);
    fill_targets(&random, &forward);
    backward.desc.attrs = desc->attrs;
    memcpy(backward.desc.inputs, desc->inputs, sizeof desc->inputs);
    backward.desc.outputs[0] = desc->outputs[0];
    for (int i = 0; i < 3; i++) backward.desc.outputs[1 + i] = desc->inputs[i];
    world_fill(&random, &backward);
    for (int i = 0; i < 4; i++)
        memcpy(backward.inputs[i].memory, forward.inputs[i].memory, forward.inputs[i].bytes);
    world_run(&backward, KERNELS_REFERENCE);
    world_run(&forward, KERNELS_REFERENCE);
    ck_assert_float_eq(output_of(&backward, 0)[0], output_of(&forward, 0)[0]);
    for (int i = 0; i < 3; i++) check_slopes(&forward, i, output_of(&backward, 1 + i), NULL);
    world_free(&forward);
    world_free(&backward);
}
