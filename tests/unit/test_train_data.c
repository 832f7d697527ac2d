/* idx files, whole and broken, plain and gzipped; and the loader: order, short batches, shutdown.
 */
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "data/image_formats.h"
#include "data/image_rows.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "tests/testing.h"

enum { COUNT = 6, HEIGHT = 3, WIDTH = 5, PIXELS = HEIGHT * WIDTH };

static char directory[64];

static void make_directory(void)
{
    strcpy(directory, "/tmp/fsdpd-test-data-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(setenv("TMPDIR", directory, 1), 0); /* for decompressed copies */
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

static void expect_good(const struct image_set *set)
{
    ck_assert_int_eq(set->count, COUNT);
    ck_assert_int_eq(set->channels, 1);
    ck_assert_int_eq(set->height, HEIGHT);
    ck_assert_int_eq(set->width, WIDTH);
    for (int i = 0; i < COUNT; i++) {
        uint8_t image[PIXELS];
        int32_t target;
        ck_assert_ptr_null(image_set_read(set, i, image, &target));
        ck_assert_int_eq(target, i);
        for (int p = 0; p < PIXELS; p++)
            ck_assert_int_eq(image[p], (uint8_t)((i * PIXELS + p) * 7));
    }
}

/* Opens the files, and unless `headers_only` also prepares them. */
static status_t open_set(enum idx_split split, bool headers_only, struct image_set *set)
{
    TRY(idx_open(NULL, directory, split, 10, set));
    if (headers_only) return NULL;
    status_t status = image_set_prepare(set);
    if (status != NULL) image_set_close(set);
    return status;
}

static struct image_set open_good(void)
{
    struct image_set set;
    ck_assert_ptr_null(open_set(IDX_TRAIN, false, &set));
    return set;
}

/* Decompressed copies that exist now; -1: not even their directory does. */
static int count_copies(void)
{
    char *path = mem_printf("%s/fsdpd-data-%u", directory, (unsigned)geteuid());
    DIR *entries = opendir(path);
    int count = 0;
    free(path);
    if (entries == NULL) return -1;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(entries);
    return count;
}

TESTS_BELOW(.timeout = 60, .set_up = make_directory, .tear_down = remove_directory);

LOOP_TEST(reads, 0, 4)
{
    bool compressed = _i & 1, test = _i & 2;
    write_good(test ? "t10k" : "train", compressed);
    struct image_set set;
    ck_assert_ptr_null(open_set(test ? IDX_TEST : IDX_TRAIN, false, &set));
    expect_good(&set);
    image_set_close(&set);
}

TEST(ranks_share_one_copy_and_the_last_one_removes_it)
{
    write_good("train", true);
    struct image_set first = open_good(), second = open_good();
    struct stat a, b;
    ck_assert_int_eq(count_copies(), 2); /* images and labels */
    ck_assert(fstat(first.unpacked[0].file.fd, &a) == 0 &&
              fstat(second.unpacked[0].file.fd, &b) == 0);
    ck_assert_uint_eq(a.st_ino, b.st_ino);
    ck_assert_uint_eq(a.st_mode & 0777, 0600); /* not for those who may read the original */
    image_set_close(&first);
    ck_assert_int_eq(count_copies(), 2);
    expect_good(&second);
    image_set_close(&second);
    ck_assert_int_eq(count_copies(), -1);
}

/* A relative path would depend on the process. */
TEST(temporary_files_have_one_directory)
{
    static const char *const other[] = {"", "tmp", "./tmp"};
    ck_assert_str_eq(file_temporary_directory(), directory);
    for (size_t i = 0; i < COUNT_OF(other); i++) {
        setenv("TMPDIR", other[i], 1);
        ck_assert_str_eq(file_temporary_directory(), "/tmp");
    }
    unsetenv("TMPDIR");
    ck_assert_str_eq(file_temporary_directory(), "/tmp");
}

/* A killed process leaves its copy, complete or not; a copy in use survives. */
TEST(copies_of_killed_processes_are_removed_or_used)
{
    write_good("train", true);
    struct image_set set = open_good();
    char *left = mem_printf("%s/fsdpd-data-%u/left", directory, (unsigned)geteuid());
    FILE *file = fopen(left, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    ck_assert_int_eq(truncate(set.unpacked[0].path, 20), 0);
    ck_assert_int_eq(count_copies(), 3);
    flock(set.unpacked[0].file.fd, LOCK_UN); /* as when its process ends */
    struct image_set next = open_good();
    ck_assert_int_eq(access(left, F_OK), -1);
    expect_good(&next);
    image_set_close(&next);
    image_set_close(&set);
    ck_assert_int_eq(count_copies(), -1);
    free(left);
}

TEST(a_directory_that_others_can_use_is_refused)
{
    write_good("train", true);
    char *path = mem_printf("%s/fsdpd-data-%u", directory, (unsigned)geteuid());
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(chmod(path, 0777), 0);
    struct image_set set;
    status_t status = open_set(IDX_TRAIN, false, &set);
    ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(status_message(status), path));
    status_free(status);
    free(path);
}

TEST(a_file_that_changes_is_reported)
{
    write_good("train", false);
    struct image_set set = open_good();
    char *path = file_path_join(directory, "train-images-idx3-ubyte");
    uint8_t image[PIXELS];
    int32_t target;
    ck_assert_int_eq(truncate(path, 30), 0);
    status_t status = image_set_read(&set, 1, image, &target);
    ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(status_message(status), path));
    status_free(status);
    image_set_close(&set);
    free(path);
}

/* The content, not the name, determines what is compressed; and gzip files may be concatenated. */
TEST(reads_odd_gzip)
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
    struct image_set set = open_good();
    expect_good(&set);
    image_set_close(&set);
    buf_deinit(&images);
    buf_deinit(&labels);
    buf_deinit(&packed_labels);
    buf_deinit(&joined);
    buf_deinit(&packed_head);
    buf_deinit(&packed_tail);
}

