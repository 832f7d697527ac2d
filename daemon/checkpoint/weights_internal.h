/* Inside checkpoint/: weights.c opens and reads files of weights, weights_match.c compares their
 * headers with the model. */
#ifndef FSDPD_CHECKPOINT_WEIGHTS_INTERNAL_H
#define FSDPD_CHECKPOINT_WEIGHTS_INTERNAL_H

#include <sys/stat.h>

#include "base/buf.h"
#include "checkpoint/weights.h"
#include "hf/index.h"

enum weights_dtype {
    WEIGHTS_F32,
    WEIGHTS_F16,
    WEIGHTS_BF16,
    WEIGHTS_OTHER /* only of a count, whose bytes are read as they are */
};

struct weights_file {
    const char *dir, *root; /* the source's, or its adapter's */
    char *name;             /* in the directory */
    bool adapter;
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

/* Positions of an image of another size: the rows before the grid, and the sides of the two grids;
 * `from` is 0 for values that are used as they are. */
struct grid {
    int64_t first, from, to, columns;
};

struct slot {     /* where a parameter's values are */
    char *tensor; /* its name in the file; NULL: nowhere */
    int file;
    enum weights_dtype dtype;
    bool copy;       /* under a name that another one goes before */
    struct grid grid;
    int64_t rows, columns; /* of a tensor that is the parameter's transpose; else 0 */
    uint64_t offset;       /* in the file */
};

struct weights {
    const struct weights_source *source;
    struct weights_file *files;
    int file_count;
    struct slot *slots; /* by parameter */
    int parameter_count;
    char *note;
    bool is_partial;   /* some parameters are in no file */
    int open_file, fd; /* the file that is open, or -1 */
    unsigned char *piece;
};

/* Appends a name as it may be shown: no control characters, and cut between characters. */
void weights_add_name(struct buf *out, const char *name);
/* Wherever links lead below the root. */
status_t weights_open_file(const struct weights_file *file, int *fd,
                           struct stat *info) FSDPD_MUST_USE;

/* Finds each parameter's values in the first `count` files; `index` may be NULL. An error lists
 * what does not fit. */
status_t weights_match_files(struct weights *weights, const struct model *model, int count,
                             const struct hf_index *index) FSDPD_MUST_USE;
/* The same in an adapter's file, which goes before the others. */
status_t weights_match_adapter(struct weights *weights, const struct model *model,
                               int file) FSDPD_MUST_USE;

#endif
