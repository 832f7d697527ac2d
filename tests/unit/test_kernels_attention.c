/*
 * Attention, rotary positions and the fused head: the CPU library against the reference over odd
 * random shapes, with one and two threads. Every run is checked for stray writes, unwritten results
 * and the same bits a second time. The reference's gradients: test_attention_gradients.c.
 */
#include "attention_fixture.h"
#include "kernels/bfloat16.h"
#include "tests/testing.h"

enum { RUNS = RACES ? 2 : ON_CUDA ? 6 : 30 };

static struct attention_case random_attention(struct random *random)
{
    static const int64_t times[] = {1, 2, 3, 5, 16, 17, 33, 64, 65, 100, 130, 200};
    static const int64_t head_dims[] = {1, 2, 3, 7, 8, 16, 20, 32, 32, 33, 64, 64, 80, 128, 130};
    static const int64_t windows[] = {0, 0, 1, 2, 7, 40, 64, 129};
    struct attention_case c = {.batch = random_between(random, 1, 3),
                               .time = random_of(random, times, 12),
                               .kv_heads = random_between(random, 1, 3),
                               .group = random_of(random, (int64_t[]){1, 1, 2, 3}, 4),
                               .head_dim = random_of(random, head_dims, 15),
                               .packed = random_bool(random),
                               .causal = random_bool(random),
                               .masked = random_bool(random),
                               .p = (double[]){0, 0, 0.1, 0.6}[random_between(random, 0, 3)],
                               .scale = random_bool(random) ? 0 : 0.7,
                               .window = random_of(random, windows, 8),
                               .softcap = random_between(random, 0, 2) == 0 ? 2.5 : 0,
                               .documents = random_bool(random),
                               .biased = random_bool(random)};
    if (!ON_CUDA && c.causal && !c.biased) {
        c.alibi = random_of(random, (int64_t[]){0, 5, 8}, 3);
        c.rounded = c.alibi > 0 && random_bool(random);
    }
    return c;
}

/* The head. */

static struct op_desc head_desc(struct random *random, enum op_kind kind)
{
    static const int64_t sizes[] = {1, 2, 3, 10, 16, 17, 31, 64, 65, 100};
    struct op_desc desc = desc_of(kind);
    int64_t columns = random_of(random, sizes, 10), time = random_of(random, sizes, 10);
    int64_t batch = random_between(random, 1, 3);
    int64_t classes = random_of(random, (int64_t[]){1, 2, 10, 65, 257, 1001, 5000}, 7);
    if (random_between(random, 0, 9) == 0) /* many chunks */
        time = random_between(random, 1100, 3500), columns = 4, classes = 11;
    bool flat = random_bool(random);
    desc.inputs[0] = flat ? type_of(DTYPE_F32, 2, time, columns, 0, 0)
                          : type_of(DTYPE_F32, 3, batch, time, columns, 0);
    desc.inputs[1] = type_of(DTYPE_F32, 2, classes, columns, 0, 0);
    desc.inputs[2] = type_of(DTYPE_F32, 1, classes, 0, 0, 0);
    desc.inputs[3] =
        flat ? type_of(DTYPE_I32, 1, time, 0, 0, 0) : type_of(DTYPE_I32, 2, batch, time, 0, 0);
    desc.input_present[2] = random_bool(random);
    desc.attrs.loss.reduction = random_bool(random) ? REDUCTION_MEAN : REDUCTION_SUM;
    desc.outputs[0] = desc.outputs[1] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    if (kind == OP_LINEAR_CROSS_ENTROPY) {
        desc.output_present[1] = random_bool(random);
        return desc;
    }
    desc.outputs[1] = desc.inputs[0];
    desc.outputs[2] = desc.inputs[1];
    desc.outputs[3] = desc.inputs[2];
    for (int i = 1; i < 4; i++) desc.output_present[i] = random_between(random, 0, 3) > 0;
    return desc;
}

TESTS_BELOW(.timeout = 300);

/* Operands on bf16. */