/*
 * One file of the pair, changed. First as bytes: `keep` bytes are kept (negative: that many fewer
 * than all), then `at` is set to `byte`, and `more` zeros follow. Then it may be compressed, and
 * the same happens to the compressed bytes with the second set.
 */
static const struct broken {
    const char *file;
    int keep, at, byte, more;
    bool compress;
    int packed_keep, packed_at, packed_byte, packed_more;
    const char *expected;
    bool in_header; /* found without reading the data */
} broken[] = {
    {.file = "images", .keep = 0, .expected = "is empty", .in_header = true},
    {.file = "images", .keep = 3, .expected = "cut short", .in_header = true},
    {.file = "images", .keep = 15, .expected = "takes 16 bytes", .in_header = true},
    {.file = "images", .keep = 16, .expected = "cut short", .in_header = true},
    {.file = "images", .keep = -1, .expected = "has 105", .in_header = true},
    {.file = "images", .more = 1, .expected = "too long", .in_header = true},
    {.file = "images", .at = 3, .byte = 1, .expected = "starts with 0x00000803", .in_header = true},
    {.file = "images", .at = 0, .byte = 0x1f, .expected = "0x1f000803", .in_header = true},
    {.file = "images", .at = 7, .byte = 7, .expected = "cut short", .in_header = true},
    {.file = "images", .at = 7, .byte = 5, .expected = "too long", .in_header = true},
    {.file = "images", .at = 7, .byte = 0, .expected = "there are no images", .in_header = true},
    {.file = "images", .at = 11, .byte = 0, .expected = "dimension 1", .in_header = true},
    {.file = "images", .at = 15, .byte = 0, .expected = "dimension 2", .in_header = true},
    {.file = "images", .at = 4, .byte = 255, .expected = "at most 214748363", .in_header = true},
    {.file = "images", .at = 8, .byte = 255, .expected = "promises", .in_header = true},
    {.file = "labels", .keep = 7, .expected = "takes 8 bytes", .in_header = true},
    {.file = "labels", .keep = -1, .expected = "cut short", .in_header = true},
    {.file = "labels", .more = 3, .expected = "too long", .in_header = true},
    {.file = "labels", .at = 3, .byte = 3, .expected = "starts with 0x00000801", .in_header = true},
    {.file = "labels", .at = 4, .byte = 127, .expected = "at most 214748363", .in_header = true},
    {.file = "labels",
     .at = 12,
     .byte = 10,
     .expected = "label 4 is 10, but the model's classes are 0 to 9"},
    {.file = "labels", .at = 8, .byte = 255, .expected = "label 0 is 255"},
    /* Inside gzip the size only shows at the end. */
    {.file = "images",
     .compress = true,
     .keep = 15,
     .expected = "takes 16 bytes",
     .in_header = true},
    {.file = "images", .compress = true, .keep = -1, .expected = "cut short"},
    {.file = "images", .compress = true, .more = 1, .expected = "too long"},
    {.file = "images", .compress = true, .at = 15, .byte = 6, .expected = "cut short"},
    {.file = "images",
     .compress = true,
     .at = 5,
     .byte = 1,
     .expected = "cannot come out of a gzip",
     .in_header = true},
    {.file = "labels",
     .compress = true,
     .at = 5,
     .byte = 16,
     .expected = "cannot come out of a gzip",
     .in_header = true},
    {.file = "labels", .compress = true, .at = 13, .byte = 99, .expected = "label 5 is 99"},
    /* The compressed bytes themselves. */
    {.file = "images",
     .compress = true,
     .packed_keep = 2,
     .expected = "gzip data is cut short",
     .in_header = true},
    {.file = "images",
     .compress = true,
     .packed_keep = 5,
     .expected = "gzip data is cut short",
     .in_header = true},
    {.file = "images", .compress = true, .packed_keep = -1, .expected = "gzip data is cut short"},
    {.file = "images", .compress = true, .packed_keep = -8, .expected = "gzip data is cut short"},
    {.file = "images", .compress = true, .packed_more = 1, .expected = "bytes follow"},
    {.file = "images", .compress = true, .packed_more = 512, .expected = "bytes follow"},
    {.file = "images",
     .compress = true,
     .packed_at = 2,
     .packed_byte = 9,
     .expected = "corrupt",
     .in_header = true},
    {.file = "images",
     .compress = true,
     .packed_at = -8,
     .packed_byte = 0x55,
     .expected = "corrupt"},
    {.file = "images",
     .compress = true,
     .packed_at = -4,
     .packed_byte = 0x55,
     .expected = "corrupt"},
    {.file = "labels",
     .compress = true,
     .packed_at = 10,
     .packed_byte = 0xff,
     .expected = "corrupt",
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

LOOP_TEST(broken, 0, COUNT_OF(broken))
{
    const struct broken *b = &broken[_i];
    write_good("train", false);
    write_broken(b);
    for (int headers_only = 0; headers_only < 2; headers_only++) {
        struct image_set set;
        status_t status = open_set(IDX_TRAIN, headers_only, &set);
        if (headers_only && !b->in_header) {
            ck_assert_msg(status == NULL, "%s", status_message(status));
            image_set_close(&set);
            continue;
        }
        const char *message = status_message(status);
        ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT, "%s", message);
        ck_assert_msg(strstr(message, b->expected) != NULL, "%s", message);
        ck_assert_msg(strstr(message, b->file) != NULL, "%s", message);
        ck_assert_msg(strstr(message, directory) != NULL, "%s", message);
        status_free(status);
    }
}

TEST(counts_differ)
{
    write_good("train", false);
    struct buf labels = labels_file();
    labels.data[7] = COUNT + 1;
    buf_add_char(&labels, 1);
    write_file("train-labels-idx1-ubyte", &labels);
    buf_deinit(&labels);
    struct image_set set;
    status_t status = open_set(IDX_TRAIN, true, &set);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "has 6 images but"));
    ck_assert_ptr_nonnull(strstr(status_message(status), "has 7 labels"));
    status_free(status);
}

