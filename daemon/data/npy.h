/*
 * NumPy's .npy files (format 1.0 to 3.0): a header that is the text of a Python dictionary, then
 * the array's elements. Supports little-endian arrays in C order. The files may be hostile: every
 * error is INVALID_ARGUMENT and names the file, and sizes are checked before anything is read.
 */
#ifndef FSDPD_DATA_NPY_H
#define FSDPD_DATA_NPY_H

#include "data/data_file.h"

enum npy_type { NPY_U8, NPY_U16, NPY_U32, NPY_U64, NPY_I32, NPY_I64, NPY_F32 };
enum { NPY_TYPES = NPY_F32 + 1, NPY_DIMS_MAX = 4 };

struct npy {
    struct data_file file;
    enum npy_type type;         /* bool is an NPY_U8 */
    int dim_count;              /* at least 1 */
    int64_t dims[NPY_DIMS_MAX]; /* each at least 1 */
    int64_t count;              /* elements */
    int64_t first_byte;         /* place of the first element */
};

/* Whether a file starts like an .npy file. */
status_t npy_is(const struct data_file *file, bool *is) FSDPD_MUST_USE;

/* Takes ownership of `file` on success. */
status_t npy_parse(const struct data_file *file, struct npy *npy) FSDPD_MUST_USE;

/* Links must not lead out of `root` (NULL: no root). */
status_t npy_open(const char *root, const char *path, struct npy *npy) FSDPD_MUST_USE;
void npy_close(struct npy *npy); /* accepts a zeroed one */

/* "uint16", NumPy's name; the bytes of an element. */
const char *npy_type_name(enum npy_type type);
int npy_type_width(enum npy_type type);

/* The value of a stored element of a type of integers; a large uint64 becomes negative. */
int64_t npy_integer(enum npy_type type, const unsigned char *bytes);

/* "(100, 3, 32, 32)"; returns `text`. */
char *npy_format_shape(int dim_count, const int64_t *dims, char text[static 96]);

/* Reads elements `first` to `first` + `count` - 1 as stored in the file. They must exist. */
status_t npy_read(const struct npy *npy, int64_t first, int64_t count, void *bytes) FSDPD_MUST_USE;

#endif
