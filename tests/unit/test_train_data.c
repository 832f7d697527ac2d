/* idx files, whole and broken, plain and gzipped; and the loader: order, short batches, shutdown.
 */
#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "train/idx.h"
#include "train/image_rows.h"
#include "train/loader.h"
#include "train/sampler.h"

enum { COUNT = 6, HEIGHT = 3, WIDTH = 5, PIXELS = HEIGHT * WIDTH };

static char directory[64];

static void make_directory(void)
{
    strcpy(directory, "/tmp/fsdpd-test-data-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void remove_directory(void)
{
    nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void put_big_endian(struct buf *out, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8) buf_add_char(out, (char)(value >> shift));
}

static struct buf images_file(void)
{
    struct buf out = {0};
    put_big_endian(&out, 0x803);
    put_big_endian(&out, COUNT);
    put_big_endian(&out, HEIGHT);
    put_big_endian(&out, WIDTH);
    for (int i = 0; i < COUNT * PIXELS; i++) buf_add_char(&out, (char)(i * 7));
    return out;
}

static struct buf labels_file(void)
{
    struct buf out = {0};
    put_big_endian(&out, 0x801);
    put_big_endian(&out, COUNT);
    for (int i = 0; i < COUNT; i++) buf_add_char(&out, (char)(i % 10));
    return out;
}

static struct buf gzip(const struct buf *in)
{
    z_stream stream = {0};
    ck_assert_int_eq(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t room = deflateBound(&stream, in->length) + 64;
    char *bytes = mem_alloc(room);
    stream.next_in = (Bytef *)in->data;
    stream.avail_in = (uInt)in->length;
    stream.next_out = (Bytef *)bytes;
    stream.avail_out = (uInt)room;
    ck_assert_int_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    struct buf out = {0};
    buf_add(&out, bytes, stream.total_out);
    deflateEnd(&stream);
    free(bytes);
    return out;
}

static void write_file(const char *name, const struct buf *bytes)
{
    char *path = file_path_join(directory, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    if (bytes->length > 0)
        ck_assert_uint_eq(fwrite(bytes->data, 1, bytes->length, file), bytes->length);
    fclose(file);
    free(path);
}

static void write_good(const char *prefix, bool compressed)
{
    struct buf files[] = {images_file(), labels_file()};
    const char *names[] = {"images-idx3", "labels-idx1"};
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%s-ubyte%s", prefix, names[i], compressed ? ".gz" : "");
        struct buf packed = gzip(&files[i]);
        write_file(name, compressed ? &packed : &files[i]);
        buf_deinit(&packed);
        buf_deinit(&files[i]);
    }
}

static void expect_good(const struct dataset *set, bool headers_only)
{
    ck_assert_int_eq(set->count, COUNT);
    ck_assert_int_eq(set->height, HEIGHT);
    ck_assert_int_eq(set->width, WIDTH);
    if (headers_only) {
        ck_assert_ptr_null(set->images);
        ck_assert_ptr_null(set->labels);
        return;
    }
    for (int i = 0; i < COUNT * PIXELS; i++) ck_assert_int_eq(set->images[i], (uint8_t)(i * 7));
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(set->labels[i], i);
}

START_TEST(test_reads)
{
    bool compressed = _i & 1, headers_only = _i & 2, test = _i & 4;
    write_good(test ? "t10k" : "train", compressed);
    struct dataset set;
    ck_assert_ptr_null(
        idx_read_dataset(NULL, directory, test ? IDX_TEST : IDX_TRAIN, 10, headers_only, &set));
    expect_good(&set, headers_only);
    dataset_deinit(&set);
}
END_TEST

/* Content decides what is compressed, not the name; and gzip files may be joined. */
START_TEST(test_reads_odd_gzip)
{
    struct buf images = images_file(), labels = labels_file();
    struct buf packed_labels = gzip(&labels), joined = {0};
    struct buf head = {.data = images.data, .length = 50, .capacity = 50};
    struct buf tail = {.data = images.data + 50, .length = images.length - 50, .capacity = 1};
    struct buf packed_head = gzip(&head), packed_tail = gzip(&tail);
    buf_add(&joined, packed_head.data, packed_head.length);
    buf_add(&joined, packed_tail.data, packed_tail.length);
    write_file("train-images-idx3-ubyte.gz", &joined);
    write_file("train-labels-idx1-ubyte", &packed_labels);
    struct dataset set;
    ck_assert_ptr_null(idx_read_dataset(NULL, directory, IDX_TRAIN, 10, false, &set));
    expect_good(&set, false);
    dataset_deinit(&set);
    buf_deinit(&images);
    buf_deinit(&labels);
    buf_deinit(&packed_labels);
    buf_deinit(&joined);
    buf_deinit(&packed_head);
    buf_deinit(&packed_tail);
}
END_TEST

/*
 * One file of the pair, changed. First as bytes: `keep` bytes are kept (negative: that many fewer
 * than all), then `at` is set to `byte`, and `more` zeros follow. Then perhaps compressed, and the
 * same is done to the compressed bytes with the second set.
 */
static const struct broken {
    const char *file;
    int keep, at, byte, more;
    bool compress;
    int packed_keep, packed_at, packed_byte, packed_more;
    const char *says;
    bool in_header; /* found without reading the data */
} broken[] = {
    {.file = "images", .keep = 0, .says = "cut short", .in_header = true},
    {.file = "images", .keep = 3, .says = "cut short", .in_header = true},
    {.file = "images", .keep = 15, .says = "takes 16 bytes", .in_header = true},
    {.file = "images", .keep = 16, .says = "cut short", .in_header = true},
    {.file = "images", .keep = -1, .says = "has 105", .in_header = true},
    {.file = "images", .more = 1, .says = "too long", .in_header = true},
    {.file = "images", .at = 3, .byte = 1, .says = "starts with 0x00000803", .in_header = true},
    {.file = "images", .at = 0, .byte = 0x1f, .says = "0x1f000803", .in_header = true},
    {.file = "images", .at = 7, .byte = 7, .says = "cut short", .in_header = true},
    {.file = "images", .at = 7, .byte = 5, .says = "too long", .in_header = true},
    {.file = "images", .at = 7, .byte = 0, .says = "there are no images", .in_header = true},
    {.file = "images", .at = 11, .byte = 0, .says = "dimension 1", .in_header = true},
    {.file = "images", .at = 15, .byte = 0, .says = "dimension 2", .in_header = true},
    {.file = "images", .at = 4, .byte = 255, .says = "promises", .in_header = true},
    {.file = "images", .at = 8, .byte = 255, .says = "fit in memory", .in_header = true},
    {.file = "labels", .keep = 7, .says = "takes 8 bytes", .in_header = true},
    {.file = "labels", .keep = -1, .says = "cut short", .in_header = true},
    {.file = "labels", .more = 3, .says = "too long", .in_header = true},
    {.file = "labels", .at = 3, .byte = 3, .says = "starts with 0x00000801", .in_header = true},
    {.file = "labels", .at = 4, .byte = 127, .says = "at most 214748363", .in_header = true},
    {.file = "labels",
     .at = 12,
     .byte = 10,
     .says = "label 4 is 10, but the model's classes are 0 to 9"},
    {.file = "labels", .at = 8, .byte = 255, .says = "label 0 is 255"},
    /* Inside gzip the size only shows at the end. */
    {.file = "images", .compress = true, .keep = 15, .says = "takes 16 bytes", .in_header = true},
    {.file = "images", .compress = true, .keep = -1, .says = "cut short"},
    {.file = "images", .compress = true, .more = 1, .says = "too long"},
    {.file = "images", .compress = true, .at = 15, .byte = 6, .says = "cut short"},
    {.file = "images",
     .compress = true,
     .at = 5,
     .byte = 1,
     .says = "cannot come out of a gzip",
     .in_header = true},
    {.file = "labels",
     .compress = true,
     .at = 5,
     .byte = 16,
     .says = "cannot come out of a gzip",
     .in_header = true},
    {.file = "labels", .compress = true, .at = 13, .byte = 99, .says = "label 5 is 99"},
    /* The compressed bytes themselves. */
    {.file = "images",
     .compress = true,
     .packed_keep = 2,
     .says = "gzip data is cut short",
     .in_header = true},
    {.file = "images",
     .compress = true,
     .packed_keep = 5,
     .says = "gzip data is cut short",
     .in_header = true},
    {.file = "images", .compress = true, .packed_keep = -1, .says = "gzip data is cut short"},
    {.file = "images", .compress = true, .packed_keep = -8, .says = "gzip data is cut short"},
    {.file = "images", .compress = true, .packed_more = 1, .says = "bytes follow"},
    {.file = "images", .compress = true, .packed_more = 512, .says = "bytes follow"},
    {.file = "images",
     .compress = true,
     .packed_at = 2,
     .packed_byte = 9,
     .says = "corrupt",
     .in_header = true},
    {.file = "images", .compress = true, .packed_at = -8, .packed_byte = 0x55, .says = "corrupt"},
    {.file = "images", .compress = true, .packed_at = -4, .packed_byte = 0x55, .says = "corrupt"},
    {.file = "labels",
     .compress = true,
     .packed_at = 10,
     .packed_byte = 0xff,
     .says = "corrupt",
     .in_header = true},
};

static void change(struct buf *bytes, int keep, int at, int byte, int more)
{
    if (keep != 0 || (at == 0 && byte == 0 && more == 0))
        bytes->length = keep < 0 ? bytes->length - (size_t)-keep : (size_t)keep;
    if (at != 0 || byte != 0) bytes->data[at < 0 ? (int)bytes->length + at : at] = (char)byte;
    for (int i = 0; i < more; i++) buf_add_char(bytes, 0);
}

static void write_broken(const struct broken *broken_file)
{
    bool images = strcmp(broken_file->file, "images") == 0;
    struct buf bytes = images ? images_file() : labels_file();
    const struct broken *b = broken_file;
    bool packed_change = b->packed_keep || b->packed_at || b->packed_byte || b->packed_more;
    if (!packed_change) change(&bytes, b->keep, b->at, b->byte, b->more);
    const char *name = images ? "train-images-idx3-ubyte" : "train-labels-idx1-ubyte";
    if (!b->compress) {
        write_file(name, &bytes);
    } else {
        struct buf packed = gzip(&bytes);
        if (packed_change)
            change(&packed, b->packed_keep, b->packed_at, b->packed_byte, b->packed_more);
        char *path = mem_printf("%s/%s", directory, name);
        remove(path);
        free(path);
        path = mem_printf("%s.gz", name);
        write_file(path, &packed);
        free(path);
        buf_deinit(&packed);
    }
    buf_deinit(&bytes);
}

START_TEST(test_broken)
{
    const struct broken *b = &broken[_i];
    write_good("train", false);
    write_broken(b);
    for (int headers_only = 0; headers_only < 2; headers_only++) {
        struct dataset set = {.count = -7};
        status_t status = idx_read_dataset(NULL, directory, IDX_TRAIN, 10, headers_only, &set);
        if (headers_only && !b->in_header) {
            ck_assert_msg(status == NULL, "%s", status_message(status));
            continue;
        }
        const char *message = status_message(status);
        ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT, "%s", message);
        ck_assert_msg(strstr(message, b->says) != NULL, "%s", message);
        ck_assert_msg(strstr(message, b->file) != NULL, "%s", message);
        ck_assert_msg(strstr(message, directory) != NULL, "%s", message);
        ck_assert_int_eq(set.count, -7);
        status_free(status);
    }
}
END_TEST

START_TEST(test_counts_differ)
{
    write_good("train", false);
    struct buf labels = labels_file();
    labels.data[7] = COUNT + 1;
    buf_add_char(&labels, 1);
    write_file("train-labels-idx1-ubyte", &labels);
    buf_deinit(&labels);
    struct dataset set;
    status_t status = idx_read_dataset(NULL, directory, IDX_TRAIN, 10, true, &set);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "has 6 images but"));
    ck_assert_ptr_nonnull(strstr(status_message(status), "has 7 labels"));
    status_free(status);
}
END_TEST