static void expect_failure(enum status_code code, const char *expected)
{
    struct image_set set;
    status_t status = open_set(IDX_TRAIN, false, &set);
    ck_assert_msg(status_code(status) == code, "%s", status_message(status));
    ck_assert_msg(strstr(status_message(status), expected) != NULL, "%s", status_message(status));
    status_free(status);
}

TEST(missing)
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

/* Loader. */

enum { SAMPLES = 1000, SIDE = 4 };

/* One file: the images, then the labels; the set owns it. */
static struct image_set make_set(void)
{
    char path[] = "/tmp/fsdpd-test-set-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(unlink(path), 0);
    struct buf bytes = {0};
    for (int i = 0; i < SAMPLES * SIDE * SIDE; i++)
        buf_add_char(&bytes, (char)(i / (SIDE * SIDE) % 256));
    for (int i = 0; i < SAMPLES; i++) buf_add_char(&bytes, (char)(i / 256));
    ck_assert_int_eq(write(fd, bytes.data, bytes.length), (ssize_t)bytes.length);
    buf_deinit(&bytes);
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    return (struct image_set){.count = SAMPLES,
                              .channels = 1,
                              .height = SIDE,
                              .width = SIDE,
                              .classes = 4,
                              .file_count = 1,
                              .files = {{mem_strdup(path), fd, info.st_size, info.st_mtim}},
                              .part_count = 1,
                              .parts = {{SAMPLES, 0, 0, 0, SIDE * SIDE,
                                         (int64_t)SAMPLES * SIDE * SIDE, 1}}};
}

