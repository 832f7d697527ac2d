/* Directories of images: CIFAR's files, arrays and datasets hold the same images; wrong ones are
 * refused with their place; transforms against PyTorch's numbers. */
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/image_rows.h"
#include "data/sampler.h"
#include "tests/testing.h"
#include "tests/unit/dataset_files.h"

enum { COUNT = 7, CHANNELS = 3, SIDE = 32, PLANE = SIDE * SIDE, PIXELS = CHANNELS * PLANE };

static char directory[64];

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void make_directory(void)
{
    strcpy(directory, "/tmp/fsdpd-test-images-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void remove_directory(void)
{
    nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static uint8_t byte_of(int sample, int channel, int pixel)
{
    return (uint8_t)(sample * 31 + channel * 97 + pixel * 7 + pixel / SIDE * 3);
}

static uint8_t label_of(int sample)
{
    return (uint8_t)(sample * 3 % 10);
}

/* ---- the same images in every form ---- */

static void write_cifar(const char *name, int first, int count, int labels)
{
    struct buf out = {0};
    for (int s = first; s < first + count; s++) {
        if (labels == 2) buf_add_char(&out, 19); /* the coarse one */
        buf_add_char(&out, (char)label_of(s));
        for (int i = 0; i < PIXELS; i++) buf_add_char(&out, (char)byte_of(s, i / PLANE, i % PLANE));
    }
    dataset_write_bytes(directory, name, &out);
    buf_deinit(&out);
}

struct array_form {
    bool last, is_float;
};

/* Writes the images, and returns the file's checksum. */
static struct dataset_sum write_images(const char *name, struct array_form form)
{
    struct buf data = {0}, file = {0};
    for (int s = 0; s < COUNT; s++) {
        for (int i = 0; i < PIXELS; i++) {
            int channel = form.last ? i % CHANNELS : i / PLANE;
            uint8_t byte = byte_of(s, channel, form.last ? i / CHANNELS : i % PLANE);
            float value = (float)byte / 255.0f;
            if (form.is_float) buf_add(&data, &value, sizeof value);
            else buf_add_char(&data, (char)byte);
        }
    }
    char *dictionary =
        mem_printf("{'descr': '%s', 'fortran_order': False, 'shape': (%d, %d, %d, %d), }\n",
                   form.is_float ? "<f4" : "|u1", COUNT, form.last ? SIDE : CHANNELS, SIDE,
                   form.last ? CHANNELS : SIDE);
    dataset_make_npy(dictionary, data.data, data.length, &file);
    dataset_write_bytes(directory, name, &file);
    struct digest sum;
    struct dataset_sum written;
    digest_of(buf_text(&file), file.length, &sum);
    digest_format(&sum, written.digits);
    free(dictionary);
    buf_deinit(&data);
    buf_deinit(&file);
    return written;
}

static struct dataset_sum write_targets(const char *name)
{
    int64_t targets[COUNT];
    for (int s = 0; s < COUNT; s++) targets[s] = label_of(s);
    return dataset_write_npy(directory, name, "<i8", targets, COUNT, sizeof *targets);
}

/* `keys` are those of the kind, for instance "\"classes\": 10, ". */
static void write_dataset(const char *keys, struct array_form form)
{
    struct dataset_sum images = write_images("i.npy", form), targets = write_targets("t.npy");
    struct buf json = {0};
    buf_printf(&json,
               "{\"format\": \"fsdpd-dataset\", \"version\": 1, \"kind\": \"images\", %s"
               "\"splits\": {\"train\": {\"images\": {\"file\": \"i.npy\", \"type\": \"%s\", "
               "\"shape\": [%d, %d, %d, %d], \"sha256\": \"%s\"}",
               keys, form.is_float ? "float32" : "uint8", COUNT, form.last ? SIDE : CHANNELS, SIDE,
               form.last ? CHANNELS : SIDE, images.digits);
    dataset_add_array(&json, "targets", "t.npy", "int64", COUNT, &targets);
    buf_add_text(&json, "}}}");
    dataset_write_text(directory, "dataset.json", buf_text(&json));
    buf_deinit(&json);
}

static void write_form(int form)
{
    const struct array_form array = {.last = form & 1, .is_float = form & 2};
    switch (form) {
    case 0:
    case 1:
    case 2:
    case 3:
        write_images("train.images.npy", array);
        write_targets("train.targets.npy");
        return;
    case 4: write_dataset("\"classes\": 10, \"layout\": \"NCHW\", ", array); return;
    case 5: write_dataset("\"classes\": 10, \"layout\": \"NHWC\", ", array); return;
    case 6: write_dataset("\"classes\": 10, ", array); return;
    case 7:
        write_cifar("data_batch_1.bin", 0, 4, 1);
        write_cifar("data_batch_2.bin", 4, COUNT - 4, 1);
        return;
    case 8: write_cifar("train.bin", 0, COUNT, 2); return;
    }
}

static status_t open_any(struct image_targets wanted, bool evaluate, struct image_set *train,
                         struct image_set *test)
{
    const struct train_job job = {.image_format = IMAGES_ANY,
                                  .data_dir = directory,
                                  .evaluate = evaluate};
    *train = *test = (struct image_set){0};
    status_t status = image_files_open(&job, wanted, true, train, test);
    if (status == NULL) status = image_set_prepare(train);
    if (status == NULL) return NULL;
    image_set_close(train);
    image_set_close(test);
    return status;
}

static status_t open_images(int64_t classes, bool evaluate, struct image_set *train,
                            struct image_set *test)
{
    return open_any((struct image_targets){.classes = classes}, evaluate, train, test);
}

static struct image_set open_good(void)
{
    struct image_set train, test;
    status_t status = open_images(10, false, &train, &test);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return train;
}

static const struct image_transform plain = {.mean = 0.25, .std = 0.5};

TESTS_BELOW(.timeout = 60, .set_up = make_directory, .tear_down = remove_directory);

LOOP_TEST(every_form_gives_the_same_rows, 0, 9)
{
    static float row[PIXELS];
    write_form(_i);
    struct image_set set = open_good();
    struct image_rows rows;
    uint32_t order[COUNT];
    for (uint32_t s = 0; s < COUNT; s++) order[s] = COUNT - 1 - s;
    ck_assert_int_eq(set.count, COUNT);
    ck_assert_ptr_null(image_rows_init(&rows, &set, &plain, 1, true));
    rows.order = order;
    struct rows source = image_rows_source(&rows);
    ck_assert_uint_eq(source.input_bytes, sizeof row);
    for (int r = 0; r < COUNT; r++) {
        int sample = COUNT - 1 - r;
        int32_t target;
        int64_t samples;
        ck_assert_ptr_null(source.fill(source.user, r, row, &target, &samples));
        ck_assert_int_eq(target, label_of(sample));
        for (int i = 0; i < PIXELS; i++) {
            float expected = ((float)byte_of(sample, i / PLANE, i % PLANE) / 255.0f - 0.25f) / 0.5f;
            ck_assert(row[i] == expected);
        }
    }
    image_set_close(&set);
}

static void expect_refusal(int64_t classes, bool evaluate, const char *says)
{
    struct image_set train, test;
    status_t status = open_images(classes, evaluate, &train, &test);
    ck_assert_msg(status != NULL, "expected: %s", says);
    ck_assert_msg(strstr(status_message(status), says) != NULL, "%s, not: %s", says,
                  status_message(status));
    ck_assert_msg(strstr(status_message(status), directory) != NULL, "%s", status_message(status));
    status_free(status);
}

TEST(what_is_missing_is_named)
{
    expect_refusal(10, false, "has no images: expected dataset.json");
    write_form(0);
    expect_refusal(10, true, "validation.images.npy");
    write_form(4);
    expect_refusal(10, true, "has no split to validate with");
    char *path = mem_printf("%s/dataset.json", directory);
    remove(path);
    free(path);
    path = mem_printf("%s/train.images.npy", directory);
    remove(path);
    free(path);
    write_form(7);
    expect_refusal(10, true, "test_batch.bin");
}

TEST(a_label_out_of_range_is_refused_with_its_place)
{
    write_form(7); /* labels 0 3 6 9, 2 5 8 */
    expect_refusal(9, false, "data_batch_1.bin: label 3 is 9, but the model's classes are 0 to 8");
    write_form(0);
    expect_refusal(9, false, "train.targets.npy: label 3 is 9");
    write_dataset("\"classes\": 9, ", (struct array_form){0});
    expect_refusal(10, false, "t.npy: label 3 is 9, but the model's classes are 0 to 8");
    write_dataset("\"classes\": 11, ", (struct array_form){0});
    expect_refusal(10, false, "has 11 classes, but the model has 10");
}

/* Writes `columns` elements of `width` bytes for each of COUNT samples. */
static void write_columns(const char *name, const char *descr, int columns, const void *data,
                          size_t width)
{
    struct buf file = {0};
    char *dictionary = mem_printf("{'descr': '%s', 'fortran_order': False, 'shape': (%d, %d), }\n",
                                  descr, COUNT, columns);
    dataset_make_npy(dictionary, data, (size_t)(COUNT * columns) * width, &file);
    dataset_write_bytes(directory, name, &file);
    free(dictionary);
    buf_deinit(&file);
}

static void write_numbers(const char *name, int columns, const float *numbers)
{
    write_columns(name, "<f4", columns, numbers, sizeof *numbers);
}

static void expect_numbers_refused(int64_t numbers, const char *says)
{
    struct image_set train, test;
    status_t status = open_any((struct image_targets){.numbers = numbers}, false, &train, &test);
    ck_assert_msg(status != NULL && strstr(status_message(status), says) != NULL, "%s, not: %s",
                  says, status_message(status));
    status_free(status);
}

/* Rows of a table with numbers for targets: those that are NaN do not count. */
TEST(rows_with_numbers)
{
    enum { COLUMNS = 5, NUMBERS = 2 };
    float table[COUNT * COLUMNS], numbers[COUNT * NUMBERS], row[COLUMNS], target[NUMBERS];
    for (int i = 0; i < COUNT * COLUMNS; i++) table[i] = (float)i / 8;
    for (int i = 0; i < COUNT * NUMBERS; i++) numbers[i] = i == 3 ? NAN : (float)-i;
    write_numbers("train.images.npy", COLUMNS, table);
    write_numbers("train.targets.npy", NUMBERS, numbers);
    struct image_set train, test;
    ck_assert_ptr_null(open_any((struct image_targets){.numbers = NUMBERS}, false, &train, &test));
    ck_assert(train.channels == 1 && train.height == 1 && train.width == COLUMNS);
    struct image_rows rows;
    const uint32_t order[] = {1, 0, SAMPLE_NONE};
    ck_assert_ptr_null(
        image_rows_init(&rows, &train, &(struct image_transform){.std = 1}, 1, false));
    rows.order = order;
    struct rows source = image_rows_source(&rows);
    ck_assert_uint_eq(source.targets, NUMBERS);
    for (int r = 0; r < 3; r++) {
        int64_t samples, i = order[r];
        ck_assert_ptr_null(source.fill(source.user, r, row, (int32_t *)(void *)target, &samples));
        ck_assert_int_eq(samples, r == 0 ? 1 : r == 1 ? 2 : 0);
        for (int c = 0; c < COLUMNS; c++) ck_assert(row[c] == (r < 2 ? table[i * COLUMNS + c] : 0));
        for (int k = 0; k < NUMBERS; k++)
            ck_assert(r == 1 || (r == 0 && k == 0) ? target[k] == numbers[i * NUMBERS + k]
                                                   : isnan(target[k]));
    }
    image_set_close(&train);
    expect_numbers_refused(3, "expected targets (N, 3) of float32 for a model with 'targets', "
                              "found (7, 2) of float32");
    expect_refusal(10, false, "for a model with 'classes', found (7, 2) of float32");
    numbers[5] = -INFINITY;
    write_numbers("train.targets.npy", NUMBERS, numbers);
    expect_numbers_refused(2, "train.targets.npy: target 1 of image 2 is -inf");
    write_form(0);
    expect_numbers_refused(1, "expected targets (N,) of float32 for a model with 'targets'");
}

/* ---- several inputs ---- */

enum { IDS = 4, NUMBERS_AT = IDS + PIXELS, ROW = NUMBERS_AT + 2, VOCABULARY = 50 };

/* A text, an image and two numbers, in this order. */
static struct model several_inputs(enum model_target target)
{
    struct model model = {.target = target,
                          .class_count = target == TARGET_PAIR ? 1 : 10,
                          .vocabulary = VOCABULARY,
                          .input_count = 3};
    static char names[][6] = {"text", "image", "row"};
    static const int64_t starts[] = {0, IDS, NUMBERS_AT};
    model.input = tensor_type_make(DTYPE_F32, 1, (int64_t[]){ROW});
    model.inputs[0].type = tensor_type_make(DTYPE_I32, 1, (int64_t[]){IDS});
    model.inputs[1].type = tensor_type_make(DTYPE_F32, 3, (int64_t[]){CHANNELS, SIDE, SIDE});
    model.inputs[2].type = tensor_type_make(DTYPE_F32, 1, (int64_t[]){2});
    for (int i = 0; i < model.input_count; i++) {
        model.inputs[i].name = names[i];
        model.inputs[i].start = starts[i];
    }
    return model;
}

static uint16_t ids[COUNT * IDS];
static float pairs[COUNT * 2];

static void write_inputs(void)
{
    for (int i = 0; i < COUNT * IDS; i++) ids[i] = (uint16_t)(i * 7 % VOCABULARY);
    for (int i = 0; i < COUNT * 2; i++) pairs[i] = (float)i / 8 - 1;
    write_images("train.image.npy", (struct array_form){.last = true});
    write_columns("train.text.npy", "<u2", IDS, ids, sizeof *ids);
    write_numbers("train.row.npy", 2, pairs);
}

/* Makes a row of a sample. */
static status_t make_row(const struct model *model, uint32_t sample, float row[ROW],
                         int32_t *target, int64_t *samples)
{
    const struct image_targets wanted = {.classes = model->class_count, .named = model};
    struct image_set train, test;
    struct image_rows rows;
    TRY(open_any(wanted, false, &train, &test));
    status_t status = image_rows_init(&rows, &train, &plain, 1, true);
    rows.order = &sample;
    struct rows source = image_rows_source(&rows);
    ck_assert_uint_eq(source.input_bytes, ROW * sizeof *row);
    if (status == NULL) status = source.fill(source.user, 0, row, target, samples);
    image_set_close(&train);
    image_set_close(&test);
    return status;
}

LOOP_TEST(several_inputs_are_arrays_of_their_names, 0, 2)
{
    static float row[ROW];
    const struct model model = several_inputs(_i == 0 ? TARGET_PAIR : TARGET_CLASS);
    write_inputs();
    if (_i == 1) write_targets("train.targets.npy");
    int32_t target;
    int64_t samples;
    for (int s = 0; s < COUNT; s++) {
        status_t status = make_row(&model, (uint32_t)s, row, &target, &samples);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        ck_assert_int_eq(samples, 1);
        ck_assert_int_eq(target, _i == 0 ? 0 : label_of(s));
        for (int i = 0; i < IDS; i++) ck_assert(row[i] == ids[s * IDS + i]);
        for (int i = 0; i < PIXELS; i++)
            ck_assert(row[IDS + i] ==
                      ((float)byte_of(s, i / PLANE, i % PLANE) / 255.0f - 0.25f) / 0.5f);
        for (int i = 0; i < 2; i++) ck_assert(row[NUMBERS_AT + i] == pairs[s * 2 + i]);
    }
    ck_assert_ptr_null(make_row(&model, SAMPLE_NONE, row, &target, &samples));
    ck_assert(samples == 0 && target == -1);
    for (int i = 0; i < ROW; i++) ck_assert(row[i] == 0);
    static const uint8_t bytes[COUNT * 2] = {255, 51};
    write_columns("train.row.npy", "|u1", 2, bytes, 1);
    ck_assert_ptr_null(make_row(&model, 0, row, &target, &samples));
    ck_assert(row[NUMBERS_AT] == 1 && row[NUMBERS_AT + 1] == 51 / 255.0f);
}

static void expect_inputs_refused(uint32_t sample, const char *says)
{
    static float row[ROW];
    const struct model model = several_inputs(TARGET_PAIR);
    int32_t target;
    int64_t samples;
    status_t status = make_row(&model, sample, row, &target, &samples);
    ck_assert_msg(status != NULL && strstr(status_message(status), says) != NULL, "%s, not: %s",
                  says, status_message(status));
    status_free(status);
}

TEST(wrong_inputs_are_refused)
{
    write_inputs();
    ids[2 * IDS + 1] = VOCABULARY;
    write_columns("train.text.npy", "<u2", IDS, ids, sizeof *ids);
    expect_inputs_refused(2, "train.text.npy: sample 2 has the token 50, but the model's "
                             "vocabulary is 0 to 49");
    write_inputs();
    pairs[7] = INFINITY;
    write_numbers("train.row.npy", 2, pairs);
    expect_inputs_refused(3, "train.row.npy: sample 3 has a number that is inf");
    write_inputs();
    write_columns("train.text.npy", "<u2", IDS / 2, ids, sizeof *ids);
    expect_inputs_refused(0, "train.text.npy: expected 7 samples (4,) of integers for the input "
                             "'text', found (7, 2) of uint16");
    write_numbers("train.text.npy", 2, pairs);
    expect_inputs_refused(0, "of integers for the input 'text', found (7, 2) of float32");
    write_inputs();
    write_columns("train.row.npy", "<u2", 2, ids, sizeof *ids);
    expect_inputs_refused(0, "train.row.npy: expected 7 samples (2,) of uint8 or float32 for the "
                             "input 'row', found (7, 2) of uint16");
    dataset_write_npy(directory, "train.row.npy", "<f4", pairs, COUNT, sizeof *pairs);
    expect_inputs_refused(0, "'row', found (7,) of float32");
    write_dataset("\"classes\": 10, ", (struct array_form){0});
    expect_inputs_refused(0, "a model with several inputs reads arrays of their names");
}

/* Of the first input that is not tokens, as pictures are changed. */
LOOP_TEST(a_table_is_not_changed_as_pictures_are, 0, 6)
{
    static const struct image_transform transforms[] = {
        {.std = 1},
        {.std = 2},
        {.std = 1, .mean = 1},
        {.std = 1, .flip = true},
        {.std = 1, .crop_padding = 1},
        {.std = 1, .height = 2, .width = 2},
    };
    struct model model = several_inputs(TARGET_PAIR);
    const struct train_job job = {.image_format = IMAGES_ANY,
                                  .model_file = "net.yaml",
                                  .data_dir = directory,
                                  .transform = transforms[_i]};
    struct image_set train = {0}, test = {0};
    write_inputs();
    const struct image_targets wanted = {.classes = 1, .named = &model};
    status_t status = image_files_open(&job, wanted, true, &train, &test);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    image_set_close(&train);
    model.inputs[1] = model.inputs[--model.input_count]; /* without the picture */
    status = image_files_open(&job, wanted, true, &train, &test);
    if (_i > 0)
        ck_assert_str_eq(status_message(status),
                         "net.yaml: data.resize, data.augment and data.normalize are for the "
                         "first input that is not tokens, but 'row' is (2,), which is no picture");
    else ck_assert_msg(status == NULL, "%s", status_message(status));
    status_free(status);
    image_set_close(&train);
}

TEST(an_input_without_its_array_is_named)
{
    write_images("train.image.npy", (struct array_form){0});
    expect_inputs_refused(0, "train.text.npy");
}

TEST(numbers_need_arrays)
{
    write_form(7);
    expect_numbers_refused(2, "the model has 'targets', but the images in");
}

TEST(a_file_cut_short_is_refused)
{
    write_form(7);
    char *path = mem_printf("%s/data_batch_2.bin", directory);
    ck_assert_int_eq(truncate(path, 3073 + 3072), 0);
    expect_refusal(10, false, "data_batch_2.bin: its 6145 bytes are not whole records of 3073");
    free(path);
}

TEST(wrong_arrays_are_refused)
{
    float targets[COUNT] = {0};
    write_form(0);
    dataset_write_npy(directory, "train.targets.npy", "<f4", targets, COUNT, 4);
    expect_refusal(10, false,
                   "expected targets (N,) of integers for a model with 'classes', found (7,) of "
                   "float32");
    dataset_write_npy(directory, "train.targets.npy", "|u1", targets, COUNT - 1, 1);
    expect_refusal(10, false, "has 7 images but");
    int64_t negative[COUNT] = {0, 0, -1};
    dataset_write_npy(directory, "train.targets.npy", "<i8", negative, COUNT, 8);
    expect_refusal(10, false, "label 2 is -1");
    dataset_write_npy(directory, "train.images.npy", "|u1", targets, COUNT, 1);
    expect_refusal(10, false, "expected images (N, C, H, W)");
}

TEST(a_dataset_that_lies_is_refused)
{
    write_dataset("\"classes\": 0, ", (struct array_form){0});
    expect_refusal(10, false, "classes: expected 1 to");
    write_dataset("", (struct array_form){0});
    expect_refusal(10, false, "it has no key 'classes', which targets of integers need");
    write_dataset("\"classes\": 10, \"layout\": \"HWC\", ", (struct array_form){0});
    expect_refusal(10, false, "layout: expected NCHW or NHWC, found 'HWC'");
    write_dataset("\"classes\": 10, ", (struct array_form){0});
    write_images("i.npy", (struct array_form){.last = true});
    expect_refusal(10, false, "its header says (7, 32, 32, 3) of uint8");
    write_dataset("\"classes\": 10, ", (struct array_form){0});
    int64_t others[COUNT] = {1};
    dataset_write_npy(directory, "t.npy", "<i8", others, COUNT, 8);
    expect_refusal(10, false, "t.npy: it is not what was prepared");
}

TEST(a_pixel_that_is_not_finite_is_refused_with_its_image)
{
    write_form(2);
    struct image_set set = open_good();
    struct image_rows rows;
    const uint32_t order[] = {5};
    static float row[PIXELS];
    float bad = NAN;
    int32_t target;
    int64_t samples;
    char *path = mem_printf("%s/train.images.npy", directory);
    int64_t place = set.parts[0].image_at + 5 * set.parts[0].image_stride + 40;
    image_set_close(&set);
    FILE *file = fopen(path, "r+");
    ck_assert(file != NULL && fseek(file, (long)place, SEEK_SET) == 0 &&
              fwrite(&bad, sizeof bad, 1, file) == 1 && fclose(file) == 0);
    set = open_good();
    ck_assert_ptr_null(image_rows_init(&rows, &set, &plain, 1, true));
    rows.order = order;
    struct rows source = image_rows_source(&rows);
    status_t status = source.fill(source.user, 0, row, &target, &samples);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "image 5 has a pixel that is nan"));
    status_free(status);
    image_set_close(&set);
    free(path);
}

/* ---- transforms ---- */

TESTS_BELOW(.timeout = 60);

/* torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=False) of PyTorch 1.13,
 * for x = arange(15).reshape(1, 1, 3, 5)**2 / 100. */
TEST(resizing_is_pytorchs)
{
    static const struct {
        int height, width;
        float expected[28];
    } cases[] = {
        {4,
         3,
         {0.00333333295f, 0.0399999991f, 0.136666656f, 0.180416673f, 0.321249992f, 0.522083342f,
          0.580416679f, 0.846249998f, 1.17208338f, 1.07000005f, 1.44000006f, 1.87f}},
        {2,
         7,
         {0.0625f, 0.0825000033f, 0.113214292f, 0.152500004f, 0.206071436f, 0.268214285f,
          0.32249999f, 0.8125f, 0.918214321f, 1.05607152f, 1.20249999f, 1.36321437f, 1.53250003f,
          1.67250001f}},
        {1, 1, {0.49000001f}},
    };
    float from[15], to[28];
    for (int i = 0; i < 15; i++) from[i] = (float)(i * i) / 100;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        image_resize(1, 3, 5, from, cases[c].height, cases[c].width, to);
        for (int i = 0; i < cases[c].height * cases[c].width; i++)
            ck_assert_double_eq_tol((double)to[i], (double)cases[c].expected[i], 1e-6);
    }
}

