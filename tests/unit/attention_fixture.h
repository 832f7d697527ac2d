/*
 * Shared by the tests of attention, rotary positions and the fused head: an op with memory for its
 * operands, and descriptions of attention. Everything is static; a test uses what it needs.
 */
#ifndef FSDPD_TESTS_ATTENTION_FIXTURE_H
#define FSDPD_TESTS_ATTENTION_FIXTURE_H

#include "kernel_fixture.h"

/* An op with memory for its operands. */
struct world {
    struct op_desc desc;
    struct area inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS];
    uint64_t seed, step, first_sample;
    uint32_t rank;
    double tolerance; /* in addition to that of any sum */
};

static struct kernel_call call_of(const struct world *world)
{
    struct kernel_call call = {.seed = world->seed,
                               .step = world->step,
                               .rank = world->rank,
                               .first_sample = world->first_sample,
                               .sample_elements = 7};
    for (int i = 0; i < OP_MAX_INPUTS; i++) call.inputs[i] = world->inputs[i].memory;
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) call.outputs[i] = world->outputs[i].memory;
    return call;
}

static float *input_of(const struct world *world, int input)
{
    return (float *)world->inputs[input].memory;
}

static float *output_of(const struct world *world, int output)
{
    return (float *)world->outputs[output].memory;
}

/* Allocates memory for present operands without any; inputs in f32 are random, outputs NaN. */
static void world_fill(struct random *random, struct world *world)
{
    struct op_desc *desc = &world->desc;
    ck_assert_status_ok(op_desc_check(desc));
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i] || world->inputs[i].base != NULL) continue;
        size_t shift = 4 * (size_t)random_between(random, 0, 1);
        world->inputs[i] = area_new(tensor_bytes(&desc->inputs[i]), shift);
        if (desc->inputs[i].dtype == DTYPE_F32)
            fill_random(random, input_of(world, i), tensor_element_count(&desc->inputs[i]));
    }
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        size_t shift = 4 * (size_t)random_between(random, 0, 1);
        world->outputs[i] = area_new(tensor_bytes(&desc->outputs[i]), shift);
    }
}

static void world_free(struct world *world)
{
    for (int i = 0; i < OP_MAX_INPUTS; i++) area_free(&world->inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) area_free(&world->outputs[i]);
}

static void world_run(const struct world *world, enum kernel_library library)
{
    run_once(library, &world->desc, call_of(world));
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        if (world->outputs[i].base != NULL)
            ck_assert_msg(area_edges_whole(&world->outputs[i]), "%s writes beyond output %d",
                          op_info_get(world->desc.kind)->name, i);
}

/* Attention. */

/* Padding before, after, anywhere, or everywhere. */
static void fill_mask(struct random *random, const struct world *world, int input)
{
    if (!world->desc.input_present[input]) return;
    uint8_t *mask = world->inputs[input].memory;
    int64_t batch = world->desc.inputs[input].dims[0], time = world->desc.inputs[input].dims[1];
    for (int64_t b = 0; b < batch; b++) {
        int64_t kind = random_between(random, 0, 5), edge = random_between(random, 0, time);
        for (int64_t j = 0; j < time; j++)
            mask[b * time + j] = (uint8_t)(kind == 0   ? j < edge
                                           : kind == 1 ? j >= edge
                                           : kind == 2 ? 0
                                           : kind == 3 ? j / 64 % 2 == edge % 2 /* whole blocks */
                                                       : random_bool(random));
    }
}

struct attention_case {
    int64_t batch, time, kv_heads, group, head_dim;
    bool packed, causal, masked;
    double p, scale;
    int64_t window;
    double softcap;
    bool documents; /* rows hold several: the op has starts */
    bool biased;
    double alibi;
    bool rounded;
};

static struct op_desc attention_desc(const struct attention_case *c)
{
    struct op_desc desc = desc_of(OP_ATTENTION);
    int64_t heads = c->kv_heads * c->group, q_width = heads * c->head_dim;
    int64_t kv_width = c->kv_heads * c->head_dim;
    desc.attrs.attention.heads = heads;
    desc.attrs.attention.kv_heads = c->kv_heads;
    desc.attrs.attention.causal = c->causal;
    desc.attrs.attention.scale = c->scale;
    desc.attrs.attention.window = c->window;
    desc.attrs.attention.softcap = c->softcap;
    desc.attrs.attention.alibi = c->alibi;
    desc.attrs.attention.rounded = c->rounded;
    desc.attrs.attention.p = c->p;
    desc.attrs.attention.stream = 5;
    desc.inputs[0] =
        type_of(DTYPE_F32, 3, c->batch, c->time, q_width + (c->packed ? 2 * kv_width : 0), 0);
    desc.inputs[1] = desc.inputs[2] = type_of(DTYPE_F32, 3, c->batch, c->time, kv_width, 0);
    desc.inputs[3] = type_of(DTYPE_U8, 2, c->batch, c->time, 0, 0);
    desc.input_present[1] = desc.input_present[2] = !c->packed;
    desc.inputs[4] = type_of(DTYPE_F32, 2, 2 * c->time - 1, heads, 0, 0);
    desc.inputs[5] = type_of(DTYPE_I32, 2, c->batch, c->time, 0, 0);
    desc.input_present[3] = c->masked;
    desc.input_present[4] = c->biased;
    desc.input_present[5] = c->documents;
    desc.outputs[0] = type_of(DTYPE_F32, 3, c->batch, c->time, q_width, 0);
    desc.outputs[1] = type_of(DTYPE_F32, 3, c->batch, heads, c->time, 0);
    desc.output_present[2] = desc.output_present[3] = false; /* no cache */
    return desc;
}

static struct op_desc attention_backward_desc(const struct op_desc *forward)
{
    struct op_desc desc = desc_of(OP_ATTENTION_BACKWARD);
    desc.attrs = forward->attrs;
    desc.inputs[0] = desc.inputs[4] = forward->outputs[0];
    desc.inputs[5] = forward->outputs[1];
    for (int i = 3; i < 6; i++) {
        desc.inputs[3 + i] = forward->inputs[i];
        desc.input_present[3 + i] = forward->input_present[i];
    }
    desc.outputs[3] = forward->inputs[4];
    desc.output_present[3] = forward->input_present[4];
    for (int i = 0; i < 3; i++) {
        desc.inputs[1 + i] = desc.outputs[i] = forward->inputs[i];
        desc.input_present[1 + i] = desc.output_present[i] = forward->input_present[i];
    }
    return desc;
}

/* The backward op of a world that ran: the same operands, its results, and a random dy. */
static void fill_attention_backward(struct random *random, struct world *world,
                                    const struct world *forward)
{
    world->desc = attention_backward_desc(&forward->desc);
    world->seed = forward->seed, world->step = forward->step, world->rank = forward->rank;
    world->first_sample = forward->first_sample;
    world->tolerance = 2 * forward->tolerance;
    world_fill(random, world);
    for (int i = 0; i < 3; i++)
        if (forward->desc.input_present[i])
            memcpy(world->inputs[1 + i].memory, forward->inputs[i].memory,
                   forward->inputs[i].bytes);
    memcpy(world->inputs[4].memory, forward->outputs[0].memory, forward->outputs[0].bytes);
    memcpy(world->inputs[5].memory, forward->outputs[1].memory, forward->outputs[1].bytes);
    for (int i = 3; i < 6; i++)
        if (forward->desc.input_present[i])
            memcpy(world->inputs[3 + i].memory, forward->inputs[i].memory,
                   forward->inputs[i].bytes);
}

#endif
