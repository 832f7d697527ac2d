/* The token data of a job: its files, split into training and validation, and into windows. */
#ifndef FSDPD_DATA_TOKEN_DATA_H
#define FSDPD_DATA_TOKEN_DATA_H

#include "data/dataset_dir.h"
#include "data/token_rows.h"
#include "setup/job.h"

/* A file for training, perhaps with a part for validation; a file for validation; or a dataset
 * directory. */
struct token_source {
    struct token_file files[2]; /* for a dataset: its arrays, which it owns */
    struct dataset_dir dataset; /* zeroed for files */
    struct token_split train, validation;
};

/* How the sources' rows form one stream. */
struct token_stream {
    const struct token_split **splits;
    struct mixture mixture;
    struct masking masking; /* if the job is `masked` */
    int64_t rows;           /* rows per epoch, over all sources */
};

/* What the model takes and learns. */
struct token_model {
    int64_t vocabulary;
    enum model_target target;
    int64_t classes; /* of TARGET_CLASS and TARGET_TOKEN_CLASS */
    int64_t numbers; /* of TARGET_NUMBERS: how many of each document */
    int64_t
        texts; /* with TARGET_PAIR, _PREFERENCE and _REWARD: documents of each row; 0 or 1: one */
    int64_t padding; /* the token that fills up rows of documents */
    bool precomputed; /* of TARGET_PREFERENCE: rows have what the reference made of them */
};

struct token_data {
    struct token_source *sources;
    int source_count;
    bool held_out; /* it has no `train` */
    struct token_model model;
    struct token_stream train, validation; /* `validation` only if the job evaluates */
    int64_t validation_rows;               /* rows per evaluation, over all ranks */
    uint64_t hash;                         /* of the values that all ranks must agree on */
    float *reference;                      /* what the splits point into; NULL: none */
};

/*
 * Opens the job's files. `context` is the length of a row. INVALID_ARGUMENT names file and place or
 * key. With `check`, also compares every token with the vocabulary, in files small enough to do so
 * at once; tokens of larger files are checked when they are read. The pointers inside point into
 * *data, which must not move.
 */
status_t token_data_open(const struct train_job *job, const struct token_model *model,
                         int64_t context, bool check, struct token_data *data) FSDPD_MUST_USE;
/* Opens a held-out set likewise: the result has no `train`. */
status_t token_data_open_held_out(const struct train_job *job, const struct held_out *set,
                                  const struct token_model *model, int64_t context, bool check,
                                  struct token_data *data) FSDPD_MUST_USE;
void token_data_close(struct token_data *data); /* accepts a zeroed one */

/* The splits from which rows are taken, by number from 0; odd ones are for validation. NULL: there
 * is none of this number; *more is false behind the last one. */
const struct token_split *token_data_split(const struct token_data *data, int number, bool *more);

/* Gives the splits' documents, in this order, what the reference made of them; takes ownership. */
void token_data_set_reference(struct token_data *data, float *reference);

/* Of what the documents are: the digests in dataset.json, and how they are cut. */
void token_data_digest(const struct token_data *data, struct digest *digest);

/* Measures an epoch of training data; *known is false if it is too large to read for a plan. */
status_t token_data_measure(const struct token_data *data, struct token_measure *measure,
                            bool *known) FSDPD_MUST_USE;

/* The rows of training or validation data for `rank`; points into *data. */
struct token_rows token_data_rows(const struct token_data *data, const struct train_job *job,
                                  int rank, bool validation);

/*
 * The number of batches per optimizer step that make up job->batch_tokens, or the job's own number.
 * INVALID_ARGUMENT with the nearest possible numbers if there is none.
 */
status_t token_data_accumulation(const struct train_job *job, int64_t context,
                                 uint32_t *steps) FSDPD_MUST_USE;

#endif