TEST(draws_depend_on_seed_epoch_and_sample_only)
{
    const struct image_transform transform = {.std = 1, .crop_padding = 2, .flip = true};
    int places[5][5] = {{0}}, flips = 0, same = 0;
    for (int64_t s = 0; s < 10000; s++) {
        struct image_draw draw = image_draw(&transform, 7, 1, s), again, other;
        again = image_draw(&transform, 7, 1, s);
        other = image_draw(&transform, 7, 2, s);
        ck_assert(draw.y >= -2 && draw.y <= 2 && draw.x >= -2 && draw.x <= 2);
        ck_assert(draw.y == again.y && draw.x == again.x && draw.flip == again.flip);
        same += draw.y == other.y && draw.x == other.x && draw.flip == other.flip;
        places[draw.y + 2][draw.x + 2]++;
        flips += draw.flip;
    }
    for (int y = 0; y < 5; y++)
        for (int x = 0; x < 5; x++) ck_assert(places[y][x] > 300 && places[y][x] < 500);
    ck_assert(flips > 4800 && flips < 5200);
    ck_assert_int_lt(same, 400); /* 200 of 10,000 are expected: another epoch has other draws */
}

TEST(a_crop_has_a_border_of_zeros_and_a_flip_mirrors)
{
    const struct image_transform transform = {.mean = 1, .std = 2, .crop_padding = 1};
    const float from[] = {1, 2, 3, 4, 5, 6};
    const struct image_draw up = {.y = -1, .x = 1}, mirrored = {.flip = true};
    float to[6];
    image_place(&transform, &up, 1, 2, 3, from, to);
    static const float shifted[] = {-0.5f, -0.5f, -0.5f, 0.5f, 1, -0.5f};
    for (int i = 0; i < 6; i++) ck_assert(to[i] == shifted[i]);
    image_place(&transform, &mirrored, 1, 2, 3, from, to);
    static const float flipped[] = {1, 0.5f, 0, 2.5f, 2, 1.5f};
    for (int i = 0; i < 6; i++) ck_assert(to[i] == flipped[i]);
}
