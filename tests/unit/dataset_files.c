/* Datasets for tests; see dataset_files.h. */
#include "dataset_files.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

void dataset_write_bytes(const char *directory, const char *name, const struct buf *bytes)
{
    char *path = file_path_join(directory, name);
    ck_assert_ptr_null(file_write_atomic(path, buf_text(bytes), bytes->length, 0600));
    free(path);
}

void dataset_write_text(const char *directory, const char *name, const char *text)
{
    struct buf bytes = {0};
    buf_add_text(&bytes, text);
    dataset_write_bytes(directory, name, &bytes);
    buf_deinit(&bytes);
}

void dataset_make_npy(const char *dictionary, const void *data, size_t size, struct buf *out)
{
    size_t length = strlen(dictionary);
    buf_add(out, "\x93NUMPY\x01\x00", 8);
    buf_add_char(out, (char)length);
    buf_add_char(out, (char)(length >> 8));
    buf_add_text(out, dictionary);
    buf_add(out, data, size);
}

struct dataset_sum dataset_write_npy(const char *directory, const char *name, const char *descr,
                                     const void *data, size_t count, size_t width)
{
    char *dictionary =
        mem_printf("{'descr': '%s', 'fortran_order': False, 'shape': (%zu,), }   \n", descr, count);
    struct buf bytes = {0};
    dataset_make_npy(dictionary, data, count * width, &bytes);
    dataset_write_bytes(directory, name, &bytes);
    struct dataset_sum file;
    struct digest sum;
    digest_of(buf_text(&bytes), bytes.length, &sum);
    digest_format(&sum, file.digits);
    buf_deinit(&bytes);
    free(dictionary);
    return file;
}

void dataset_add_array(struct buf *json, const char *name, const char *file, const char *type,
                       size_t count, const struct dataset_sum *sum)
{
    buf_printf(
        json,
        "%s\"%s\": {\"file\": \"%s\", \"type\": \"%s\", \"shape\": [%zu], \"sha256\": \"%s\"}",
        json->data[json->length - 1] == '{' ? "" : ", ", name, file, type, count, sum->digits);
}
