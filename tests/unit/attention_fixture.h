/*
 * Shared by the tests of attention, rotary positions and the fused head: an op with memory for its
 * operands, descriptions of attention and rotary positions, and what fills their operands.
 * Everything is static; a test uses what it needs.
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

/* Documents of few tokens, of many, of one each, or one of all. */
static void fill_starts(struct random *random, const struct world *world, int input)
{
    if (!world->desc.input_present[input]) return;
    int32_t *starts = (int32_t *)world->inputs[input].memory;
    int64_t batch = world->desc.inputs[input].dims[0], time = world->desc.inputs[input].dims[1];
    for (int64_t b = 0; b < batch; b++, starts += time) {
        int64_t length = random_of(random, (int64_t[]){1, 5, 20, 64, 90, 1000}, 6);
        starts[0] = 0;
        for (int32_t i = 1; i < time; i++)
            starts[i] = random_between(random, 0, length - 1) == 0 ? i : starts[i - 1];
    }
}

static void fill_attention(struct random *random, struct world *world,
                           const struct attention_case *c)
{
    world->desc = attention_desc(c);
    world->seed = random_bits(random);
    world->step = random_bits(random) >> 20;
    world->rank = (uint32_t)random_between(random, 0, 7);
    world->first_sample = 3 * world->rank; /* in most cases within a block of random words */
    world_fill(random, world);
    fill_mask(random, world, 3);
    fill_starts(random, world, 5);
    /* Large and small scores: an exponential's error is that of its score. */
    float spread = (float[]){1, 1, 8}[random_between(random, 0, 2)];
    double scale = c->scale > 0 ? c->scale : 1 / sqrt((double)c->head_dim);
    world->tolerance = 2e-7 * scale * sqrt((double)c->head_dim) * spread;
    if (c->alibi > 0) world->tolerance += 6e-8 * (double)c->time; /* if only far keys are seen */
    int64_t count = tensor_element_count(&world->desc.inputs[0]);
    if (!c->packed)
        for (int64_t i = 0; i < count; i++) input_of(world, 0)[i] *= spread;
}

/* Rotary positions. */

static struct op_desc rope_desc(struct random *random, enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    int64_t head = 2 * random_of(random, (int64_t[]){1, 2, 3, 8, 16, 17, 32, 64}, 8);
    desc.attrs.rope.head_dim = head;
    desc.attrs.rope.theta = random_bool(random) ? 10000 : 500000;
    if (random_bool(random)) desc.attrs.rope.rotary_dim = 2 * random_between(random, 1, head / 2);
    desc.attrs.rope.scaling = (enum rope_scaling)random_between(random, 0, ROPE_SCALING_LONGROPE);
    if (desc.attrs.rope.scaling == ROPE_SCALING_LONGROPE) {
        static float factors[2][128];
        int64_t rotary = desc.attrs.rope.rotary_dim;
        int64_t pairs = (rotary > 0 ? rotary : desc.attrs.rope.head_dim) / 2;
        ck_assert_int_le(pairs, 128);
        for (int i = 0; i < 2 * 128; i++) factors[i / 128][i % 128] = 1 + 0.25F * (float)i;
        desc.attrs.rope.short_factors = (struct op_weights){factors[0], pairs};
        desc.attrs.rope.long_factors = (struct op_weights){factors[1], pairs};
    }
    desc.attrs.rope.interleaved = random_bool(random);
    desc.attrs.rope.beta_fast = 32;
    desc.attrs.rope.beta_slow = random_bool(random) ? 1 : 4;
    desc.attrs.rope.magnitude = 1.25;
    desc.attrs.rope.factor = random_bool(random) ? 8 : 3.5;
    desc.attrs.rope.low_freq_factor = 1;
    desc.attrs.rope.high_freq_factor = 4;
    desc.attrs.rope.original_context = random_bool(random) ? 16 : 8192;
    desc.inputs[0] = type_of(DTYPE_F32, 3, random_between(random, 1, 3),
                             random_between(random, 1, 90), head * random_between(random, 1, 4), 0);
    desc.outputs[0] = desc.inputs[0];
    return desc;
}

static void fill_rope(struct random *random, struct world *world, enum op_kind kind)
{
    world->desc = rope_desc(random, kind);
    world->desc.inputs[1] =
        type_of(DTYPE_I32, 2, world->desc.inputs[0].dims[0], world->desc.inputs[0].dims[1], 0, 0);
    world->desc.input_present[1] = random_bool(random);
    world_fill(random, world);
    fill_starts(random, world, 1);
}

/* The head. */

static void fill_targets(struct random *random, const struct world *world)
{
    int64_t count = tensor_element_count(&world->desc.inputs[3]);
    int64_t classes = world->desc.inputs[1].dims[0];
    bool all_ignored = random_between(random, 0, 9) == 0;
    for (int64_t i = 0; i < count; i++)
        ((int32_t *)world->inputs[3].memory)[i] =
            (int32_t)(all_ignored ? -1 : random_between(random, -1, classes - 1));
}

#endif
