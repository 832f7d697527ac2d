/*
 * Attention over a cache, and positions beyond a call's rows: rows that come in pieces give what
 * they give in one call, in both libraries; on bf16 within its rounding. Other pieces: the same
 * bits.
 */
#include "attention_fixture.h"
#include "kernels/bfloat16.h"
#include "tests/testing.h"

enum { RUNS = !ON_CUDA ? 40 : RACES ? 2 : 6 };

static struct attention_case random_case(struct random *random)
{
    double alibi = !ON_CUDA && random_bool(random) ? 8 : 0;
    return (struct attention_case){
        .batch = random_between(random, 1, 3),
        .time = random_of(random, (int64_t[]){1, 2, 17, 64, 65, 130}, ON_CUDA ? 5 : 6),
        .kv_heads = random_between(random, 1, 3),
        .group = random_of(random, (int64_t[]){1, 2, 3}, 3),
        .head_dim = random_of(random, (int64_t[]){1, 3, 8, 16, 33, 64, 65, 130}, ON_CUDA ? 8 : 6),
        .packed = random_bool(random),
        .causal = true,
        .scale = random_bool(random) ? 0 : 0.7,
        .window = random_of(random, (int64_t[]){0, 0, 1, 7, 64}, 5),
        .softcap = random_bool(random) ? 2.5 : 0,
        .alibi = alibi,
        .rounded = alibi > 0 && random_bool(random),
    };
}

/* Rows `begin` to `end` of an operand (batch, time, width), for a call of their own. */
static struct area cut(const struct area *whole, const struct tensor_type *type, int64_t begin,
                       int64_t end)
{
    size_t row = tensor_bytes(type) / (size_t)(type->dims[0] * type->dims[1]);
    size_t count = (size_t)(end - begin);
    struct area piece = area_new((size_t)type->dims[0] * count * row, 4);
    for (int64_t b = 0; b < type->dims[0]; b++)
        memcpy((char *)piece.memory + (size_t)b * count * row,
               (char *)whole->memory + (size_t)(b * type->dims[1] + begin) * row, count * row);
    return piece;
}

/* Rows at positions that the op's last input says, over caches of these types. */
static void give_cache(struct op_desc *desc, int64_t capacity)
{
    struct tensor_type *y = &desc->outputs[0], cache = *y;
    cache.dims[1] = capacity;
    cache.dims[2] = y->dims[2] / desc->attrs.attention.heads * desc->attrs.attention.kv_heads;
    desc->input_present[5] = desc->output_present[2] = desc->output_present[3] = true;
    desc->output_present[1] = false;
    desc->inputs[5] = type_of(DTYPE_I32, 2, y->dims[0], y->dims[1], 0, 0);
    desc->outputs[2] = desc->outputs[3] = cache;
}

/* The pieces of `world` over caches: its output, in `y`. */
static void run_pieces(struct random *random, enum kernel_library library,
                       const struct world *world, int64_t capacity, enum dtype dtype, float *y)
{
    const struct op_desc *whole = &world->desc;
    int64_t batch = whole->inputs[0].dims[0], time = whole->inputs[0].dims[1], end;
    int64_t width = whole->outputs[0].dims[2], heads = whole->attrs.attention.heads;
    int64_t kv_width = width / heads * whole->attrs.attention.kv_heads;
    struct tensor_type type = type_of(dtype, 3, batch, capacity, kv_width, 0);
    struct area caches[2] = {area_new(tensor_bytes(&type), 4), area_new(tensor_bytes(&type), 0)};
    int64_t window = whole->attrs.attention.window; /* a ring has room for it and for a piece */
    int64_t most = capacity < time ? capacity - window : time;
    for (int64_t begin = 0; begin < time; begin = end) {
        int64_t left = time - begin;
        end = begin + random_between(random, 1, left < most ? left : most);
        struct world piece = {.desc = *whole};
        struct op_desc *desc = &piece.desc;
        for (int i = 0; i < 3; i++) {
            desc->inputs[i].dims[1] = end - begin;
            desc->inputs[i].dtype = dtype;
            if (!desc->input_present[i]) continue;
            struct area f32 = cut(&world->inputs[i], &whole->inputs[i], begin, end);
            piece.inputs[i] = area_new(tensor_bytes(&desc->inputs[i]), 4);
            size_t count = (size_t)tensor_element_count(&desc->inputs[i]);
            if (dtype == DTYPE_BF16)
                kernel_f32_to_bf16(count, (uint16_t *)piece.inputs[i].memory, (float *)f32.memory);
            else memcpy(piece.inputs[i].memory, f32.memory, count * 4);
            area_free(&f32);
        }
        desc->outputs[0].dims[1] = end - begin;
        desc->outputs[0].dtype = dtype;
        give_cache(desc, capacity);
        piece.inputs[5] = area_new(tensor_bytes(&desc->inputs[5]), 0);
        for (int64_t i = 0; i < batch * (end - begin); i++)
            ((int32_t *)piece.inputs[5].memory)[i] = (int32_t)-begin;
        piece.outputs[0] = area_new(tensor_bytes(&desc->outputs[0]), 4);
        for (int i = 0; i < 2; i++) piece.outputs[2 + i] = caches[i];
        ck_assert_status_ok(op_desc_check(desc));
        world_run(&piece, library);
        for (int64_t b = 0; b < batch; b++) {
            size_t count = (size_t)((end - begin) * width);
            float *to = y + (b * time + begin) * width;
            if (dtype == DTYPE_BF16)
                kernel_bf16_to_f32(count, to,
                                   (uint16_t *)piece.outputs[0].memory + (size_t)b * count);
            else memcpy(to, output_of(&piece, 0) + (size_t)b * count, count * sizeof *y);
        }
        piece.outputs[2] = piece.outputs[3] = (struct area){0};
        world_free(&piece);
    }
    for (int i = 0; i < 2; i++) area_free(&caches[i]);
}

