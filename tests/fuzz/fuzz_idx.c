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
#include "fuzz.h"
#include "train/idx.h"

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
    rmdir(directory);
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

static void read_dataset(bool headers_only)
{
    struct dataset dataset;
    status_t status = idx_read_dataset(NULL, directory, IDX_TRAIN, CLASSES, headers_only, &dataset);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    /* Touch it all: a set that promises more than it holds is AddressSanitizer's finding. */
    uint64_t sum = 0;
    if (!headers_only) {
        for (int64_t i = 0; i < dataset.count * dataset.height * dataset.width; i++)
            sum += dataset.images[i];
        for (int64_t i = 0; i < dataset.count; i++) {
            sum += dataset.labels[i];
            FUZZ_CHECK(dataset.labels[i] < CLASSES, "label %d", dataset.labels[i]);
        }
    }
    static volatile uint64_t sink;
    sink = sum;
    (void)sink;
    dataset_deinit(&dataset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (directory[0] == '\0') make_directory();
    if (size < 2) return 0;
    size_t images = (size_t)(data[0] | data[1] << 8);
    if (images > size - 2) images = size - 2;
    write_file("train-images-idx3-ubyte", data + 2, images);
    write_file("train-labels-idx1-ubyte", data + 2 + images, size - 2 - images);
    read_dataset(true);
    read_dataset(false);
    return 0;
}