static void to_bf16(struct world *world)
{
    struct op_desc *desc = &world->desc;
    const struct op_info *info = op_info_get(desc->kind);
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i] || info->inputs[i].type != OPERAND_REAL) continue;
        int64_t count = tensor_element_count(&desc->inputs[i]);
        desc->inputs[i].dtype = DTYPE_BF16;
        struct area narrow = area_new(tensor_bytes(&desc->inputs[i]), 0);
        for (int64_t j = 0; j < count; j++)
            ((uint16_t *)narrow.memory)[j] = bfloat16_from_f32(input_of(world, i)[j]);
        area_free(&world->inputs[i]);
        world->inputs[i] = narrow;
    }
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i] || info->outputs[i].type != OPERAND_REAL) continue;
        desc->outputs[i].dtype = DTYPE_BF16;
        area_free(&world->outputs[i]);
        world->outputs[i] = area_new(tensor_bytes(&desc->outputs[i]), 0);
    }
    ck_assert_status_ok(op_desc_check(desc));
}

/* Operands in f32 have passed through bf16, so that both worlds have the same. */
static void round_inputs(struct world *world)
{
    const struct op_info *info = op_info_get(world->desc.kind);
    for (int i = 0; i < world->desc.input_count; i++) {
        if (!world->desc.input_present[i] || info->inputs[i].type != OPERAND_REAL) continue;
        int64_t count = tensor_element_count(&world->desc.inputs[i]);
        for (int64_t j = 0; j < count; j++) {
            float *value = input_of(world, i) + j;
            *value = bfloat16_to_f32(bfloat16_from_f32(*value));
        }
    }
}

/* The CPU library against the reference. */

static void assert_close(const struct world *world, int output, const float *found,
                         const float *expected)
{
    const struct op_desc *desc = &world->desc;
    double tolerance = tolerance_of(desc->kind, 4e-6) + world->tolerance;
    int64_t count = tensor_element_count(&desc->outputs[output]);
    /* The bias's gradient is a sum over rows of differences between sums over columns. */
    if (desc->kind == OP_ATTENTION_BACKWARD && output == 3)
        tolerance += 1e-7 * sqrt((double)tensor_element_count(&desc->inputs[0]) /
                                 (double)desc->attrs.attention.heads);
    double largest = 1;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(expected[i])) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(found[i] - expected[i]) <= tolerance * largest) && found[i] != expected[i])
            ck_abort_msg("%s: output %d at %lld is %.9g, the reference has %.9g",
                         op_info_get(desc->kind)->name, output, (long long)i, found[i],
                         expected[i]);
}

/* Both libraries on the same operands; leaves the reference's results in the world. */
static void compare(struct random *random, struct world *world)
{
    struct op_desc *desc = &world->desc;
    struct world again = *world;
    struct area found[OP_MAX_OUTPUTS] = {0};
    memset(again.outputs, 0, sizeof again.outputs);
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        size_t bytes = world->outputs[i].bytes;
        desc->accumulate[i] = again.desc.accumulate[i] = random_between(random, 0, 2) == 0;
        if (desc->accumulate[i]) fill_random(random, output_of(world, i), (int64_t)bytes / 4);
        found[i] = area_new(bytes, 0);
        again.outputs[i] = area_new(bytes, 4 * (size_t)random_between(random, 0, 1));
        memcpy(found[i].memory, world->outputs[i].memory, bytes);
        memcpy(again.outputs[i].memory, world->outputs[i].memory, bytes);
    }
    world_run(&again, KERNELS_CPU);
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        unsigned char *first = found[i].memory; /* the earlier contents, then the result */
        for (size_t j = 0; j < found[i].bytes; j++) {
            unsigned char before = first[j];
            first[j] = again.outputs[i].memory[j];
            again.outputs[i].memory[j] = before;
        }
    }
    world_run(&again, KERNELS_CPU);
    world_run(world, KERNELS_REFERENCE);
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        ck_assert_msg(memcmp(found[i].memory, again.outputs[i].memory, found[i].bytes) == 0,
                      "%s: output %d differs the second time", op_info_get(desc->kind)->name, i);
        assert_close(world, i, (float *)found[i].memory, output_of(world, i));
        desc->accumulate[i] = false;
    }
    /* In place: the same bits. */
    if (op_info_get(desc->kind)->element_wise && !again.desc.accumulate[0]) {
        struct kernel_call call = call_of(world);
        call.outputs[0] = world->inputs[0].memory;
        run_once(KERNELS_CPU, desc, call);
        ck_assert_msg(memcmp(found[0].memory, world->inputs[0].memory, found[0].bytes) == 0,
                      "%s: differs in place", op_info_get(desc->kind)->name);
    }
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        area_free(&found[i]);
        area_free(&again.outputs[i]);
    }
}

