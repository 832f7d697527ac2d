/*
 * Activations, norms, softmax, embeddings and broadcast sums, with both libraries, against PyTorch:
 * tests/parity/sequence.txt, made by tests/parity/make_sequence_numbers.py.
 */
#include <stdio.h>

#include "kernel_fixture.h"
#include "tests/testing.h"

enum { MOST = 12000, MAX_WORDS = 200, INPUTS = 8 };

struct line {
    char text[8192];
    char *words[MAX_WORDS];
    int count;
};

static bool read_line(FILE *file, struct line *line)
{
    if (fgets(line->text, sizeof line->text, file) == NULL) return false;
    line->count = 0;
    for (char *word = strtok(line->text, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        ck_assert_int_lt(line->count, MAX_WORDS);
        line->words[line->count++] = word;
    }
    return line->count > 0;
}

static int64_t integer(const struct line *line, int word)
{
    ck_assert_int_lt(word, line->count);
    return atoll(line->words[word]);
}

static enum kernel_library library;
static struct random drawn;
static float operands[INPUTS][MOST]; /* in drawing order */
static float results[4][MOST];

static void start(int64_t seed, int count, const int64_t *sizes)
{
    drawn.state = (uint64_t)seed;
    for (int i = 0; i < count; i++) fill_random(&drawn, operands[i], sizes[i]);
    for (int i = 0; i < 4; i++) memset(results[i], 0xff, sizeof results[i]);
}

/* Expects this result in the next line of the file. */
static void expect(FILE *file, const struct line *of, const char *name, const float *found,
                   int64_t count, double tolerance)
{
    static struct line line;
    ck_assert(read_line(file, &line));
    ck_assert_str_eq(line.words[0], name);
    ck_assert_int_eq(integer(&line, 1), count);
    int64_t step = integer(&line, 2);
    double largest = 1;
    for (int i = 3; i < line.count; i++) largest = fmax(largest, fabs(atof(line.words[i])));
    ck_assert_int_eq(line.count - 3, (count + step - 1) / step);
    for (int i = 3; i < line.count; i++) {
        double expected = atof(line.words[i]), value = found[(i - 3) * step];
        ck_assert_msg(fabs(value - expected) <= tolerance * largest, /* also fails for NaN */
                      "%s of %s (library %d), element %lld: %.9g, PyTorch has %.9g", name,
                      of->words[0], (int)library, (long long)((i - 3) * step), value, expected);
    }
}

/* A description whose operands are all of one type. */
static struct op_desc same(enum op_kind kind, struct tensor_type type)
{
    struct op_desc desc = desc_of(kind);
    for (int i = 0; i < OP_MAX_INPUTS; i++) desc.inputs[i] = type;
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) desc.outputs[i] = type;
    return desc;
}

static const struct activation {
    const char *name;
    enum op_kind forward, backward;
    bool two;         /* operands */
    bool from_output; /* the gradient is computed from y */
} activations[] = {
    {"gelu", OP_GELU, OP_GELU_BACKWARD, false, false},
    {"gelu_tanh", OP_GELU, OP_GELU_BACKWARD, false, false},
    {"silu", OP_SILU, OP_SILU_BACKWARD, false, false},
    {"gelu_mul", OP_GELU_MUL, OP_GELU_MUL_BACKWARD, true, false},
    {"gelu_tanh_mul", OP_GELU_MUL, OP_GELU_MUL_BACKWARD, true, false},
    {"silu_mul", OP_SILU_MUL, OP_SILU_MUL_BACKWARD, true, false},
    {"tanh", OP_TANH, OP_TANH_BACKWARD, false, true},
    {"sigmoid", OP_SIGMOID, OP_SIGMOID_BACKWARD, false, true},
    {"squared_relu", OP_SQUARED_RELU, OP_SQUARED_RELU_BACKWARD, false, false},
    {"scale", OP_SCALE, OP_SCALE, false, false},
    {"reciprocal", OP_RECIPROCAL, OP_DIV_BACKWARD, false, true},
};

