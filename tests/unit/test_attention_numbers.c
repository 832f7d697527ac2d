/*
 * Attention, rotary positions and the fused head, by both libraries, against PyTorch's results for
 * the same operands: tests/parity/attention.txt, printed by tests/parity/make_attention_numbers.py.
 */
#include "attention_fixture.h"
#include "tests/testing.h"

#include <stdio.h>

/* A line of the file, cut into words. */
struct line {
    char text[4096], *words[64];
    int count;
};

static bool read_line(FILE *file, struct line *line)
{
    if (fgets(line->text, sizeof line->text, file) == NULL) return false;
    line->count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(line->text, " \n", &rest); word != NULL;
         word = strtok_r(NULL, " \n", &rest)) {
        ck_assert_int_lt(line->count, 64);
        line->words[line->count++] = word;
    }
    return true;
}

static int64_t integer(const struct line *line, int word)
{
    ck_assert_int_lt(word, line->count);
    return atoll(line->words[word]);
}

/* Expects this result in the next line of the file. */
static void expect(FILE *file, const char *name, const float *values, int64_t count,
                   double tolerance)
{
    static struct line line;
    ck_assert(read_line(file, &line));
    ck_assert_str_eq(line.words[0], name);
    ck_assert_int_eq(integer(&line, 1), count);
    int64_t step = integer(&line, 2);
    ck_assert_int_eq(line.count - 3, (count + step - 1) / step);
    double largest = 1;
    for (int i = 3; i < line.count; i++)
        if (isfinite(atof(line.words[i]))) largest = fmax(largest, fabs(atof(line.words[i])));
    for (int i = 3; i < line.count; i++) {
        double expected = atof(line.words[i]), found = values[(i - 3) * step];
        if (!(fabs(found - expected) <= tolerance * largest) && found != expected)
            ck_abort_msg("%s at %lld is %.9g, PyTorch has %.9g", name, (long long)(i - 3) * step,
                         found, expected);
    }
}

static void expect_output(FILE *file, const char *name, const struct world *world, int output,
                          double tolerance)
{
    expect(file, name, output_of(world, output), tensor_element_count(&world->desc.outputs[output]),
           tolerance);
}

static void attention_of_pytorch(FILE *file, const struct line *line, enum kernel_library library)
{
    struct attention_case c = {.batch = integer(line, 1),
                               .time = integer(line, 2),
                               .kv_heads = integer(line, 3),
                               .group = integer(line, 4),
                               .head_dim = integer(line, 5),
                               .packed = integer(line, 6) == 1,
                               .causal = integer(line, 7) == 1,
                               .masked = integer(line, 8) > 0,
                               .window = integer(line, 9),
                               .softcap = atof(line->words[10]),
                               .documents = integer(line, 11) > 0,
                               .biased = integer(line, 12) == 1,
                               .alibi = atof(line->words[13]),
                               .rounded = integer(line, 14) == 1};
    struct random random = {(uint64_t)c.time}, other = {1};
    struct world forward = {.desc = attention_desc(&c)}, backward = {0};
    world_fill(&other, &forward);
    for (int i = 0; i < 3; i++)
        if (forward.desc.input_present[i])
            fill_random(&random, input_of(&forward, i),
                        tensor_element_count(&forward.desc.inputs[i]));
    if (c.biased)
        fill_random(&random, input_of(&forward, 4), tensor_element_count(&forward.desc.inputs[4]));
    for (int64_t i = 0; c.masked && i < c.batch * c.time; i++)
        forward.inputs[3].memory[i] = i % c.time < c.time - i / c.time * integer(line, 8);
    for (int64_t i = 0; c.documents && i < c.batch * c.time; i++) {
        int64_t sample = i / c.time, length = integer(line, 11);
        int64_t start = (i % c.time + sample) / length * length - sample;
        ((int32_t *)forward.inputs[5].memory)[i] = start > 0 ? (int32_t)start : 0;
    }
    world_run(&forward, library);
    fill_attention_backward(&other, &backward, &forward);
    fill_random(&random, input_of(&backward, 0), tensor_element_count(&backward.desc.inputs[0]));
    world_run(&backward, library);
    expect_output(file, "y", &forward, 0, 2e-6);
    expect_output(file, "lse", &forward, 1, 2e-6);
    expect_output(file, "dq", &backward, 0, 2e-6);
    if (!c.packed) expect_output(file, "dk", &backward, 1, 2e-6);
    if (!c.packed) expect_output(file, "dv", &backward, 2, 2e-6);
    if (c.biased) expect_output(file, "dbias", &backward, 3, 2e-6);
    world_free(&forward);
    world_free(&backward);
}