LOOP_TEST(attention, 0, 4)
{
    kernels_set_threads(1 + _i % 2);
    struct random random = {(uint64_t)_i};
    for (int run = 0; run < RUNS; run++) {
        struct attention_case c = random_attention(&random);
        struct world forward = {0}, backward = {0};
        fill_attention(&random, &forward, &c);
        forward.desc.output_present[1] = random_bool(&random);
        compare(&random, &forward);
        forward.desc.output_present[1] = true;
        world_run(&forward, KERNELS_REFERENCE);
        fill_attention_backward(&random, &backward, &forward);
        compare(&random, &backward);
        world_free(&forward);
        world_free(&backward);
    }
}

/* Few heads on many threads: the same bits as on one. */
LOOP_TEST(attention_threads, 0, 2, .unless = ON_CUDA)
{
    struct random random = {(uint64_t)_i + 50};
    for (int run = 0; run < RUNS; run++) {
        struct attention_case c = random_attention(&random);
        c.batch = random_between(&random, 1, 2), c.kv_heads = random_between(&random, 1, 2);
        struct world forward = {0}, backward = {0};
        fill_attention(&random, &forward, &c);
        world_run(&forward, KERNELS_CPU);
        fill_attention_backward(&random, &backward, &forward);
        if (run % 3 == 0) {
            round_inputs(&backward);
            to_bf16(&backward);
        }
        struct area found[2][3] = {0};
        for (int many = 0; many < 2; many++) {
            kernels_set_threads(many ? 7 : 1);
            world_run(&backward, KERNELS_CPU);
            for (int i = 0; i < 3; i++) {
                if (!backward.desc.output_present[i]) continue;
                found[many][i] = area_new(backward.outputs[i].bytes, 0);
                memcpy(found[many][i].memory, backward.outputs[i].memory, found[many][i].bytes);
                memset(backward.outputs[i].memory, 0xff, backward.outputs[i].bytes);
            }
        }
        for (int i = 0; i < 3; i++) {
            if (!backward.desc.output_present[i]) continue;
            ck_assert_msg(memcmp(found[0][i].memory, found[1][i].memory, found[0][i].bytes) == 0,
                          "gradient %d differs with the number of threads", i);
            area_free(&found[0][i]);
            area_free(&found[1][i]);
        }
        world_free(&forward);
        world_free(&backward);
    }
}

LOOP_TEST(rope, 0, 2)
{
    kernels_set_threads(1 + _i % 2);
    struct random random = {(uint64_t)_i + 10};
    for (int run = 0; run < RUNS; run++) {
        struct world world = {0};
        fill_rope(&random, &world, random_bool(&random) ? OP_ROPE : OP_ROPE_BACKWARD);
        compare(&random, &world);
        world_free(&world);
    }
}

LOOP_TEST(head, 0, ON_CUDA ? 4 : 2, .unless = !is_tested(OP_LINEAR_CROSS_ENTROPY))
{
    kernels_set_threads(1 + _i % 2);
    if (_i > 1)
        setenv("FSDPD_CUDA_LOGITS", _i > 2 ? "3000" : "1", 1); /* a few rows at a time, or one */
    struct random random = {(uint64_t)_i + 20};
    for (int run = 0; run < RUNS; run++) {
        struct world world = {.desc = head_desc(&random, random_bool(&random)
                                                             ? OP_LINEAR_CROSS_ENTROPY
                                                             : OP_LINEAR_CROSS_ENTROPY_BACKWARD)};
        world_fill(&random, &world);
        fill_targets(&random, &world);
        compare(&random, &world);
        world_free(&world);
    }
}

