/* The token data of a job: its files, split into training and validation, cut into windows. */
#ifndef FSDPD_TRAIN_TOKEN_DATA_H
#define FSDPD_TRAIN_TOKEN_DATA_H

#include "train/job.h"
#include "train/token_rows.h"

struct token_split {
    const struct token_file *file;
    int64_t first, count; /* its tokens in the file */
    struct windows windows;
    struct masking masking; /* if the job is `masked` */
};

struct token_data {
    struct token_file files[2]; /* the second one only if the job has a validation_path */
    int64_t vocabulary;
    struct token_split train, validation; /* the latter only if the job evaluates */
    int64_t validation_rows;              /* windows of one evaluation, all ranks together */
};

/*
 * Opens the job's files. `context` is the length of a window. INVALID_ARGUMENT names file and place
 * or key. With `check`, also every token is compared with the vocabulary, in files that are no
 * larger than takes a moment; tokens of larger ones are when they are read. The pointers inside
 * point into *data, which must stay where it is.
 */
status_t token_data_open(const struct train_job *job, int64_t vocabulary, int64_t context,
                         bool check, struct token_data *data) FSDPD_MUST_USE;
void token_data_close(struct token_data *data); /* accepts a zeroed one */

/* What `rank` sees of a split; points into *data. */
struct token_rows token_data_rows(const struct token_data *data, const struct train_job *job,
                                  int rank, bool validation);

/*
 * The batches per optimizer step that make up job->batch_tokens, or the job's own number.
 * INVALID_ARGUMENT with the nearest possible numbers if none does.
 */
status_t token_data_accumulation(const struct train_job *job, int64_t context,
                                 uint32_t *steps) FSDPD_MUST_USE;

#endif