static void check_activation(FILE *file, const struct line *line)
{
    int64_t count = integer(line, 1);
    const struct activation *a = activations;
    while (strcmp(a->name, line->words[0]) != 0) a++;
    struct tensor_type type = type_of(DTYPE_F32, 1, count, 0, 0, 0);
    struct op_desc forward = same(a->forward, type), backward = same(a->backward, type);
    if (a->forward == OP_GELU || a->forward == OP_GELU_MUL)
        forward.attrs.gelu.tanh = backward.attrs.gelu.tanh = strstr(a->name, "tanh") != NULL;
    if (a->forward == OP_SCALE || a->forward == OP_RECIPROCAL)
        forward.attrs.scale.factor = a->forward == OP_SCALE ? 3 : 2;
    if (a->forward == OP_SCALE) {
        forward.attrs.scale.offset = -0.5;
        backward.attrs.scale.factor = 3;
    }
    start(count, a->two ? 3 : 2, (int64_t[]){count, count, count});
    for (int i = 0; i < (a->two ? 2 : 1); i++)
        for (int64_t at = 0; at < count; at++) operands[i][at] *= 4;
    struct kernel_call call = {.inputs = {operands[0], operands[1]}, .outputs = {results[0]}};
    run_once(library, &forward, call);
    const float *dy = operands[a->two ? 2 : 1], *third = a->two ? operands[1] : operands[0];
    call = (struct kernel_call){.inputs = {dy, a->from_output ? results[0] : operands[0], third},
                                .outputs = {results[1], results[2]}};
    run_once(library, &backward, call);
    expect(file, line, "y", results[0], count, 5e-7);
    expect(file, line, "dx", results[1], count, 5e-7);
    if (a->two) expect(file, line, "dx", results[2], count, 5e-7);
}

static void check_div(FILE *file, const struct line *line)
{
    int64_t count = integer(line, 1);
    struct tensor_type type = type_of(DTYPE_F32, 1, count, 0, 0, 0);
    struct op_desc div = same(OP_DIV, type), backward = same(OP_DIV_BACKWARD, type);
    start(count, 3, (int64_t[]){count, count, count});
    float *a = operands[0], *b = operands[1], *dy = operands[2];
    for (int64_t i = 0; i < count; i++) b[i] += 2;
    run_once(library, &div, (struct kernel_call){.inputs = {a, b}, .outputs = {results[0]}});
    run_once(library, &div, (struct kernel_call){.inputs = {dy, b}, .outputs = {results[1]}});
    run_once(library, &backward,
             (struct kernel_call){.inputs = {dy, results[0], b}, .outputs = {results[2]}});
    expect(file, line, "y", results[0], count, 3e-7);
    expect(file, line, "da", results[1], count, 3e-7);
    expect(file, line, "db", results[2], count, 3e-7);
}

static void check_narrow(FILE *file, const struct line *line)
{
    int64_t rows = integer(line, 1), columns = integer(line, 2), length = integer(line, 4);
    struct op_desc narrow = same(OP_SLICE, type_of(DTYPE_F32, 2, rows, columns, 0, 0));
    struct op_desc backward = same(OP_SLICE_BACKWARD, narrow.inputs[0]);
    narrow.outputs[0].dims[1] = backward.inputs[0].dims[1] = length;
    narrow.attrs.slice.dim = backward.attrs.slice.dim = 1;
    narrow.attrs.slice.start = backward.attrs.slice.start = integer(line, 3);
    start(rows, 3, (int64_t[]){rows * columns, rows * length, rows * columns});
    run_once(library, &narrow,
             (struct kernel_call){.inputs = {operands[0]}, .outputs = {results[0]}});
    run_once(library, &backward,
             (struct kernel_call){.inputs = {operands[1], operands[2]}, .outputs = {results[1]}});
    expect(file, line, "y", results[0], rows * length, 1e-7);
    expect(file, line, "dx", results[1], rows * columns, 1e-7);
}