/* Kernels that rotate by the same angles share a table, which outlives the kernel that made it. */
TEST(rope_shares, .unless = ON_CUDA)
{
    struct random random = {4};
    struct world world = {.desc = rope_desc(&random, OP_ROPE)};
    world.desc.attrs.rope.rotary_dim = 0;
    world.desc.attrs.rope.scaling = ROPE_SCALING_LINEAR;
    world.desc.input_present[1] = false;
    world_fill(&random, &world);
    world_run(&world, KERNELS_REFERENCE);
    struct op_desc other = world.desc, back = world.desc;
    other.attrs.rope.theta += 1;
    back.kind = OP_ROPE_BACKWARD;
    struct kernel *first, *second, *third, *fourth;
    ck_assert_status_ok(kernel_new(KERNELS_CPU, &world.desc, &first));
    ck_assert_status_ok(kernel_new(KERNELS_CPU, &world.desc, &second));
    ck_assert_status_ok(kernel_new(KERNELS_CPU, &other, &third));
    ck_assert_status_ok(kernel_new(KERNELS_CPU, &back, &fourth));
    const int64_t *dims = world.desc.inputs[0].dims;
    uint64_t bytes = 4 * (uint64_t)(dims[1] * world.desc.attrs.rope.head_dim);
    ck_assert_uint_eq(kernel_held_bytes(first), bytes);
    ck_assert_uint_eq(kernel_held_bytes(second), 0);
    ck_assert_uint_eq(kernel_held_bytes(third), bytes);
    ck_assert_uint_eq(kernel_held_bytes(fourth), 0);
    kernel_free(first);
    kernel_free(fourth);
    struct area found = area_new(world.outputs[0].bytes, 0);
    ck_assert_status_ok(kernel_run(second, &(struct kernel_call){.inputs = {world.inputs[0].memory},
                                                                 .outputs = {found.memory}}));
    assert_close(&world, 0, (float *)found.memory, output_of(&world, 0));
    kernel_free(second);
    kernel_free(third);
    ck_assert_status_ok(kernel_new(KERNELS_CPU, &world.desc, &first));
    ck_assert_uint_eq(kernel_held_bytes(first), bytes); /* the table was freed */
    kernel_free(first);
    other.inputs[0].dims[1] = other.outputs[0].dims[1] = (int64_t)1 << 29;
    status_t status = kernel_new(KERNELS_CPU, &other, &first);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(status_message(status), "536870912 positions"));
    status_free(status);
    area_free(&found);
    world_free(&world);
}

/* Copies `width` elements of each token from `first` on, of a row of one or several documents. */
static void copy_tokens(float *to, const float *from, int64_t first, int64_t count, int64_t width)
{
    memcpy(to, from + first * width, (size_t)(count * width) * sizeof *to);
}

/* Runs attention and its gradient, packed operands, on a row; `starts` may be NULL. */
static void attend_row(const struct attention_case *c, const float *qkv, const float *dy,
                       const int32_t *starts, float *y, float *dqkv)
{
    struct world forward = {.desc = attention_desc(c)}, backward = {0};
    struct random random = {1};
    world_fill(&random, &forward);
    memcpy(forward.inputs[0].memory, qkv, forward.inputs[0].bytes);
    if (starts != NULL) memcpy(forward.inputs[5].memory, starts, forward.inputs[5].bytes);
    world_run(&forward, KERNELS_CPU);
    memcpy(y, forward.outputs[0].memory, forward.outputs[0].bytes);
    fill_attention_backward(&random, &backward, &forward);
    memcpy(backward.inputs[0].memory, dy, backward.inputs[0].bytes);
    world_run(&backward, KERNELS_CPU);
    memcpy(dqkv, backward.outputs[0].memory, backward.outputs[0].bytes);
    world_free(&forward);
    world_free(&backward);
}

/* Each document of a row gets what it would get alone. */
LOOP_TEST(documents_alone, 0, 2)
{
    enum { TIME = 200, WIDTH = 8, DOCUMENTS = 5 };
    static const int64_t ends[DOCUMENTS] = {3, 64, 65, 170, TIME};
    static float qkv[TIME * 3 * WIDTH], dy[TIME * WIDTH], y[TIME * WIDTH], dqkv[TIME * 3 * WIDTH];
    static float own_qkv[TIME * 3 * WIDTH], own_dy[TIME * WIDTH];
    static float own_y[TIME * WIDTH], own_dqkv[TIME * 3 * WIDTH];
    struct random random = {3};
    int32_t starts[TIME];
    struct attention_case c = {1, TIME, 2, 1, WIDTH / 2, .packed = true, .causal = _i == 1};
    fill_random(&random, qkv, TIME * 3 * WIDTH);
    fill_random(&random, dy, TIME * WIDTH);
    for (int64_t d = 0, i = 0; d < DOCUMENTS; d++)
        for (int64_t first = i; i < ends[d]; i++) starts[i] = (int32_t)first;
    c.documents = true;
    attend_row(&c, qkv, dy, starts, y, dqkv);
    c.documents = false;
    for (int64_t d = 0, first = 0; d < DOCUMENTS; first = ends[d++]) {
        int64_t count = c.time = ends[d] - first;
        copy_tokens(own_qkv, qkv, first, count, 3 * WIDTH);
        copy_tokens(own_dy, dy, first, count, WIDTH);
        attend_row(&c, own_qkv, own_dy, NULL, own_y, own_dqkv);
        for (int64_t i = 0; i < count * WIDTH; i++)
            ck_assert_float_eq_tol(y[first * WIDTH + i], own_y[i], 2e-6f);
        for (int64_t i = 0; i < count * 3 * WIDTH; i++)
            ck_assert_float_eq_tol(dqkv[first * 3 * WIDTH + i], own_dqkv[i], 5e-6f);
    }
}

