/*
 * idx files, gzipped or not: two bytes with the length of the images' file, that file, and the
 * labels' file. They are written to a directory of this process's own, as the reader takes them.
 */
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "data/image_formats.h"
#include "fuzz.h"

enum { CLASSES = 10 };

static char directory[PATH_MAX];

static char *file_path(const char *name)
{
    return mem_printf("%s/%s", directory, name);
}

static void remove_directory(void)
{
    char *images = file_path("train-images-idx3-ubyte"),
         *labels = file_path("train-labels-idx1-ubyte");
    unlink(images);
    unlink(labels);
    char *copies = mem_printf("%s/fsdpd-data-%u", directory, (unsigned)geteuid());
    rmdir(copies);
    rmdir(directory);
    free(copies);
    free(images);
    free(labels);
}

static void make_directory(void)
{
    struct stat info;
    const char *parent = getenv("TMPDIR");
    if (parent == NULL) parent = stat("/dev/shm", &info) == 0 ? "/dev/shm" : "/tmp";
    snprintf(directory, sizeof directory, "%s/fuzz-idx-XXXXXX", parent);
    FUZZ_CHECK(mkdtemp(directory) != NULL, "%s", directory);
    setenv("TMPDIR", directory, 1); /* for decompressed copies */
    atexit(remove_directory);
}

static void write_file(const char *name, const uint8_t *bytes, size_t size)
{
    char *path = file_path(name);
    FILE *file = fopen(path, "w");
    FUZZ_CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "%s",
               path);
    free(path);
}

/* Reads every sample of what is accepted. */
static void read_samples(const struct image_set *set)
{
    size_t size = image_set_row_bytes(set);
    uint8_t *image = malloc(size);
    FUZZ_CHECK(image != NULL, "an image of %zu bytes", size);
    for (int64_t i = 0; i < set->count; i++) {
        int32_t target = -1;
        status_t status = image_set_read(set, i, image, &target);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
        FUZZ_CHECK(target >= 0 && target < CLASSES, "label %d", target);
    }
    free(image);
}

static void read_dataset(void)
{
    struct image_set set;
    status_t status = idx_open(NULL, directory, IDX_TRAIN, CLASSES, &set);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    status = image_set_prepare(&set);
    if (status != NULL) fuzz_expect_user_error(status);
    else read_samples(&set);
    image_set_close(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (directory[0] == '\0') make_directory();
    if (size < 2) return 0;
    size_t images = (size_t)(data[0] | data[1] << 8);
    if (images > size - 2) images = size - 2;
    write_file("train-images-idx3-ubyte", data + 2, images);
    write_file("train-labels-idx1-ubyte", data + 2 + images, size - 2 - images);
    read_dataset();
    return 0;
}