static void check_softmax(FILE *file, const struct line *line)
{
    int64_t rows = integer(line, 1), columns = integer(line, 2), count = rows * columns;
    struct tensor_type type = type_of(DTYPE_F32, 2, rows, columns, 0, 0);
    struct op_desc forward = same(OP_SOFTMAX, type), backward = same(OP_SOFTMAX_BACKWARD, type);
    start(rows, 2, (int64_t[]){count, count});
    run_once(library, &forward,
             (struct kernel_call){.inputs = {operands[0]}, .outputs = {results[0]}});
    run_once(library, &backward,
             (struct kernel_call){.inputs = {operands[1], results[0]}, .outputs = {results[1]}});
    expect(file, line, "y", results[0], count, 3e-7);
    expect(file, line, "dx", results[1], count, 3e-7);
}

static void check_norm(FILE *file, const struct line *line)
{
    int64_t rows = integer(line, 1), columns = integer(line, 2), count = rows * columns;
    bool centered = strcmp(line->words[0], "layer_norm") == 0;
    struct tensor_type type = type_of(DTYPE_F32, 2, rows, columns, 0, 0);
    struct tensor_type row = type_of(DTYPE_F32, 1, columns, 0, 0, 0);
    struct tensor_type statistics = type_of(DTYPE_F32, 1, rows, 0, 0, 0);
    float *x = operands[0], *residual = operands[1], *weight = operands[2], *bias = operands[3];
    float *dy = operands[4], *other = operands[5], *mean = operands[6], *rstd = operands[7];
    float *y = results[0], *sum = results[1], *dx = results[0];
    start(rows, 6, (int64_t[]){count, count, columns, columns, count, count});
    struct op_desc desc = same(centered ? OP_LAYER_NORM : OP_RMS_NORM, type);
    desc.attrs.norm.eps = atof(line->words[3]);
    desc.attrs.norm.one_plus = strcmp(line->words[0], "gemma_norm") == 0;
    desc.inputs[1] = row;
    desc.outputs[1] = statistics;
    struct kernel_call call = {.inputs = {x, weight, residual}, .outputs = {y, rstd, sum}};
    if (centered) {
        desc.inputs[2] = row;
        desc.outputs[2] = statistics;
        call = (struct kernel_call){.inputs = {x, weight, bias, residual},
                                    .outputs = {y, mean, rstd, sum}};
    }
    run_once(library, &desc, call);
    expect(file, line, "y", y, count, 2e-6);
    expect(file, line, "sum", sum, count, 1e-7);
    union op_attrs attrs = desc.attrs;
    desc = same(centered ? OP_LAYER_NORM_BACKWARD : OP_RMS_NORM_BACKWARD, type);
    desc.attrs = attrs;
    desc.inputs[2] = desc.outputs[1] = desc.outputs[2] = row;
    desc.inputs[3] = statistics;
    call = (struct kernel_call){.inputs = {dy, sum, weight, rstd, other},
                                .outputs = {dx, results[2], results[3]}};
    if (centered) {
        desc.inputs[4] = statistics;
        call.inputs[3] = mean;
        call.inputs[4] = rstd;
        call.inputs[5] = other;
    }
    run_once(library, &desc, call);
    /* One element is its own mean: the difference is a rounding error, times rstd. */
    expect(file, line, "dx", dx, count, 3e-6);
    expect(file, line, "dweight", results[2], columns, 3e-6);
    if (centered) expect(file, line, "dbias", results[3], columns, 1e-6);
}