/* Rows without visible keys give 0, and get no gradient. */
LOOP_TEST(nothing_seen, 0, 4)
{
    struct random random = {99};
    struct attention_case c = {2, 40, 2, 2, 16, .masked = true, .causal = _i % 2, .packed = _i > 1};
    for (int library = 0; library < 2; library++) {
        struct world forward = {0}, backward = {0};
        fill_attention(&random, &forward, &c);
        memset(forward.inputs[3].memory, 1, forward.inputs[3].bytes);
        memset(forward.inputs[3].memory, 0, 40); /* the first of the batch */
        world_run(&forward, (enum kernel_library)library);
        int64_t half = tensor_element_count(&forward.desc.outputs[0]) / 2;
        for (int64_t i = 0; i < half; i++) {
            ck_assert(output_of(&forward, 0)[i] == 0);
            ck_assert(fabsf(output_of(&forward, 0)[half + i]) < 2);
        }
        for (int64_t i = 0; i < 4 * 40; i++) {
            ck_assert(output_of(&forward, 1)[i] == INFINITY);
            ck_assert(isfinite(output_of(&forward, 1)[4 * 40 + i]));
        }
        fill_attention_backward(&random, &backward, &forward);
        world_run(&backward, (enum kernel_library)library);
        for (int i = 0; i < (c.packed ? 1 : 3); i++) {
            int64_t count = tensor_element_count(&backward.desc.outputs[i]);
            bool any = false;
            for (int64_t j = 0; j < count; j++) {
                if (j < count / 2) ck_assert(output_of(&backward, i)[j] == 0);
                else any = any || output_of(&backward, i)[j] != 0;
                ck_assert(isfinite(output_of(&backward, i)[j]));
            }
            ck_assert(any);
        }
        world_free(&forward);
        world_free(&backward);
    }
}

/* Four times the time needs at most four times the workspace. */
TEST(memory_is_linear, .unless = ON_CUDA)
{
    for (int backward = 0; backward < 2; backward++)
        for (int library = 0; library < 2; library++) {
            uint64_t bytes[2];
            for (int i = 0; i < 2; i++) {
                struct attention_case c = {1, i ? 16384 : 4096, 2, 2, 64, .causal = true};
                struct op_desc desc = attention_desc(&c);
                if (backward) desc = attention_backward_desc(&desc);
                struct kernel *kernel = NULL;
                ck_assert_status_ok(kernel_new((enum kernel_library)library, &desc, &kernel));
                bytes[i] = kernel_workspace_bytes(kernel) + kernel_held_bytes(kernel);
                kernel_free(kernel);
            }
            ck_assert_uint_le(bytes[1], 4 * bytes[0]);
            ck_assert_uint_le(bytes[1], (uint64_t)16384 * 4096); /* not a (t, t) tensor's 1 GiB */
        }
}

/* For any number of rows, the scores of only a few. */
TEST(memory_of_head, .unless = ON_CUDA)
{
    for (int64_t rows = 1 << 10; rows <= 1 << 20; rows <<= 5)
        for (int kind = OP_LINEAR_CROSS_ENTROPY; kind <= OP_LINEAR_CROSS_ENTROPY_BACKWARD; kind++) {
            struct op_desc desc = desc_of((enum op_kind)kind);
            desc.inputs[0] = desc.outputs[1] = type_of(DTYPE_F32, 2, rows, 64, 0, 0);
            desc.inputs[1] = desc.outputs[2] = type_of(DTYPE_F32, 2, 50257, 64, 0, 0);
            desc.inputs[2] = desc.outputs[3] = type_of(DTYPE_F32, 1, 50257, 0, 0, 0);
            desc.inputs[3] = type_of(DTYPE_I32, 1, rows, 0, 0, 0);
            desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
            if (kind == OP_LINEAR_CROSS_ENTROPY) desc.outputs[1] = desc.outputs[0];
            struct kernel *kernel = NULL;
            bool trained = kind == OP_LINEAR_CROSS_ENTROPY_BACKWARD;
            ck_assert_status_ok(kernel_new(KERNELS_CPU, &desc, &kernel));
            ck_assert_uint_le(kernel_workspace_bytes(kernel), (trained ? 48 : 5) << 20);
            kernel_free(kernel);
            if (!trained) continue;
            desc.output_present[2] = desc.output_present[3] = false;
            ck_assert_status_ok(kernel_new(KERNELS_CPU, &desc, &kernel));
            ck_assert_uint_le(kernel_workspace_bytes(kernel), 5 << 20);
            kernel_free(kernel);
        }
}

