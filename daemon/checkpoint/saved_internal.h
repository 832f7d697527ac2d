/* Inside checkpoint/: an open checkpoint, as saved.c reads it and saved_match.c finds a model in
 * it. */
#ifndef FSDPD_CHECKPOINT_SAVED_INTERNAL_H
#define FSDPD_CHECKPOINT_SAVED_INTERNAL_H

#include "checkpoint/block_sums.h"
#include "checkpoint/saved.h"

struct place { /* of a parameter; unit -1: nowhere */
    int unit;
    int64_t offset; /* in the unit's flat parameter */
};

struct saved_sum { /* of a rank's file, as far as it was read */
    int rank, fd;  /* fd -1: not begun */
    uint64_t at;
    struct digest *blocks; /* that were read */
    size_t count, capacity;
};

struct saved {
    struct folder directory;
    struct manifest manifest;
    struct place *places; /* by the model's parameter; NULL before saved_match */
    struct digest **blocks; /* by rank, the sums of its file's blocks; NULL: not known */
    int open_rank, fd;      /* the file that is open; fd -1: none */
    uint64_t *starts;       /* in it: (units, slots + 1), UINT64_MAX: not there */
    unsigned char *block;   /* the one that was read last, with the sum that it must have */
    uint64_t block_number;  /* of the open file; UINT64_MAX: none */
    struct saved_sum sum;   /* of saved_verify_next */
};

#endif