static struct image_rows make_rows(const struct image_set *set, const uint32_t *order)
{
    struct image_rows rows;
    ck_assert_ptr_null(image_rows_init(&rows, set, &(struct image_transform){.std = 1}, 1, false));
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

/* The sample in a row of these sets; -1 for none. */
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

TESTS_BELOW(.timeout = 60);

TEST(loader_order)
{
    static const int64_t batch_sizes[] = {1, 3, 64, 999, 1000, 1001};
    struct image_set set = make_set();
    uint32_t order[SAMPLES];
    struct generator generator;
    struct image_rows rows = make_rows(&set, order);
    for (size_t b = 0; b < COUNT_OF(batch_sizes); b++) {
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
    image_set_close(&set);
}

TEST(loader_interrupted)
{
    struct image_set set = make_set();
    uint32_t order[SAMPLES];
    for (uint32_t i = 0; i < SAMPLES; i++) order[i] = SAMPLES - 1 - i;
    struct image_rows rows = make_rows(&set, order);
    for (int taken = 0; taken < 12; taken++) {
        struct loader *loader = make_loader(&rows, 50);
        struct batch batch;
        loader_start(loader, 0, SAMPLES);
        for (int i = 0; i < taken; i++) ck_assert(next(loader, &batch));
        loader_start(loader, 100, SAMPLES - 100); /* an abandoned epoch */
        expect_epoch(loader, 50, order + 100, SAMPLES - 100);
        loader_start(loader, 0, SAMPLES);
        for (int i = 0; i < taken; i++) ck_assert(next(loader, &batch));
        loader_free(loader); /* with batches in flight */
    }
    loader_free(make_loader(&rows, 50)); /* one that never had any work */
    loader_free(NULL);
    image_set_close(&set);
}

/* A batch stays unchanged while its owner uses it, however far the threads are ahead. */
TEST(loader_leaves_the_batch_alone)
{
    struct image_set set = make_set();
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
    image_set_close(&set);
}

TEST(pixels_are_finite)
{
    struct image_set set = make_set();
    static const double bad[][2] = {{0, 0}, {0, 1e-60}, {1e300, 1}, {0, 1e-39 / 10}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct image_rows rows;
        status_t status =
            image_rows_init(&rows, &set,
                            &(struct image_transform){.mean = bad[i][0], .std = bad[i][1]}, 1,
                            true);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        status_free(status);
    }
    image_set_close(&set);
}
