/*
 * Weights from files: single and sharded, every dtype, prefixes and ties; and inconsistent files.
 * The model is a small one of linear layers with names like GPT-2's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/weights.h"
#include "family_files.h"
#include "hf/peft.h"
#include "hf/safetensors.h"
#include "model/lora.h"
#include "tests/testing.h"

static const char model_text[] = "name: Small\n"
                                 "input: [4]\n"
                                 "classes: 3\n"
                                 "blocks:\n"
                                 "  Body:\n"
                                 "    modules:\n"
                                 "      wte: Linear(4, 3, bias=False)\n"
                                 "      ln_f: Linear(3, 4)\n"
                                 "    forward:\n"
                                 "      - output = ln_f(wte(x))\n"
                                 "modules:\n"
                                 "  transformer: Body()\n"
                                 "  lm_head: Linear(4, 3, bias=False)\n"
                                 "forward:\n"
                                 "  - output = lm_head(transformer(x))\n"
                                 "loss: cross_entropy(output, target)\n"
                                 "tie: {lm_head.weight: transformer.wte.weight}\n";

static struct model *model;
static char directory[64]; /* the data root; the weights are in its "w" */
static char weights_dir[80];
static struct weights_source source;

static void set_up(void)
{
    status_t status = model_parse(model_text, sizeof model_text - 1, "small.yaml", &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    strcpy(directory, "/tmp/fsdpd-weights-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(weights_dir, sizeof weights_dir, "%s/w", directory);
    ck_assert_int_eq(mkdir(weights_dir, 0700), 0);
    source = (struct weights_source){.dir = weights_dir, .root = directory, .family = family_file("gpt2")};
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    ck_assert_int_eq(system(command), 0);
    model_free(model);
}

static void write_bytes(const char *name, const void *bytes, size_t size)
{
    char *path = file_path_join(weights_dir, name);
    ck_assert_ptr_null(file_write_atomic(path, bytes, size, 0600));
    free(path);
}

/* A tensor whose element i is start + i. */
struct tensor {
    const char *name, *dtype;
    int dim_count;
    int64_t dims[4];
    float start;
};

static uint16_t half_bits(float value)
{
    /* exact for the tests' values: integers up to 2048 and their halves */
    int exponent;
    if (value == 0) return 0;
    float fraction = frexpf(fabsf(value), &exponent);
    return (uint16_t)((value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                      ((int)(fraction * 2048) & 0x3ff));
}

static void add_values(struct buf *file, const struct tensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->dim_count; d++) count *= tensor->dims[d];
    for (int64_t i = 0; i < count; i++) {
        float value = tensor->start + (float)i;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint16_t brain = (uint16_t)(bits >> 16), half = half_bits(value);
        int64_t integer = (int64_t)value;
        if (strcmp(tensor->dtype, "F32") == 0) buf_add(file, &value, sizeof value);
        else if (strcmp(tensor->dtype, "F16") == 0) buf_add(file, &half, sizeof half);
        else if (strcmp(tensor->dtype, "BF16") == 0) buf_add(file, &brain, sizeof brain);
        else buf_add(file, &integer, sizeof integer);
    }
}

static void write_file(const char *name, const struct tensor *tensors, int count)
{
    struct safetensors_entry entries[8];
    for (int i = 0; i < count; i++) {
        entries[i] = (struct safetensors_entry){.name = (char *)tensors[i].name,
                                                .dtype = (char *)tensors[i].dtype,
                                                .dim_count = tensors[i].dim_count};
        memcpy(entries[i].dims, tensors[i].dims, sizeof tensors[i].dims);
    }
    struct buf file = {0};
    safetensors_write_header(&file, entries, count, NULL, 0);
    for (int i = 0; i < count; i++) add_values(&file, &tensors[i]);
    write_bytes(name, file.data, file.length);
    buf_deinit(&file);
}

static const struct tensor good[] = {
    {"transformer.wte.weight", "F32", 2, {3, 4}, 100},
    {"transformer.ln_f.weight", "F32", 2, {4, 3}, 200},
    {"transformer.ln_f.bias", "F32", 1, {4}, 300},
};

static void expect_values(struct weights *weights, const char *name, float start)
{
    int parameter = model_find_parameter(model, name);
    float values[12];
    int64_t count = tensor_element_count(&model->parameters[parameter].type);
    for (int64_t from = 0; from < count; from++) {
        size_t n = (size_t)(count - from);
        status_t status = weights_read(weights, parameter, from, n, values);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        for (size_t i = 0; i < n; i++)
            ck_assert_float_eq(values[i], start + (float)from + (float)i);
    }
}

static struct weights *open_good(void)
{
    struct weights *weights = NULL;
    status_t status = weights_open(&source, model, &weights);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_ptr_nonnull(weights);
    return weights;
}

static void expect_refused(enum status_code code, const char *message)
{
    struct weights *weights = NULL;
    status_t status = weights_open(&source, model, &weights);
    ck_assert_msg(status != NULL, "expected %s", message);
    ck_assert_msg(strstr(status_message(status), message) != NULL, "%s", status_message(status));
    ck_assert_int_eq(status_code(status), code);
    ck_assert_ptr_null(weights);
    status_free(status);
}

static void expect_all(struct weights *weights)
{
    expect_values(weights, "transformer.wte.weight", 100);
    expect_values(weights, "transformer.ln_f.weight", 200);
    expect_values(weights, "transformer.ln_f.bias", 300);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

TEST(single)
{
    static const char *const dtypes[] = {"F32", "F16", "BF16"};
    for (int k = 0; k < 3; k++) {
        struct tensor tensors[3];
        memcpy(tensors, good, sizeof good);
        for (int i = 0; i < 3; i++) {
            tensors[i].dtype = dtypes[k];
            if (k == 2) tensors[i].start -= 64 * (float)(i + 1); /* bf16 has 8 bits */
        }
        write_file("model.safetensors", tensors, 3);
        struct weights *weights = open_good();
        for (int i = 0; i < 3; i++) expect_values(weights, good[i].name, tensors[i].start);
        ck_assert_ptr_null(weights_note(weights));
        weights_free(weights);
    }
}

/* A file with PyTorch's names, under any file name; no name stands for another one. */
TEST(own_names)
{
    source.file = "pulled.st";
    source.own_names = true;
    struct tensor tensors[4];
    memcpy(tensors, good, sizeof good);
    write_file("pulled.st", tensors, 3);
    write_bytes("model.safetensors", "x", 1); /* which is not needed */
    struct weights *weights = open_good();
    expect_all(weights);
    weights_free(weights);
    tensors[3] = tensors[0]; /* both names of a tied tensor, as in a pull */
    tensors[3].name = "lm_head.weight";
    write_file("pulled.st", tensors, 4);
    weights = open_good();
    expect_all(weights);
    weights_free(weights);
    tensors[0].name = "wte.weight"; /* transformers' file might omit the prefix */
    tensors[1].name = "ln_f.weight";
    write_file("pulled.st", tensors, 3);
    expect_refused(STATUS_INVALID_ARGUMENT, "2 that the model does not have");
    expect_refused(STATUS_INVALID_ARGUMENT, "w/pulled.st: tensors of the weights");
    source.file = "not-there";
    expect_refused(STATUS_NOT_FOUND, "not-there");
}

/* CLIP's logit_scale. */
TEST(a_scalar_is_a_parameter_of_one_element)
{
    static const char text[] = "name: N\ninput: [4]\nclasses: 3\n"
                               "modules: {scale: Parameter(1), head: 'Linear(4, 3)'}\n"
                               "forward: ['output = head(x) * scale']\n"
                               "loss: cross_entropy(output, target)\n";
    struct tensor tensors[] = {{"scale", "F32", 0, {0}, 7},
                               {"head.weight", "F32", 2, {3, 4}, 100},
                               {"head.bias", "F32", 1, {3}, 9}};
    model_free(model);
    model = NULL;
    status_t status = model_parse(text, sizeof text - 1, "net.yaml", &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    source.file = "clip.st";
    source.own_names = true;
    write_file("clip.st", tensors, 3);
    struct weights *weights = open_good();
    expect_values(weights, "scale", 7);
    expect_values(weights, "head.weight", 100);
    weights_free(weights);
    tensors[0].dim_count = 1;
    tensors[0].dims[0] = 2;
    write_file("clip.st", tensors, 3);
    expect_refused(STATUS_INVALID_ARGUMENT, "(2,), expected (1,)");
    tensors[0].dim_count = tensors[2].dim_count = 0;
    write_file("clip.st", tensors, 3);
    expect_refused(STATUS_INVALID_ARGUMENT, "(), expected (3,)");
}

TEST(half)
{
    /* subnormal, smallest normal, largest, -0, one third */
    static const uint16_t bits[] = {0x0001, 0x03ff, 0x0400, 0x7bff, 0x8000, 0xfbff,
                                    0x3800, 0x3555, 0x83ff, 0x3c00, 0xc000, 0x0000};
    static const float expected[] = {0x1p-24F, 0x1.ff8p-15F, 0x1p-14F,      65504, -0.0F, -65504,
                                     0.5F,     0x1.554p-2F,  -0x1.ff8p-15F, 1,     -2,    0};
    struct tensor tensors[3];
    memcpy(tensors, good, sizeof good);
    tensors[0].dtype = "F16";
    write_file("model.safetensors", tensors, 3);
    char *path = file_path_join(weights_dir, "model.safetensors");
    struct buf file = {0};
    ck_assert_ptr_null(file_read(path, 1 << 20, &file));
    memcpy(file.data + file.length - 16 * 4 - 24, bits, sizeof bits);
    write_bytes("model.safetensors", file.data, file.length);
    buf_deinit(&file);
    free(path);
    struct weights *weights = open_good();
    float values[12];
    ck_assert_ptr_null(weights_read(weights, 0, 0, 12, values));
    for (int i = 0; i < 12; i++)
        ck_assert_msg(memcmp(&values[i], &expected[i], 4) == 0, "%d: %a, expected %a", i,
                      (double)values[i], (double)expected[i]);
    weights_free(weights);
}

/* Writes `bits` over element `place` of the file's only tensor, from its end. */
static void replace_element(uint32_t bits, size_t width, size_t from_end)
{
    char *path = file_path_join(weights_dir, "model.safetensors");
    struct buf file = {0};
    ck_assert_ptr_null(file_read(path, 1 << 20, &file));
    memcpy(file.data + file.length - from_end * width, &bits, width);
    write_bytes("model.safetensors", file.data, file.length);
    buf_deinit(&file);
    free(path);
}

/* Infinite and NaN, in every type and at every kind of place, when that part is read and no other.
 * A count's bytes are no numbers. */
TEST(what_is_not_finite_is_found)
{
    enum { COUNT = 700 };
    static const struct {
        const char *dtype;
        uint32_t bits[4];
    } types[] = {{"F32", {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001}},
                 {"F16", {0x7c00, 0xfc00, 0x7e00, 0xfc01}},
                 {"BF16", {0x7f80, 0xff80, 0x7fc0, 0xff81}}};
    static const size_t places[] = {0, 1, 255, 256, 511, 512, COUNT - 1};
    static const char text[] =
        "name: Wide\ninput: [700, 1, 1]\nclasses: 2\nmodules: {norm: \"BatchNorm2d(700)\", "
        "out: \"Linear(700, 2)\"}\nforward: [\"output = out(flatten(norm(x), 1))\"]\n"
        "loss: cross_entropy(output, target)\n";
    model_free(model);
    status_t status = model_parse(text, sizeof text - 1, "wide.yaml", &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    source.own_names = true;
    const int scales = model_find_parameter(model, "norm.running_var"),
              steps = model_find_parameter(model, "norm.num_batches_tracked");
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        for (size_t n = 0; n < 4 * COUNT_OF(places); n++) {
            const struct tensor tensors[] = {{"norm.num_batches_tracked", "I64", 0, {0}, 7},
                                             {"norm.bias", types[t].dtype, 1, {COUNT}, 1},
                                             {"norm.running_mean", types[t].dtype, 1, {COUNT}, 1},
                                             {"norm.weight", types[t].dtype, 1, {COUNT}, 1},
                                             {"out.bias", types[t].dtype, 1, {2}, 1},
                                             {"out.weight", types[t].dtype, 2, {2, COUNT}, 1},
                                             {"norm.running_var", types[t].dtype, 1, {COUNT}, 1}};
            size_t place = places[n / 4];
            float values[COUNT];
            write_file("model.safetensors", tensors, COUNT_OF(tensors));
            replace_element(types[t].bits[n % 4], t == 0 ? 4 : 2, COUNT - place);
            struct weights *weights = open_good();
            char *expected = mem_printf("%s/model.safetensors: element %zu of tensor "
                                        "norm.running_var is %s: a model with it cannot train",
                                        weights_dir, place, n % 4 < 2 ? "infinite" : "NaN");
            for (size_t from = 0; from <= place; from += place > 0 ? place : 1) {
                status = weights_read(weights, scales, (int64_t)from, COUNT - from, values);
                ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
                ck_assert_str_eq(status_message(status), expected);
                status_free(status);
            }
            ck_assert_ptr_null(weights_read(weights, scales, 0, place, values));
            ck_assert_ptr_null(
                weights_read(weights, scales, (int64_t)place + 1, COUNT - 1 - place, values));
            free(expected);
            weights_free(weights);
        }
    }
    const struct tensor tensors[] = {{"norm.bias", "F32", 1, {COUNT}, 1},
                                     {"norm.running_mean", "F32", 1, {COUNT}, 1},
                                     {"norm.running_var", "F32", 1, {COUNT}, 1},
                                     {"norm.weight", "F32", 1, {COUNT}, 1},
                                     {"out.bias", "F32", 1, {2}, 1},
                                     {"out.weight", "F32", 2, {2, COUNT}, 1},
                                     {"norm.num_batches_tracked", "I64", 0, {0}, 7}};
    write_file("model.safetensors", tensors, COUNT_OF(tensors));
    replace_element(0x7fc00000, 4, 2);
    struct weights *weights = open_good();
    uint32_t bits[2];
    ck_assert_ptr_null(weights_read(weights, steps, 0, 2, (float *)(void *)bits));
    ck_assert(bits[0] == 0x7fc00000 && bits[1] == 0);
    weights_free(weights);
}

TEST(names)
{
    /* the bare model's names, a buffer, the tied tensor, another head */
    const struct tensor tensors[] = {
        {"ln_f.bias", "F32", 1, {4}, 300},       {"wte.weight", "F32", 2, {3, 4}, 100},
        {"ln_f.weight", "F32", 2, {4, 3}, 200},  {"h.0.attn.bias", "I64", 1, {2}, 0},
        {"lm_head.weight", "F32", 2, {3, 4}, 7}, {"score.weight", "F32", 1, {2}, 0},
    };
    write_file("model.safetensors", tensors, 6);
    struct weights *weights = open_good();
    expect_all(weights);
    ck_assert_str_eq(weights_note(weights),
                     "the weights have 1 tensor of another head, which are left out: score.weight");
    weights_free(weights);
}

TEST(tied_under_its_other_name)
{
    struct tensor tensors[3];
    memcpy(tensors, good, sizeof good);
    tensors[0].name = "lm_head.weight";
    write_file("model.safetensors", tensors, 3);
    struct weights *weights = open_good();
    expect_all(weights);
    weights_free(weights);
}

static void write_index(const char *text)
{
    write_bytes("model.safetensors.index.json", text, strlen(text));
}

static const char index_text[] =
    "{\"metadata\": {\"total_size\": 112}, \"weight_map\": {"
    "\"transformer.wte.weight\": \"model-00001-of-00002.safetensors\","
    "\"transformer.ln_f.weight\": \"model-00002-of-00002.safetensors\","
    "\"transformer.ln_f.bias\": \"model-00002-of-00002.safetensors\"}}";

static void write_shards(void)
{
    write_file("model-00001-of-00002.safetensors", good, 1);
    write_file("model-00002-of-00002.safetensors", good + 1, 2);
    write_index(index_text);
}

TEST(sharded)
{
    write_shards();
    struct weights *weights = open_good();
    expect_all(weights);
    expect_all(weights); /* back to the first file */
    weights_free(weights);
}

TEST(nothing_there)
{
    struct weights *weights = NULL;
    ck_assert_ptr_null(weights_open(&source, model, &weights));
    ck_assert_ptr_null(weights);
    write_bytes("pytorch_model.bin", "x", 1);
    expect_refused(STATUS_UNIMPLEMENTED, "the weights are in pytorch_model.bin");
}

TEST(tensors_are_listed_together)
{
    const struct tensor tensors[] = {
        {"transformer.wte.weight", "F32", 2, {4, 3}, 0},
        {"transformer.ln_f.bias", "I64", 1, {4}, 0},
        {"transformer.h.0.bias", "F32", 1, {2}, 0},
        {"odd\nname", "F32", 1, {2}, 0},
    };
    write_file("model.safetensors", tensors, 4);
    char *message = mem_printf(
        "%s: tensors of the weights: 1 missing (transformer.ln_f.weight); 2 that the model does "
        "not "
        "have (transformer.h.0.bias, odd?name); 1 of another shape (transformer.wte.weight: (4, "
        "3), "
        "expected (3, 4)); 1 of a type that is not supported (transformer.ln_f.bias: I64)",
        weights_dir);
    expect_refused(STATUS_INVALID_ARGUMENT, message);
    free(message);
}

static void use_pictures(void)
{
    static const char text[] = "name: Picture\n"
                               "input: [10, 2]\n"
                               "classes: 2\n"
                               "blocks:\n"
                               "  Embeddings:\n"
                               "    modules: {position_embeddings: \"Parameter(1, 10, 2)\"}\n"
                               "    forward: [output = x + position_embeddings]\n"
                               "  Body:\n"
                               "    modules: {embeddings: Embeddings()}\n"
                               "    forward: [output = embeddings(x)]\n"
                               "modules: {vit: Body()}\n"
                               "forward: [\"output = mean(vit(x), dim=1)\"]\n"
                               "loss: cross_entropy(output, target)\n";
    model_free(model);
    status_t status = model_parse(text, sizeof text - 1, "picture.yaml", &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    source.family = family_file("vit");
}

/* A class token and 2 x 2 places become one and 3 x 3: what PyTorch's F.interpolate(mode="bicubic")
 * makes of 3 to 10, whatever part is read. */
TEST(another_grid)
{
    static const float expected[] = {1,         2,         2.479167F, 3.479167F, 3.652778F,
                                     4.652778F, 4.826389F, 5.826389F, 4.826389F, 5.826389F,
                                     6,         7,         7.173611F, 8.173611F, 7.173611F,
                                     8.173611F, 8.347222F, 9.347222F, 9.520833F, 10.520833F};
    static const char *const dtypes[] = {"F32", "F16", "BF16"};
    use_pictures();
    for (int k = 0; k < 3; k++) {
        struct tensor tensor = {"embeddings.position_embeddings", dtypes[k], 3, {1, 5, 2}, 1};
        write_file("model.safetensors", &tensor, 1);
        struct weights *weights = open_good();
        ck_assert_ptr_nonnull(strstr(weights_note(weights), "position_embeddings from 2 x 2 to 3"));
        for (int from = 0; from < 20; from++)
            for (int count = 1; count <= 20 - from; count++) {
                float values[20];
                ck_assert_ptr_null(weights_read(weights, 0, from, (size_t)count, values));
                for (int i = 0; i < count; i++)
                    ck_assert_float_eq_tol(values[i], expected[from + i], 1e-5F);
            }
        weights_free(weights);
    }
}

/* Not a square grid, another width, no grid at all, integers. */
TEST(no_other_grid)
{
    static const struct {
        const char *dtype;
        int64_t dims[4];
        const char *message;
    } lies[] = {
        {"F32", {1, 6, 2}, "1 of another shape (vit.embeddings.position_embeddings: (1, 6, 2), "},
        {"F32", {1, 5, 3}, "1 of another shape (vit.embeddings.position_embeddings: (1, 5, 3), "},
        {"F32", {2, 5, 2}, "1 of another shape (vit.embeddings.position_embeddings: (2, 5, 2), "},
        {"F32", {1, 1, 2}, "1 of another shape (vit.embeddings.position_embeddings: (1, 1, 2), "},
        {"I64", {1, 5, 2}, "1 of another shape (vit.embeddings.position_embeddings: (1, 5, 2), "},
    };
    use_pictures();
    for (size_t i = 0; i < COUNT_OF(lies); i++) {
        struct tensor tensor = {"vit.embeddings.position_embeddings", lies[i].dtype, 3, {0}, 1};
        memcpy(tensor.dims, lies[i].dims, sizeof tensor.dims);
        write_file("model.safetensors", &tensor, 1);
        expect_refused(STATUS_INVALID_ARGUMENT, lies[i].message);
    }
}

TEST(twice)
{
    const struct tensor tensors[] = {good[0],
                                     good[1],
                                     good[2],
                                     {"wte.weight", "F32", 2, {3, 4}, 1}};
    write_file("model.safetensors", tensors, 4);
    expect_refused(STATUS_INVALID_ARGUMENT, "1 twice (wte.weight and transformer.wte.weight)");
    write_shards();
    write_file("model-00001-of-00002.safetensors", good, 3);
    char *single = file_path_join(weights_dir, "model.safetensors");
    ck_assert_int_eq(unlink(single), 0);
    free(single);
    /* the index says which file counts: copies in others are noted */
    struct tensor stale[3];
    memcpy(stale, good, sizeof good);
    stale[1].start = stale[2].start = 7;
    write_file("model-00001-of-00002.safetensors", stale, 3);
    struct weights *weights = open_good();
    expect_all(weights);
    ck_assert_str_eq(weights_note(weights),
                     "the weights have 2 tensors in a file that the index does not name for it: "
                     "transformer.ln_f.weight, transformer.ln_f.bias");
    weights_free(weights);
}

/* What the model does not have is left out by patterns, which do not touch what it has. */
TEST(tensors_are_ignored_by_patterns)
{
    static const char *const patterns[] = {"v_head.*", "transformer.*", "mtp.*"};
    const struct tensor tensors[] = {good[0],
                                     good[1],
                                     good[2],
                                     {"v_head.summary.weight", "I64", 1, {2}, 0},
                                     {"transformer.extra", "F32", 1, {2}, 0}};
    write_file("model.safetensors", tensors, 5);
    expect_refused(STATUS_INVALID_ARGUMENT,
                   "2 that the model does not have (v_head.summary.weight, transformer.extra); "
                   "model.ignore: [PATTERN] leaves out what the model does not have");
    source.ignore = patterns;
    source.ignore_count = 3;
    struct weights *weights = open_good();
    expect_all(weights);
    ck_assert_str_eq(weights_note(weights),
                     "the weights have 2 tensors that model.ignore leaves out: "
                     "v_head.summary.weight, transformer.extra; model.ignore: no tensor that the "
                     "model does not have matches 'mtp.*'");
    weights_free(weights);
    source.ignore_count = 0;
}

/* One more name of a tied tensor: equal values, or its own. */
TEST(tied_tensors_that_differ_are_found)
{
    struct tensor tensors[] = {good[0], good[1], good[2], {"lm_head.weight", "F32", 2, {3, 4}, 100}};
    for (int differs = 0; differs < 2; differs++) {
        int parameter = 9;
        tensors[3].start = differs ? 101 : 100;
        write_file("model.safetensors", tensors, 4);
        struct weights *weights = open_good();
        ck_assert_ptr_null(weights_find_untied(weights, model, &parameter));
        if (differs) ck_assert_str_eq(model->parameters[parameter].name, "lm_head.weight");
        else ck_assert_int_eq(parameter, -1);
        weights_free(weights);
    }
}

/* The index may name a tied tensor, or a head's, that no file has. */
TEST(what_the_index_promises_may_be_dispensable)
{
    write_shards();
    char *single = file_path_join(weights_dir, "model.safetensors");
    (void)unlink(single);
    free(single);
    write_index("{\"weight_map\": {\"transformer.wte.weight\": \"model-00001-of-00002.safetensors\", "
                "\"transformer.ln_f.weight\": \"model-00002-of-00002.safetensors\", "
                "\"lm_head.weight\": \"model-00001-of-00002.safetensors\"}}");
    struct weights *weights = open_good();
    expect_all(weights);
    ck_assert_str_eq(weights_note(weights), "the weights lack 1 tensor that the index names, and "
                                            "which nothing here needs: lm_head.weight");
    weights_free(weights);
}

TEST(many_missing)
{
    struct tensor tensors[8];
    char names[8][600];
    for (int i = 0; i < 8; i++) {
        /* long names of two-byte letters: cut between letters */
        memset(names[i], 0, sizeof names[i]);
        for (int c = 0; c < 250; c++) strcat(names[i], "\xc3\xa9");
        names[i][500] = (char)('0' + i);
        tensors[i] = (struct tensor){names[i], "F32", 1, {1}, 0};
    }
    write_file("model.safetensors", tensors, 8);
    struct weights *weights = NULL;
    status_t status = weights_open(&source, model, &weights);
    ck_assert_ptr_nonnull(strstr(status_message(status), "8 that the model does not have"));
    ck_assert_ptr_nonnull(strstr(status_message(status), "\xc3\xa9..., \xc3\xa9"));
    ck_assert_uint_lt(strlen(status_message(status)), 1300);
    status_free(status);
}

/* Files with inconsistent bytes. */
TEST(broken_file)
{
    write_file("model.safetensors", good, 3);
    char *path = file_path_join(weights_dir, "model.safetensors");
    struct buf file = {0};
    ck_assert_ptr_null(file_read(path, 1 << 20, &file));
    free(path);
    for (size_t size = 0; size < file.length; size += 3) {
        write_bytes("model.safetensors", file.data, size);
        expect_refused(STATUS_INVALID_ARGUMENT, "model.safetensors: safetensors:");
    }
    buf_add_char(&file, 'x');
    write_bytes("model.safetensors", file.data, file.length);
    expect_refused(STATUS_INVALID_ARGUMENT, "the file at 113");
    file.length--;
    char *begin = strstr(file.data + 8, "[0,48]");
    ck_assert_ptr_nonnull(begin);
    memcpy(begin, "[0,44]", 6);
    write_bytes("model.safetensors", file.data, file.length);
    expect_refused(STATUS_INVALID_ARGUMENT, "its shape takes 48 bytes, its data_offsets give 44");
    memcpy(begin, "[8,56]", 6);
    write_bytes("model.safetensors", file.data, file.length);
    expect_refused(STATUS_INVALID_ARGUMENT, "after a gap");
    memcpy(file.data, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
    write_bytes("model.safetensors", file.data, file.length);
    expect_refused(STATUS_INVALID_ARGUMENT, "a header of 9223372036854775807 bytes");
    buf_deinit(&file);
}

static const struct {
    const char *index, *message;
} indices[] = {
    {"", "not JSON"},
    {"[]", "expected an object \"weight_map\""},
    {"{}", "expected an object \"weight_map\""},
    {"{\"weight_map\": {}}", "is empty"},
    {"{\"weight_map\": {\"a\": 1}}", "\"a\": expected the name of a .safetensors file"},
    {"{\"weight_map\": {\"a\": \"../../x.safetensors\"}}", "found ../../x.safetensors"},
    {"{\"weight_map\": {\"a\": \"/etc/x.safetensors\"}}", "found /etc/x.safetensors"},
    {"{\"weight_map\": {\"a\": \".safetensors\"}}", "expected the name of a .safetensors file"},
    {"{\"weight_map\": {\"a\": \"passwd\"}}", "found passwd"},
    {"{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", \"a\": \"x.safetensors\"}}",
     "not JSON"},
    {"{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}",
     "it has no tensor a, which the index says"},
    {"{\"weight_map\": {\"transformer.wte.weight\": \"model-00001-of-00002.safetensors\"}}",
     "2 missing (transformer.ln_f.weight, transformer.ln_f.bias)"},
};

LOOP_TEST(broken_index, 0, COUNT_OF(indices))
{
    write_shards();
    write_index(indices[_i].index);
    expect_refused(STATUS_INVALID_ARGUMENT, indices[_i].message);
}

TEST(missing_shard)
{
    write_shards();
    char *path = file_path_join(weights_dir, "model-00002-of-00002.safetensors");
    ck_assert_int_eq(unlink(path), 0);
    expect_refused(STATUS_NOT_FOUND, "model-00002-of-00002.safetensors");
    ck_assert_int_eq(mkdir(path, 0700), 0);
    expect_refused(STATUS_INVALID_ARGUMENT, "is not a regular file");
    free(path);
}

TEST(links)
{
    /* as in Hugging Face's cache: a link to a file elsewhere, but below the root */
    write_file("model.safetensors", good, 3);
    char *path = file_path_join(weights_dir, "model.safetensors");
    char *blob = file_path_join(directory, "blob");
    ck_assert_int_eq(rename(path, blob), 0);
    ck_assert_int_eq(symlink("../blob", path), 0);
    struct weights *weights = open_good();
    expect_all(weights);
    weights_free(weights);
    source.root = weights_dir; /* now it leads outside */
    expect_refused(STATUS_PERMISSION_DENIED, "is outside the root");
    source.root = directory;
    ck_assert_int_eq(unlink(blob), 0);
    expect_refused(STATUS_NOT_FOUND, "model.safetensors");
    free(blob);
    free(path);
}

/* PEFT's file beside the model's own, and alone: then a note states what the rest begins with. */
LOOP_TEST(adapters, 0, 2)
{
    static const char *const targets[] = {"ln_f"};
    static const struct tensor matrices[] = {
        {PEFT_PREFIX "transformer.ln_f.lora_A.weight", "F32", 2, {2, 3}, 10},
        {PEFT_PREFIX "transformer.ln_f.lora_B.weight", "F32", 2, {4, 2}, 20},
    };
    const struct model_lora lora = {.rank = 2, .alpha = 2, .targets = {targets, 1}};
    ck_assert_ptr_null(model_adapt(model, &lora));
    write_file(PEFT_WEIGHTS, matrices, 2);
    source.adapter_dir = weights_dir;
    source.adapter_root = directory;
    if (_i == 0) write_file("model.safetensors", good, 3);
    else source.dir = NULL;
    struct weights *weights = open_good();
    expect_values(weights, "transformer.ln_f.lora_A.weight", 10);
    expect_values(weights, "transformer.ln_f.lora_B.weight", 20);
    ck_assert_int_eq(weights_has(weights, 0), _i == 0);
    if (_i == 0) ck_assert_ptr_null(weights_note(weights));
    else
        ck_assert_str_eq(weights_note(weights),
                         "the adapter continues on weights that are drawn from train.seed");
    weights_free(weights);
}

TEST(file_changes_later)
{
    write_shards();
    struct weights *weights = open_good();
    float value;
    ck_assert_ptr_null(weights_read(weights, 0, 0, 1, &value));
    write_file("model-00002-of-00002.safetensors", good + 1, 2); /* another file of that name */
    status_t status = weights_read(weights, 1, 0, 1, &value);
    ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(status_message(status), "changed while it was read"));
    status_free(status);
    char *path = file_path_join(weights_dir, "model-00001-of-00002.safetensors");
    ck_assert_int_eq(truncate(path, 50), 0);
    status = weights_read(weights, 0, 11, 1, &value);
    ck_assert_ptr_nonnull(strstr(status_message(status), "was cut: it ends at byte"));
    status_free(status);
    free(path);
    weights_free(weights);
}

TEST(hash)
{
    write_file("model.safetensors", good, 3);
    struct weights *a = open_good();
    struct tensor half[3];
    memcpy(half, good, sizeof good);
    half[2].dtype = "BF16";
    write_file("model.safetensors", half, 3);
    struct weights *b = open_good();
    ck_assert_uint_ne(weights_hash(a), weights_hash(b));
    weights_free(b);
    b = open_good();
    weights_free(a);
    a = open_good();
    ck_assert_uint_eq(weights_hash(a), weights_hash(b));
    weights_free(a);
    weights_free(b);
}