/* On bf16: the reference's result for the same operands in f32, rounded once at the end. */

static float element(const struct world *world, int output, int64_t i)
{
    if (world->desc.outputs[output].dtype == DTYPE_BF16)
        return bfloat16_to_f32(((uint16_t *)world->outputs[output].memory)[i]);
    return output_of(world, output)[i];
}

static double largest_row(const struct world *world, int input)
{
    const struct tensor_type *type = &world->desc.inputs[input];
    int64_t count = tensor_element_count(type), columns = type->dims[type->dim_count - 1];
    double largest = 0, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i % columns == 0) sum = 0;
        sum += (double)input_of(world, input)[i] * input_of(world, input)[i];
        largest = fmax(largest, sum);
    }
    return sqrt(largest);
}

static double largest_value(const struct world *world, int input)
{
    double largest = 0;
    for (int64_t i = 0; i < tensor_element_count(&world->desc.inputs[input]); i++)
        largest = fmax(largest, fabs(input_of(world, input)[i]));
    return largest;
}

/*
 * How far the fused head on bf16 may be from the reference, whatever is drawn. Rounding moves a
 * value by at most 2^-9 of it. Scores that are each moved by at most d, as those are that are
 * rounded, have probabilities that are wrong by a factor of at most e^2d. A row's gradient by its
 * scores is its scale times probabilities that sum to 1, less a 1; it is rounded as well. So its
 * error, summed over the classes, is at most scale (e^2d - 1 + 2 2^-9), and the products with it
 * are wrong by at most that times the largest factor.
 */
static void head_bounds(const struct world *head, bool scores_are_rounded, double bounds[static 4])
{
    int64_t rows = tensor_element_count(&head->desc.inputs[3]), counted = 0;
    for (int64_t i = 0; i < rows; i++) counted += ((int32_t *)head->inputs[3].memory)[i] >= 0;
    double scale =
        head->desc.attrs.loss.reduction == REDUCTION_MEAN ? 1 / fmax(1, (double)counted) : 1;
    double moved =
        1e-5 + (scores_are_rounded ? 0x1p-9 * largest_row(head, 0) * largest_row(head, 1) : 0);
    double row = 1.01 * scale * (expm1(2 * moved) + 0x1p-8);
    bounds[0] = 2 * moved * scale * (double)counted;
    bounds[1] = row * largest_value(head, 1);
    bounds[2] = row * (double)counted * largest_value(head, 0);
    bounds[3] = row * (double)counted;
}

/* Compares a world whose inputs are filled in; it stays f32, and gets the reference's results. An
 * output may differ by the tolerance, relative to its largest value, and by its bound, if any. */
static void compare_bf16(struct random *random, struct world *world, double tolerance,
                         const double *bounds)
{
    round_inputs(world);
    struct world narrow = {.desc = world->desc,
                           .seed = world->seed,
                           .step = world->step,
                           .rank = world->rank,
                           .first_sample = world->first_sample};
    world_fill(random, &narrow);
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        if (world->inputs[i].base != NULL)
            memcpy(narrow.inputs[i].memory, world->inputs[i].memory, world->inputs[i].bytes);
    to_bf16(&narrow);
    world_run(world, KERNELS_REFERENCE);
    world_run(&narrow, KERNELS_CPU);
    for (int i = 0; i < world->desc.output_count; i++) {
        if (!world->desc.output_present[i]) continue;
        int64_t count = tensor_element_count(&world->desc.outputs[i]);
        double largest = 1e-3;
        for (int64_t j = 0; j < count; j++)
            if (isfinite(element(world, i, j))) largest = fmax(largest, fabs(element(world, i, j)));
        for (int64_t j = 0; j < count; j++) {
            float found = element(&narrow, i, j), expected = element(world, i, j);
            double bound = tolerance * largest + (bounds != NULL ? bounds[i] : 0);
            if (!(fabs(found - expected) <= bound) && found != expected)
                ck_abort_msg("%s on bf16: output %d at %lld is %.9g, expected %.9g",
                             op_info_get(world->desc.kind)->name, i, (long long)j, found, expected);
        }
    }
    world_free(&narrow);
}