static void check_embedding(FILE *file, const struct line *line)
{
    int64_t tokens = integer(line, 1), rows = integer(line, 2), columns = integer(line, 3);
    int32_t indices[MOST / 10];
    start(tokens, 1, (int64_t[]){rows * columns});
    for (int64_t i = 0; i < tokens; i++)
        indices[i] = (int32_t)(random_bits(&drawn) % (uint64_t)rows);
    fill_random(&drawn, operands[1], tokens * columns);
    struct op_desc desc = desc_of(OP_EMBEDDING);
    desc.attrs.embedding.padding_index = integer(line, 4);
    desc.inputs[0] = type_of(DTYPE_I32, 1, tokens, 0, 0, 0);
    desc.inputs[1] = type_of(DTYPE_F32, 2, rows, columns, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 2, tokens, columns, 0, 0);
    struct kernel_call call = {.inputs = {indices, operands[0]}, .outputs = {results[0]}};
    run_once(library, &desc, call);
    struct tensor_type table = desc.inputs[1];
    desc.kind = OP_EMBEDDING_BACKWARD;
    desc.inputs[1] = desc.outputs[0];
    desc.outputs[0] = table;
    call = (struct kernel_call){.inputs = {indices, operands[1]}, .outputs = {results[1]}};
    run_once(library, &desc, call);
    expect(file, line, "y", results[0], tokens * columns, 1e-7);
    expect(file, line, "dweight", results[1], rows * columns, 1e-6);
}

static void check_broadcast(FILE *file, const struct line *line)
{
    int64_t batch = integer(line, 1), rows = integer(line, 2), columns = integer(line, 3);
    int64_t part = rows * columns, count = batch * part;
    struct op_desc add = same(OP_ADD, type_of(DTYPE_F32, 3, batch, rows, columns, 0));
    add.inputs[1] = type_of(DTYPE_F32, 2, rows, columns, 0, 0);
    struct op_desc sum = desc_of(OP_SUM_LEADING);
    sum.inputs[0] = add.inputs[0];
    sum.outputs[0] = add.inputs[1];
    start(batch, 3, (int64_t[]){count, part, count});
    run_once(library, &add,
             (struct kernel_call){.inputs = {operands[0], operands[1]}, .outputs = {results[0]}});
    run_once(library, &sum, (struct kernel_call){.inputs = {operands[2]}, .outputs = {results[1]}});
    expect(file, line, "y", results[0], count, 1e-7);
    expect(file, line, "db", results[1], part, 3e-7);
}

static const struct check {
    const char *name;
    void (*check)(FILE *file, const struct line *line);
    int least; /* cases in the file */
} checks[] = {
    {"gelu", check_activation, 2},
    {"gelu_tanh", check_activation, 2},
    {"silu", check_activation, 2},
    {"silu_mul", check_activation, 2},
    {"gelu_mul", check_activation, 2},
    {"gelu_tanh_mul", check_activation, 2},
    {"tanh", check_activation, 2},
    {"softmax", check_softmax, 4},
    {"sigmoid", check_activation, 2},
    {"squared_relu", check_activation, 2},
    {"scale", check_activation, 2},
    {"reciprocal", check_activation, 2},
    {"div", check_div, 2},
    {"narrow", check_narrow, 2},
    {"layer_norm", check_norm, 8},
    {"rms_norm", check_norm, 4},
    {"gemma_norm", check_norm, 4},
    {"embedding", check_embedding, 2},
    {"broadcast", check_broadcast, 2},
};
enum { CHECKS = COUNT_OF(checks) };

TESTS_BELOW(.timeout = 60);

LOOP_TEST(numbers_of_pytorch, KERNELS_REFERENCE, KERNELS_CPU + 1)
{
    const char *srcdir = getenv("srcdir");
    char *path = mem_printf("%s/tests/parity/sequence.txt", srcdir ? srcdir : ".");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    library = (enum kernel_library)_i;
    static struct line line;
    int seen[CHECKS] = {0};
    while (read_line(file, &line)) {
        int which = 0;
        while (which < CHECKS && strcmp(checks[which].name, line.words[0]) != 0) which++;
        ck_assert_msg(which < CHECKS, "no test for %s", line.words[0]);
        checks[which].check(file, &line);
        seen[which]++;
    }
    for (int i = 0; i < CHECKS; i++)
        ck_assert_msg(seen[i] >= checks[i].least, "%d cases of %s", seen[i], checks[i].name);
    fclose(file);
    free(path);
}