static void rope_of_pytorch(FILE *file, const struct line *line, enum kernel_library library)
{
    for (int back = 0; back < 2; back++) {
        struct world world = {.desc = desc_of(back ? OP_ROPE_BACKWARD : OP_ROPE)};
        struct op_desc *desc = &world.desc;
        int64_t time = integer(line, 1), heads = integer(line, 2), head_dim = integer(line, 3);
        desc->attrs.rope.head_dim = head_dim;
        desc->attrs.rope.theta = atof(line->words[4]);
        desc->attrs.rope.scaling = (enum rope_scaling)integer(line, 5);
        desc->attrs.rope.factor = atof(line->words[6]);
        desc->attrs.rope.low_freq_factor = atof(line->words[7]);
        desc->attrs.rope.high_freq_factor = atof(line->words[8]);
        desc->attrs.rope.beta_slow = desc->attrs.rope.low_freq_factor;
        desc->attrs.rope.beta_fast = desc->attrs.rope.high_freq_factor;
        desc->attrs.rope.original_context = integer(line, 9);
        desc->attrs.rope.rotary_dim = integer(line, 10);
        desc->attrs.rope.magnitude = atof(line->words[11]);
        desc->attrs.rope.interleaved = integer(line, 12) == 1;
        desc->inputs[0] = desc->outputs[0] = type_of(DTYPE_F32, 3, 1, time, heads * head_dim, 0);
        struct random random = {(uint64_t)time}, other = {1};
        world_fill(&other, &world);
        fill_random(&random, input_of(&world, 0), time * heads * head_dim);
        world_run(&world, library);
        /* The last bit of a frequency changes the angle at the far end by this much. */
        expect_output(file, back ? "dx" : "y", &world, 0, 1e-7 * (double)time + 1e-6);
        world_free(&world);
    }
}

static void head_of_pytorch(FILE *file, const struct line *line, enum kernel_library library)
{
    int64_t rows = integer(line, 1), columns = integer(line, 2), classes = integer(line, 3);
    struct world forward = {.desc = desc_of(OP_LINEAR_CROSS_ENTROPY)};
    struct world backward = {.desc = desc_of(OP_LINEAR_CROSS_ENTROPY_BACKWARD)};
    struct op_desc *desc = &forward.desc;
    desc->attrs.loss.reduction = integer(line, 5) ? REDUCTION_MEAN : REDUCTION_SUM;
    desc->inputs[0] = type_of(DTYPE_F32, 2, rows, columns, 0, 0);
    desc->inputs[1] = type_of(DTYPE_F32, 2, classes, columns, 0, 0);
    desc->inputs[2] = type_of(DTYPE_F32, 1, classes, 0, 0, 0);
    desc->inputs[3] = type_of(DTYPE_I32, 1, rows, 0, 0, 0);
    desc->input_present[2] = integer(line, 4) == 1;
    desc->outputs[0] = desc->outputs[1] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    backward.desc.attrs = desc->attrs;
    memcpy(backward.desc.inputs, desc->inputs, sizeof desc->inputs);
    backward.desc.input_present[2] = backward.desc.output_present[3] = desc->input_present[2];
    backward.desc.outputs[0] = desc->outputs[0];
    for (int i = 0; i < 3; i++) backward.desc.outputs[1 + i] = desc->inputs[i];
    struct random random = {(uint64_t)rows}, other = {1};
    world_fill(&other, &forward);
    world_fill(&other, &backward);
    for (int i = 0; i < 3; i++)
        if (desc->input_present[i])
            fill_random(&random, input_of(&forward, i), tensor_element_count(&desc->inputs[i]));
    for (int64_t i = 0; i < rows; i++)
        ((int32_t *)forward.inputs[3].memory)[i] =
            (int32_t)(random_bits(&random) % (uint64_t)(classes + 1)) - 1;
    for (int i = 0; i < 4; i++)
        if (desc->input_present[i])
            memcpy(backward.inputs[i].memory, forward.inputs[i].memory, forward.inputs[i].bytes);
    world_run(&forward, library);
    world_run(&backward, library);
    ck_assert_float_eq(output_of(&forward, 0)[0], output_of(&backward, 0)[0]);
    expect_output(file, "loss", &forward, 0, 1e-6);
    expect_output(file, "correct", &forward, 1, 0);
    expect_output(file, "dx", &backward, 1, 2e-6);
    expect_output(file, "dweight", &backward, 2, 2e-6);
    if (desc->input_present[2]) expect_output(file, "dbias", &backward, 3, 2e-6);
    world_free(&forward);
    world_free(&backward);
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(numbers_of_pytorch, 0, 2)
{
    const char *srcdir = getenv("srcdir");
    char *path = mem_printf("%s/tests/parity/attention.txt", srcdir ? srcdir : ".");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    static struct line line;
    int cases[3] = {0};
    while (read_line(file, &line)) {
        if (strcmp(line.words[0], "attention") == 0 && ++cases[0])
            attention_of_pytorch(file, &line, (enum kernel_library)_i);
        else if (strcmp(line.words[0], "rope") == 0 && ++cases[1])
            rope_of_pytorch(file, &line, (enum kernel_library)_i);
        else if (strcmp(line.words[0], "head") == 0 && ++cases[2])
            head_of_pytorch(file, &line, (enum kernel_library)_i);
        else ck_abort_msg("no test for %s", line.words[0]);
    }
    ck_assert(cases[0] >= 14 && cases[1] >= 9 && cases[2] >= 3);
    fclose(file);
    free(path);
}
