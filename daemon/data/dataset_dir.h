/*
 * A dataset directory (docs/datasets.md): dataset.json, and arrays as .npy files beside it. The
 * directory may be hostile: the numbers in dataset.json have limits, each file's header must agree
 * with it, and its digest is compared. INVALID_ARGUMENT names the file and the place in it.
 */
#ifndef FSDPD_DATA_DATASET_DIR_H
#define FSDPD_DATA_DATASET_DIR_H

#include "data/npy.h"
#include "digest/digest.h"

/* Digests of larger files are not computed: that would delay the first step for too long. */
#define DATASET_SUM_MAX (INT64_C(1) << 30)

enum dataset_kind { DATASET_TOKENS, DATASET_IMAGES };
/* Of images of four dimensions. */
enum dataset_layout { DATASET_LAYOUT_UNKNOWN, DATASET_NCHW, DATASET_NHWC };
enum dataset_split_name { DATASET_TRAIN, DATASET_VALIDATION };
enum { DATASET_SPLITS = DATASET_VALIDATION + 1 };

enum dataset_array_name {
    DATASET_ARRAY_TOKENS,       /* (tokens): uint16 or uint32 */
    DATASET_ARRAY_DOCUMENTS,    /* (documents + 1): the start of each, uint64; last: the end */
    DATASET_ARRAY_MASK,         /* (tokens): uint8, 0 for a token that must not be predicted */
    DATASET_ARRAY_LABELS,       /* (documents): integers, the class of each */
    DATASET_ARRAY_NUMBERS,      /* "targets" of tokens, (documents) or (documents, n): float32 */
    DATASET_ARRAY_TOKEN_LABELS, /* (tokens): integers, a class; negative: it does not count */
    DATASET_ARRAY_IMAGES,       /* (images, height, width), or with channels: uint8 or float32 */
    DATASET_ARRAY_TARGETS,      /* (images): integers, or float32 */
};
enum { DATASET_ARRAYS = DATASET_ARRAY_TARGETS + 1 };

struct dataset_array {
    struct npy npy; /* zeroed if the split has no such array */
    struct digest sum;
};

struct dataset_split {
    struct dataset_array arrays[DATASET_ARRAYS];
};

struct dataset_dir {
    char *path; /* of dataset.json; NULL: not open */
    enum dataset_kind kind;
    int64_t vocabulary; /* for tokens: ids are below it */
    bool pairs;         /* of tokens: a chosen document, then the rejected one; texts is 2 */
    int64_t texts;      /* of tokens: documents that belong together, one after the other; else 1 */
    int64_t classes;    /* labels, or targets of images, are below it; 0: unknown */
    enum dataset_layout layout;
    struct dataset_split splits[DATASET_SPLITS];
};

/* With `check`, also compares the digests and checks all boundaries. Links must not lead out of
 * `root` (NULL: no root). */
status_t dataset_dir_open(const char *root, const char *path, bool check,
                          struct dataset_dir *dir) FSDPD_MUST_USE;
void dataset_dir_close(struct dataset_dir *dir); /* accepts a zeroed one */

/* NULL: the split has no such array. */
const struct npy *dataset_dir_array(const struct dataset_dir *dir, enum dataset_split_name split,
                                    enum dataset_array_name array);

/* The start and end of a document, checked against `tokens`, the number of tokens. */
status_t dataset_document(const struct npy *documents, int64_t number, int64_t tokens,
                          int64_t *begin, int64_t *end) FSDPD_MUST_USE;

#endif