static void expect_failure(enum status_code code, const char *says)
{
    struct dataset set;
    status_t status = idx_read_dataset(NULL, directory, IDX_TRAIN, 10, false, &set);
    ck_assert_msg(status_code(status) == code, "%s", status_message(status));
    ck_assert_msg(strstr(status_message(status), says) != NULL, "%s", status_message(status));
    status_free(status);
}

START_TEST(test_missing)
{
    expect_failure(STATUS_NOT_FOUND, "neither train-images-idx3-ubyte nor");
    write_good("train", false);
    char *path = file_path_join(directory, "train-labels-idx1-ubyte");
    remove(path);
    expect_failure(STATUS_NOT_FOUND, "neither train-labels-idx1-ubyte nor");
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* must not wait for a writer */
    expect_failure(STATUS_INVALID_ARGUMENT, "not a regular file");
    remove(path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    expect_failure(STATUS_INVALID_ARGUMENT, "not a regular file");
    free(path);
    strcat(directory, "x");
    expect_failure(STATUS_NOT_FOUND, "neither");
    directory[strlen(directory) - 1] = '\0';
}
END_TEST

/* Loader. */

enum { SAMPLES = 1000, SIDE = 4 };

static struct dataset make_set(void)
{
    struct dataset set = {SAMPLES, SIDE, SIDE, mem_alloc(SAMPLES * SIDE * SIDE),
                          mem_alloc(SAMPLES)};
    for (int i = 0; i < SAMPLES; i++) {
        memset(set.images + i * SIDE * SIDE, i % 256, SIDE * SIDE);
        set.labels[i] = (uint8_t)(i / 256);
    }
    return set;
}

static struct image_rows make_rows(const struct dataset *set, const uint32_t *order)
{
    struct image_rows rows;
    ck_assert_ptr_null(image_rows_init(&rows, set, 0, 1));
    rows.order = order;
    return rows;
}

static struct loader *make_loader(const struct image_rows *rows, int64_t batch_size)
{
    struct loader *loader;
    struct rows source = image_rows_source(rows);
    ck_assert_ptr_null(loader_new(&source, batch_size, &loader));
    return loader;
}

static bool next(struct loader *loader, struct batch *batch)
{
    bool more;
    ck_assert_ptr_null(loader_next(loader, batch, &more));
    return more;
}

/* Which sample a row of these sets is; -1 for none. */
static int sample_of(const struct batch *batch, int64_t row)
{
    const float *pixels = (const float *)batch->input + row * SIDE * SIDE;
    float first = batch->target[row] < 0 ? 0 : pixels[0];
    for (int i = 0; i < SIDE * SIDE; i++) ck_assert(pixels[i] == first);
    if (batch->target[row] < 0) return -1;
    return batch->target[row] * 256 + (int)(first * 255 + 0.5f);
}

static void expect_epoch(struct loader *loader, int64_t batch_size, const uint32_t *order,
                         int64_t count)
{
    struct batch batch;
    int64_t done = 0;
    while (done < count) {
        ck_assert(next(loader, &batch));
        int64_t samples = 0;
        for (int64_t row = 0; row < batch_size; row++) {
            bool none = done + row >= count || order[done + row] == SAMPLE_NONE;
            ck_assert_int_eq(sample_of(&batch, row), none ? -1 : (int)order[done + row]);
            samples += !none;
        }
        ck_assert_int_eq(batch.samples, samples);
        done += batch_size;
    }
    ck_assert(!next(loader, &batch));
    ck_assert(!next(loader, &batch));
}

START_TEST(test_loader_order)
{
    static const int64_t batch_sizes[] = {1, 3, 64, 999, 1000, 1001};
    struct dataset set = make_set();
    uint32_t order[SAMPLES];
    struct generator generator;
    struct image_rows rows = make_rows(&set, order);
    for (size_t b = 0; b < sizeof batch_sizes / sizeof batch_sizes[0]; b++) {
        struct loader *loader = make_loader(&rows, batch_sizes[b]);
        for (uint64_t epoch = 1; epoch < 4; epoch++) {
            generator_seed(&generator, epoch);
            generator_fill_permutation(&generator, SAMPLES, order);
            order[SAMPLES / 2] = order[SAMPLES - 1] = SAMPLE_NONE;
            loader_start(loader, 0, SAMPLES);
            expect_epoch(loader, batch_sizes[b], order, SAMPLES);
        }
        loader_start(loader, 0, 0);
        expect_epoch(loader, batch_sizes[b], order, 0);
        loader_free(loader);
    }
    dataset_deinit(&set);
}
END_TEST

START_TEST(test_loader_interrupted)
{
    struct dataset set = make_set();
    uint32_t order[SAMPLES];
    for (uint32_t i = 0; i < SAMPLES; i++) order[i] = SAMPLES - 1 - i;
    struct image_rows rows = make_rows(&set, order);
    for (int taken = 0; taken < 12; taken++) {
        struct loader *loader = make_loader(&rows, 50);
        struct batch batch;
        loader_start(loader, 0, SAMPLES);
        for (int i = 0; i < taken; i++) ck_assert(next(loader, &batch));
        loader_start(loader, 100, SAMPLES - 100); /* an epoch given up */
        expect_epoch(loader, 50, order + 100, SAMPLES - 100);
        loader_start(loader, 0, SAMPLES);
        for (int i = 0; i < taken; i++) ck_assert(next(loader, &batch));
        loader_free(loader); /* with batches in flight */
    }
    loader_free(make_loader(&rows, 50)); /* one that never had anything to do */
    loader_free(NULL);
    dataset_deinit(&set);
}
END_TEST

/* A batch stays as it is while its owner uses it, however far the threads have got. */
START_TEST(test_loader_leaves_the_batch_alone)
{
    struct dataset set = make_set();
    uint32_t order[SAMPLES];
    for (uint32_t i = 0; i < SAMPLES; i++) order[i] = i;
    struct image_rows rows = make_rows(&set, order);
    struct loader *loader = make_loader(&rows, 10);
    struct batch batch;
    loader_start(loader, 0, SAMPLES);
    ck_assert(next(loader, &batch));
    clock_sleep_ms(50);
    for (int64_t row = 0; row < 10; row++) ck_assert_int_eq(sample_of(&batch, row), (int)row);
    loader_free(loader);
    dataset_deinit(&set);
}
END_TEST

START_TEST(test_pixels_are_finite)
{
    struct dataset set = make_set();
    static const double bad[][2] = {{0, 0}, {0, 1e-60}, {1e300, 1}, {0, 1e-39 / 10}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct image_rows rows;
        status_t status = image_rows_init(&rows, &set, bad[i][0], bad[i][1]);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        status_free(status);
    }
    dataset_deinit(&set);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_data");
    TCase *files = tcase_create("idx");
    tcase_add_checked_fixture(files, make_directory, remove_directory);
    tcase_set_timeout(files, 60);
    tcase_add_loop_test(files, test_reads, 0, 8);
    tcase_add_test(files, test_reads_odd_gzip);
    tcase_add_loop_test(files, test_broken, 0, sizeof broken / sizeof broken[0]);
    tcase_add_test(files, test_counts_differ);
    tcase_add_test(files, test_missing);
    suite_add_tcase(suite, files);
    TCase *loader = tcase_create("loader");
    tcase_set_timeout(loader, 60);
    tcase_add_test(loader, test_loader_order);
    tcase_add_test(loader, test_loader_interrupted);
    tcase_add_test(loader, test_loader_leaves_the_batch_alone);
    tcase_add_test(loader, test_pixels_are_finite);
    suite_add_tcase(suite, loader);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