LOOP_TEST(bf16, 0, ON_CUDA ? 3 : 2)
{
    kernels_set_threads(1 + _i % 2);
    if (_i > 1) setenv("FSDPD_CUDA_HEAD", "f32", 1);
    struct random random = {(uint64_t)_i + 30};
    for (int run = 0; run < RUNS; run++) {
        struct attention_case c = random_attention(&random);
        struct world forward = {0}, backward = {0};
        fill_attention(&random, &forward, &c);
        compare_bf16(&random, &forward, 0x1p-8, NULL);
        fill_attention_backward(&random, &backward, &forward);
        compare_bf16(&random, &backward, 0x1p-7, NULL);
        world_free(&forward);
        world_free(&backward);
        struct world rope = {0};
        fill_rope(&random, &rope, OP_ROPE);
        compare_bf16(&random, &rope, 0x1p-8, NULL);
        world_free(&rope);
        if (!is_tested(OP_LINEAR_CROSS_ENTROPY)) continue;
        struct world head = {.desc =
                                 head_desc(&random, run % 2 ? OP_LINEAR_CROSS_ENTROPY
                                                            : OP_LINEAR_CROSS_ENTROPY_BACKWARD)};
        head.desc.output_present[1] = true;
        if (run % 2) head.desc.output_present[1] = false; /* few bits produce ties */
        world_fill(&random, &head);
        fill_targets(&random, &head);
        double bounds[4];
        head_bounds(&head, ON_CUDA && _i < 2, bounds);
        compare_bf16(&random, &head, 0x1p-8, bounds);
        world_free(&head);
    }
}

/* A head whose weights have no gradient, in blocks of classes: a largest score in every one of them
 * in turn, and one where all scores are -infinity. */
LOOP_TEST(head_in_blocks, 0, 12, .unless = ON_CUDA)
{
    enum { CLASSES = 9001 };
    kernels_set_threads(1 + _i % 2);
    struct random random = {(uint64_t)_i + 50};
    bool backward = _i < 6;
    struct world world = {.desc = head_desc(&random, backward ? OP_LINEAR_CROSS_ENTROPY_BACKWARD
                                                              : OP_LINEAR_CROSS_ENTROPY)};
    struct op_desc *desc = &world.desc;
    desc->inputs[0] = type_of(DTYPE_F32, 2, 40, 24, 0, 0);
    if (backward) desc->outputs[1] = desc->inputs[0];
    desc->inputs[1] = desc->outputs[2] = type_of(DTYPE_F32, 2, CLASSES, 24, 0, 0);
    desc->inputs[2] = desc->outputs[3] = type_of(DTYPE_F32, 1, CLASSES, 0, 0, 0);
    desc->inputs[3] = type_of(DTYPE_I32, 1, 40, 0, 0, 0);
    desc->input_present[2] = true;
    desc->output_present[1] = backward;
    desc->output_present[2] = desc->output_present[3] = false;
    world_fill(&random, &world);
    fill_targets(&random, &world);
    for (int i = 0; i < CLASSES; i++)
        input_of(&world, 2)[i] = _i % 3 == 2 && i < 3000 ? -INFINITY
                                 : _i % 3 == 1           ? -(float)(i / 1000)
                                                         : (float)(i / 1000);
    int32_t *targets = (int32_t *)world.inputs[3].memory;
    for (int row = 0; row < 40; row++)
        if (targets[row] >= 0) targets[row] = 3000 + row * 150;
    if (_i % 6 < 3) {
        compare(&random, &world);
    } else {
        double bounds[4];
        head_bounds(&world, false, bounds);
        compare_bf16(&random, &world, 0x1p-8, bounds);
    }
    world_free(&world);
}