static void compare(struct random *random, enum kernel_library library, enum dtype dtype)
{
    for (int run = 0; run < RUNS; run++) {
        const struct attention_case c = random_case(random);
        struct world world = {.desc = attention_desc(&c)};
        world_fill(random, &world);
        world_run(&world, KERNELS_REFERENCE);
        int64_t count = tensor_element_count(&world.desc.outputs[0]);
        float *y = mem_alloc_array((size_t)count, sizeof *y);
        float *again = mem_alloc_array((size_t)count, sizeof *again);
        int64_t capacity = c.time + random_between(random, 0, 70);
        int64_t window = world.desc.attrs.attention.window;
        if (window > 0 && window + 1 < c.time && run % 2 == 0)
            capacity = window + random_between(random, 1, c.time - window - 1);
        run_pieces(random, library, &world, capacity, dtype, y);
        if (!RACES) run_pieces(random, library, &world, capacity, dtype, again);
        ck_assert(RACES || memcmp(y, again, (size_t)count * sizeof *y) == 0);
        for (int64_t i = 0; i < count; i++)
            ck_assert_msg(fabsf(y[i] - output_of(&world, 0)[i]) <=
                              (dtype == DTYPE_BF16 ? 0.04 : 2e-6),
                          "run %d: element %lld is %.9g, in one call %.9g", run, (long long)i,
                          (double)y[i], (double)output_of(&world, 0)[i]);
        free(y);
        free(again);
        world_free(&world);
    }
}

TESTS_BELOW(.timeout = 60);

TEST(pieces_give_what_the_whole_gives)
{
    struct random random = {random_seed()};
    compare(&random, KERNELS_REFERENCE, DTYPE_F32);
    compare(&random, KERNELS_CPU, DTYPE_F32);
    compare(&random, KERNELS_CPU, DTYPE_BF16);
}

/* Rows without a token are at the position of the sequence's next one: the last of them stays, also
 * in a ring. */
TEST(the_last_row_of_a_position_stays)
{
    static const int32_t positions[2][5] = {{3, 4, 5, 6, 6}, {1, 2, 2, 2, 2}};
    struct random random = {random_seed()};
    for (int64_t capacity = 4; capacity <= 8; capacity += 4) {
        const struct attention_case c = {
            .batch = 2, .time = 5, .kv_heads = 2, .group = 2, .head_dim = 8, .window = 2};
        struct world worlds[2] = {{.desc = attention_desc(&c)}};
        worlds[0].desc.attrs.attention.causal = true;
        give_cache(&worlds[0].desc, capacity);
        worlds[1] = worlds[0];
        for (int w = 0; w < 2; w++) {
            worlds[w].inputs[5] = area_new(sizeof positions, 0);
            for (int i = 0; i < 10; i++)
                ((int32_t *)worlds[w].inputs[5].memory)[i] = i % 5 - positions[i / 5][i % 5];
            world_fill(&random, &worlds[w]);
            for (int i = 0; i < 3; i++)
                memcpy(worlds[w].inputs[i].memory, worlds[0].inputs[i].memory,
                       worlds[w].inputs[i].bytes);
            for (int i = 2; i < 4; i++)
                memset(worlds[w].outputs[i].memory, 0, worlds[w].outputs[i].bytes);
            world_run(&worlds[w], w == 0 ? KERNELS_REFERENCE : KERNELS_CPU);
        }
        for (int i = 2; i < 4; i++)
            ck_assert_mem_eq(worlds[1].outputs[i].memory, worlds[0].outputs[i].memory,
                             worlds[0].outputs[i].bytes);
        for (int i = 0; i < 2 * 5 * 4 * 8; i++)
            ck_assert_float_eq_tol(output_of(&worlds[1], 0)[i], output_of(&worlds[0], 0)[i], 2e-6);
        for (int w = 0; w < 2; w++) world_free(&worlds[w]);
    }
}

/* A row at a later position is turned as there. */
TEST(positions_beyond_the_rows)
{
    enum { TIME = 30, LATER = 19 };
    for (int library = 0; library < 2; library++) {
        struct random random = {random_seed()};
        struct world whole = {.desc = desc_of(OP_ROPE)}, later;
        struct op_desc *desc = &whole.desc;
        desc->attrs.rope.head_dim = 8;
        desc->attrs.rope.theta = 1000;
        desc->inputs[0] = desc->outputs[0] = type_of(DTYPE_F32, 3, 1, TIME, 16, 0);
        desc->input_present[1] = false;
        world_fill(&random, &whole);
        world_run(&whole, (enum kernel_library)library);
        later = (struct world){.desc = *desc};
        later.desc.attrs.rope.positions = TIME;
        later.desc.input_present[1] = true;
        later.desc.inputs[0] = later.desc.outputs[0] =
            type_of(DTYPE_F32, 3, 1, TIME - LATER, 16, 0);
        later.desc.inputs[1] = type_of(DTYPE_I32, 2, 1, TIME - LATER, 0, 0);
        later.inputs[0] = cut(&whole.inputs[0], &desc->inputs[0], LATER, TIME);
        later.inputs[1] = area_new(tensor_bytes(&later.desc.inputs[1]), 0);
        for (int i = 0; i < TIME - LATER; i++) ((int32_t *)later.inputs[1].memory)[i] = -LATER;
        world_fill(&random, &later);
        world_run(&later, (enum kernel_library)library);
        ck_assert_mem_eq(output_of(&later, 0), output_of(&whole, 0) + 16 * LATER,
                         16 * (TIME - LATER) * sizeof(float));
        world_free(&later);
        world_free(&whole);
    }
}
