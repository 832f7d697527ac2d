/*
 * Dataset directories: the input is dataset.json, beside arrays that are always the same: t.npy (12
 * tokens, uint16), d.npy (boundaries 0, 5, 12), m.npy (a mask of 12), i.npy (3 images, 2 x 4 x 5),
 * l.npy (their labels 0, 1, 2). What is accepted is read row by row, as windows, as documents,
 * packed, and as images.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "data/image_formats.h"
#include "data/token_data.h"

static char directory[] = "/tmp/fsdpd-fuzz-dataset-XXXXXX";
static int folder = -1;

static void write_file(const char *name, const void *bytes, size_t size)
{
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size, "%s", name);
    close(fd);
}

static void write_array(const char *name, const char *descr, const char *shape, const void *bytes,
                        size_t size)
{
    char text[512] = "\x93NUMPY\x01";
    int length = snprintf(text + 10, 128, "{'descr': '%s', 'fortran_order': False, 'shape': (%s)}",
                          descr, shape);
    text[8] = (char)length;
    memcpy(text + 10 + length, bytes, size);
    write_file(name, text, 10 + (size_t)length + size);
}

static void clean_up(void)
{
    static const char *const names[] = {"dataset.json", "t.npy", "d.npy", "m.npy",
                                        "i.npy",        "l.npy", "f.npy", "c.npy"};
    for (int i = 0; i < 8; i++) unlinkat(folder, names[i], 0);
    rmdir(directory);
}

static void make_directory(void)
{
    static const uint16_t tokens[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    static const uint64_t documents[3] = {0, 5, 12};
    static const float numbers[2] = {0.5F, -1};
    static const uint8_t mask[12] = {0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1};
    static const uint8_t images[120] = {1, 2, 3}, labels[3] = {0, 1, 2};
    FUZZ_CHECK(mkdtemp(directory) != NULL, "no directory");
    folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    FUZZ_CHECK(folder >= 0, "%s", directory);
    atexit(clean_up);
    write_array("t.npy", "<u2", "12,", tokens, sizeof tokens);
    write_array("d.npy", "<u8", "3,", documents, sizeof documents);
    write_array("m.npy", "|u1", "12,", mask, sizeof mask);
    write_array("i.npy", "|u1", "3, 2, 4, 5", images, sizeof images);
    write_array("l.npy", "|u1", "3,", labels, sizeof labels);
    write_array("c.npy", "|u1", "2,", labels, 2);
    write_array("f.npy", "<f4", "2,", numbers, sizeof numbers);
}

enum { TEXTS = 2 };

static void read_rows(const struct train_job *job, enum model_target target)
{
    struct token_data data;
    const struct token_model model = {.vocabulary = 50,
                                      .target = target,
                                      .classes = 5,
                                      .texts = target == TARGET_PAIR ? TEXTS : 1,
                                      .numbers = 1};
    status_t status = token_data_open(job, &model, 4, true, &data);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    struct token_rows rows = token_data_rows(&data, job, 0, false);
    struct rows source = token_rows_source(&rows);
    for (int64_t row = 0; row < 2 * data.train.rows; row++) {
        int32_t tokens[4 * TEXTS], targets[4];
        int64_t samples = -1, counted = 0;
        status = source.fill(source.user, row, tokens, targets, &samples);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
        int32_t starts[4];
        if (source.fill_starts != NULL) status = source.fill_starts(source.user, row, starts);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
        for (int i = 0; i < 4 && source.fill_starts != NULL; i++)
            FUZZ_CHECK(starts[i] <= i && starts[i] >= (i > 0 ? starts[i - 1] : 0), "a start");
        for (int i = 0; i < 4; i++) {
            FUZZ_CHECK(tokens[i] >= 0 && tokens[i] < 50, "a token");
            if (target == TARGET_PAIR)
                FUZZ_CHECK(tokens[4 + i] >= 0 && tokens[4 + i] < 50, "a token");
            if ((size_t)i >= source.targets) continue;
            FUZZ_CHECK(target == TARGET_NUMBERS || targets[i] < 50, "a target");
            counted += target == TARGET_NUMBERS ? targets[i] != -1 : targets[i] >= 0;
        }
        FUZZ_CHECK(samples == counted, "%lld targets, not %lld", (long long)samples,
                   (long long)counted);
    }
    token_data_close(&data);
}

static void read_images(void)
{
    struct image_set set = {0};
    status_t status =
        image_arrays_open_dataset(NULL, directory, (struct image_targets){.classes = 5}, true, &set,
                                  NULL);
    if (status == NULL) status = image_set_prepare(&set);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        image_set_close(&set);
        return;
    }
    FUZZ_CHECK(image_set_row_bytes(&set) == 40 && set.count == 3, "%zu bytes",
               image_set_row_bytes(&set));
    for (int64_t i = 0; i < set.count; i++) {
        uint8_t image[40];
        int32_t target;
        status = image_set_read(&set, i, image, &target);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
        FUZZ_CHECK(target == i, "label %d", target);
    }
    image_set_close(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (folder < 0) make_directory();
    write_file("dataset.json", data, size);
    read_images();
    const struct token_path source = {.path = directory, .weight = 1};
    for (int kind = WINDOWS_CONTINUOUS; kind <= WINDOWS_PACKED; kind++) {
        const struct train_job job = {.data_format = DATA_DATASET,
                                      .sources = &source,
                                      .source_count = 1,
                                      .windows = (enum window_kind)kind,
                                      .batch_size = 1,
                                      .shuffle = true,
                                      .world = 1};
        read_rows(&job, TARGET_TOKEN);
        for (enum model_target target = TARGET_TOKEN_CLASS;
             kind == WINDOWS_DOCUMENT && target <= TARGET_PAIR; target++)
            read_rows(&job, target);
    }
    return 0;
}
