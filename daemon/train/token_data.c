/* A job's token data; see token_data.h. On the thread that sets the session up. */
#include "train/token_data.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* What is checked before training: at some hundred million tokens per second. */
enum { CHECK_MAX = 1 << 28 };

static status_t cut(struct token_split *split, const struct train_job *job, int64_t context,
                    bool validation)
{
    bool shuffle = job->shuffle && !validation;
    status_t status = windows_init(&split->windows, split->first, split->count, context,
                                   job->masked ? 0 : 1, shuffle, job->seed);
    return status_wrap(status, "%s: data for %s", split->file->path,
                       validation ? "validation" : "training");
}

static status_t open_splits(const struct train_job *job, struct token_data *data)
{
    TRY(token_file_open(job->data_root, job->data_path, job->token_encoding, &data->files[0]));
    const struct token_file *file = &data->files[0];
    data->train = (struct token_split){.file = file, .count = file->count};
    data->validation = (struct token_split){.file = file, .first = file->count};
    if (job->validation_path != NULL) {
        TRY(token_file_open(job->validation_root, job->validation_path, job->token_encoding,
                            &data->files[1]));
        data->validation =
            (struct token_split){.file = &data->files[1], .count = data->files[1].count};
    } else if (job->validation_fraction > 0) {
        /* as nanoGPT's prepare.py has it */
        data->train.count = (int64_t)((double)file->count * (1 - job->validation_fraction));
        data->validation.first = data->train.count;
        data->validation.count = file->count - data->train.count;
    }
    return NULL;
}

/* A batch is an optimizer step's, so that how it is cut over ranks and micro-steps is no matter. */
static int64_t evaluated_rows(const struct train_job *job, const struct windows *windows)
{
    uint64_t micro_steps = job->accumulation_steps > 1 ? job->accumulation_steps : 1;
    uint64_t each = (uint64_t)job->batch_size * (uint64_t)job->world * micro_steps;
    uint64_t all = (uint64_t)windows->count;
    if (job->evaluate_batches == 0 || job->evaluate_batches > all / each) return windows->count;
    return (int64_t)(job->evaluate_batches * each);
}

static status_t set_up(const struct train_job *job, int64_t context, struct token_data *data)
{
    if (job->masked && (job->mask_token < 0 || job->mask_token >= data->vocabulary))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.mask_token: expected an id of the model's vocabulary, 0 to %" PRId64
                          ", found %" PRId64,
                          data->vocabulary - 1, job->mask_token);
    if (job->evaluate && job->validation_path == NULL && job->validation_fraction <= 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.validation_fraction: 0 leaves nothing to validate with; expected "
                          "more, a data.validation_path, or train.evaluate: false");
    TRY(open_splits(job, data));
    TRY(cut(&data->train, job, context, false));
    const struct masking masking = {.probability = job->mask_probability,
                                    .mask_token = (int32_t)job->mask_token,
                                    .vocabulary = data->vocabulary,
                                    .seed = job->seed};
    data->train.masking = data->validation.masking = masking;
    data->validation.masking.validation = true;
    if (!job->evaluate) return NULL;
    TRY(cut(&data->validation, job, context, true));
    data->validation_rows = evaluated_rows(job, &data->validation.windows);
    return NULL;
}

static status_t check_tokens(const struct token_data *data)
{
    for (int i = 0; i < 2; i++) {
        const struct token_file *file = &data->files[i];
        if (file->path == NULL || file->count > CHECK_MAX) continue;
        TRY(token_file_check(file, 0, file->count, data->vocabulary));
    }
    return NULL;
}

status_t token_data_open(const struct train_job *job, int64_t vocabulary, int64_t context,
                         bool check, struct token_data *data)
{
    *data = (struct token_data){.vocabulary = vocabulary};
    status_t status = set_up(job, context, data);
    if (status == NULL && check) status = check_tokens(data);
    if (status != NULL) token_data_close(data);
    return status;
}

void token_data_close(struct token_data *data)
{
    for (int i = 0; i < 2; i++) token_file_close(&data->files[i]);
    *data = (struct token_data){0};
}

struct token_rows token_data_rows(const struct token_data *data, const struct train_job *job,
                                  int rank, bool validation)
{
    const struct token_split *split = validation ? &data->validation : &data->train;
    return (struct token_rows){.file = split->file,
                               .windows = &split->windows,
                               .vocabulary = data->vocabulary,
                               .masking = job->masked ? &split->masking : NULL,
                               .batch = job->batch_size,
                               .world = job->world,
                               .rank = rank,
                               .limit = validation ? data->validation_rows : 0};
}

status_t token_data_accumulation(const struct train_job *job, int64_t context, uint32_t *steps)
{
    if (job->batch_tokens == 0) {
        *steps = job->accumulation_steps > 1 ? job->accumulation_steps : 1;
        return NULL;
    }
    double exact = (double)job->batch_size * (double)context * job->world;
    uint64_t each = exact < 1e18 ? (uint64_t)exact : UINT64_MAX;
    uint64_t count = job->batch_tokens / each;
    if (count > 0 && job->batch_tokens % each == 0 && count <= UINT32_MAX) {
        *steps = (uint32_t)count;
        return NULL;
    }
    char below[64] = "is ";
    if (count > 0) snprintf(below, sizeof below, "are %" PRIu64 " or ", count * each);
    return status_new(STATUS_INVALID_ARGUMENT,
                      "train.batch_tokens: expected a multiple of the %" PRIu64
                      " tokens that %d rank%s of %u windows of %" PRId64
                      " take at once; the nearest to %" PRIu64 " %s%" PRIu64,
                      each, job->world, job->world > 1 ? "s" : "", job->batch_size, context,
                      job->batch_tokens, below, (count + 1) * each);
}