/* Whether the target is the first largest score, whichever blocks have it and its rivals. */
LOOP_TEST(head_counts_in_blocks, 0, 15, .unless = ON_CUDA)
{
    enum { CLASSES = 3500 };
    static const struct {
        int target, rival, other; /* classes; all others' scores are `rest` */
        float score, of_rival, of_other, rest;
        bool correct;
    } cases[] = {
        {1500, 10, 20, 2, 1, 1, 0, true},
        {1500, 10, 20, 2, 2, 1, 0, false},    /* an earlier one is as large */
        {1500, 1400, 20, 2, 2, 1, 0, false},  /* so it is within the block */
        {1500, 1600, 3400, 2, 2, 2, 0, true}, /* later ones are as large */
        {1500, 3400, 20, 2, 3, 1, 0, false},  /* a later one is larger */
        {10, 11, 12, -INFINITY, -INFINITY, -INFINITY, -INFINITY, false},
        {0, 11, 3400, -INFINITY, -INFINITY, -INFINITY, -INFINITY, true},
        {1500, 10, 1200, 9, NAN, 5, 0, false}, /* NaN is larger than any number */
        {3400, 10, 1200, 9, NAN, 5, 0, false},
        {1500, 3400, 10, 9, NAN, 5, 0, false},
        {1500, 3400, 10, NAN, NAN, 5, 0, true}, /* the first NaN */
        {1500, 10, 3400, NAN, NAN, 5, 0, false},
        {1500, 10, 3400, INFINITY, 5, 5, 0, true},
        {1500, 10, 3400, INFINITY, INFINITY, 5, 0, false},
        {1500, 10, 3400, NAN, INFINITY, 5, 0, true},
    };
    struct random random = {1};
    struct world world = {.desc = head_desc(&random, OP_LINEAR_CROSS_ENTROPY)};
    struct op_desc *desc = &world.desc;
    desc->inputs[0] = type_of(DTYPE_F32, 2, 1, 4, 0, 0);
    desc->inputs[1] = type_of(DTYPE_F32, 2, CLASSES, 4, 0, 0);
    desc->inputs[2] = type_of(DTYPE_F32, 1, CLASSES, 0, 0, 0);
    desc->inputs[3] = type_of(DTYPE_I32, 1, 1, 0, 0, 0);
    desc->input_present[2] = desc->output_present[1] = true;
    world_fill(&random, &world);
    memset(input_of(&world, 0), 0, 4 * sizeof(float));
    for (int i = 0; i < CLASSES; i++) input_of(&world, 2)[i] = cases[_i].rest;
    input_of(&world, 2)[cases[_i].other] = cases[_i].of_other;
    input_of(&world, 2)[cases[_i].rival] = cases[_i].of_rival;
    input_of(&world, 2)[cases[_i].target] = cases[_i].score;
    *(int32_t *)world.inputs[3].memory = cases[_i].target;
    world_run(&world, KERNELS_REFERENCE);
    ck_assert_float_eq(output_of(&world, 1)[0], cases[_i].correct);
    world_run(&world, KERNELS_CPU);
    ck_assert_float_eq(output_of(&world, 1)[0], cases[_i].correct);
    world_free(&world);
}

#ifdef TEST_DEVICE
static uint64_t scratch_of(const struct op_desc *desc)
{
    struct device *device = tested_device();
    void *prepared = NULL;
    uint64_t bytes = 0;
    ck_assert_status_ok(device->table->prepare(device, desc, &prepared, &bytes));
    device->table->unprepare(prepared);
    return bytes;
}

/* In bf16 a logit and its gradient share 2 bytes, if both types are wanted they take 6. */
TEST(head_memory)
{
    enum { ROWS = 8192, CLASSES = 5056, COLUMNS = 16 };
    const uint64_t logits = (uint64_t)ROWS * CLASSES;
    struct random random = {1};
    struct op_desc desc = head_desc(&random, OP_LINEAR_CROSS_ENTROPY_BACKWARD);
    desc.inputs[0] = desc.outputs[1] = type_of(DTYPE_BF16, 2, ROWS, COLUMNS, 0, 0);
    desc.inputs[1] = type_of(DTYPE_BF16, 2, CLASSES, COLUMNS, 0, 0);
    desc.inputs[2] = type_of(DTYPE_BF16, 1, CLASSES, 0, 0, 0);
    desc.inputs[3] = type_of(DTYPE_I32, 1, ROWS, 0, 0, 0);
    desc.outputs[2] = type_of(DTYPE_F32, 2, CLASSES, COLUMNS, 0, 0);
    desc.outputs[3] = type_of(DTYPE_F32, 1, CLASSES, 0, 0, 0);
    uint64_t low = scratch_of(&desc);
    setenv("FSDPD_CUDA_HEAD", "f32", 1);
    ck_assert_uint_eq(scratch_of(&desc) - low, 4 * logits);
    ck_assert_uint_lt(low, 3 * logits);
}
#endif
