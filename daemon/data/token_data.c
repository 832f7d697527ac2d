/* A job's token data; see token_data.h. Runs on the thread that sets up the session. */
#include "data/token_data.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "data/batch_share.h"
#include "data/token_file.h"

/* Tokens checked before training, at several hundred million tokens per second. */
enum { CHECK_MAX = 1 << 28 };

/* Documents whose masks are read for a plan; each needs a read. */
enum { MEASURED_DOCUMENTS_MAX = 1 << 20 };

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15) ^ hash >> 29;
}

/* ---- opening ---- */

/* Opens a file; its last part may be for validation. */
static status_t open_file(const struct train_job *job, const char *path,
                          struct token_source *source)
{
    TRY(token_file_open(job->data_root, path, job->token_encoding, &source->files[0]));
    const struct token_file *file = &source->files[0];
    source->train = (struct token_split){.file = file, .count = file->count};
    if (job->validation_path != NULL || job->validation_fraction <= 0) return NULL;
    /* as in nanoGPT's prepare.py */
    source->train.count = (int64_t)((double)file->count * (1 - job->validation_fraction));
    source->validation = (struct token_split){.file = file,
                                              .first = source->train.count,
                                              .count = file->count - source->train.count};
    return NULL;
}

static status_t open_validation_file(const struct train_job *job, const char *path,
                                     struct token_source *source)
{
    struct token_file *file = &source->files[1];
    TRY(token_file_open(job->validation_root, path, job->token_encoding, file));
    source->validation = (struct token_split){.file = file, .count = file->count};
    return NULL;
}

/* Opens the files to train on, then those to validate with. */
static status_t open_paths(const struct train_job *job, const struct token_paths *train,
                           const struct token_paths *validation, struct token_data *data)
{
    data->source_count = train->count + validation->count;
    data->sources = mem_alloc_array((size_t)data->source_count, sizeof *data->sources);
    for (int i = 0; i < train->count; i++) TRY(open_file(job, train->paths[i], &data->sources[i]));
    for (int i = 0; i < validation->count; i++)
        TRY(open_validation_file(job, validation->paths[i], &data->sources[train->count + i]));
    for (int i = 0; i < data->source_count; i++)
        TRY(token_file_check_start(&data->sources[i].files[i >= train->count],
                                   data->model.vocabulary));
    return NULL;
}

static status_t open_files(const struct train_job *job, struct token_data *data)
{
    AUTO(token_paths_deinit) struct token_paths train = {0}, validation = {0};
    status_t status =
        data->held_out ? NULL : token_paths_find(job->data_root, job->data_path, &train);
    if (status == NULL && job->validation_path != NULL)
        status = token_paths_find(job->validation_root, job->validation_path, &validation);
    if (status == NULL) status = open_paths(job, &train, &validation, data);
    return status;
}

static const struct {
    enum dataset_array_name array;
    const char *name;
} label_arrays[] = {
    [TARGET_TOKEN_CLASS] = {DATASET_ARRAY_TOKEN_LABELS, "token_labels"},
    [TARGET_CLASS] = {DATASET_ARRAY_LABELS, "labels"},
    [TARGET_NUMBERS] = {DATASET_ARRAY_NUMBERS, "targets"},
};

static const char *target_keys[] = {[TARGET_TOKEN_CLASS] = "token_classes",
                                    [TARGET_CLASS] = "classes",
                                    [TARGET_NUMBERS] = "targets",
                                    [TARGET_PAIR] = "texts"};

/* A dataset with labels is not for a model that predicts tokens. */
static status_t refuse_labels(const struct dataset_dir *dataset, enum dataset_split_name name)
{
    for (enum model_target target = TARGET_TOKEN_CLASS; target <= TARGET_NUMBERS; target++) {
        const struct npy *labels = dataset_dir_array(dataset, name, label_arrays[target].array);
        if (labels == NULL) continue;
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: it has the array '%s', but the model predicts tokens; expected a "
                          "model with '%s', such as one for classification",
                          dataset->path, label_arrays[target].name, target_keys[target]);
    }
    return NULL;
}

/* The labels that the model learns. */
static status_t open_labels(const struct dataset_dir *dataset, const struct token_model *model,
                            enum dataset_split_name name, struct token_split *split)
{
    if (model->target == TARGET_TOKEN || model->target == TARGET_PREFERENCE)
        return refuse_labels(dataset, name);
    if (model->target == TARGET_REWARD) return refuse_labels(dataset, name);
    if (model->target == TARGET_PAIR) return NULL;
    const struct npy *labels = dataset_dir_array(dataset, name, label_arrays[model->target].array);
    if (labels == NULL)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: it has no array '%s', which the model's '%s' need", dataset->path,
                          label_arrays[model->target].name, target_keys[model->target]);
    int64_t width = labels->dim_count > 1 ? labels->dims[1] : 1;
    if (model->target == TARGET_NUMBERS && width != model->numbers)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: it has %" PRId64 " targets per document, but the model has %" PRId64,
                          labels->file.path, width, model->numbers);
    split->labels = (struct target_array){.npy = labels,
                                          .classes = model->classes,
                                          .may_ignore = model->target == TARGET_TOKEN_CLASS};
    split->token_labels = model->target == TARGET_TOKEN_CLASS;
    split->label_width = width;
    return NULL;
}

static status_t open_dataset_split(const struct train_job *job, struct token_source *source,
                                   const struct token_model *model, enum dataset_split_name name,
                                   struct token_split *split)
{
    const struct dataset_dir *dataset = &source->dataset;
    const struct npy *tokens = dataset_dir_array(dataset, name, DATASET_ARRAY_TOKENS);
    struct token_file *file = &source->files[name];
    if (tokens == NULL) return NULL;
    TRY(token_file_from_npy(tokens, file));
    bool packed = job->windows == WINDOWS_PACKED, ends = packed && model->target == TARGET_REWARD;
    *split = (struct token_split){.file = file,
                                  .count = file->count,
                                  .mask = dataset_dir_array(dataset, name, DATASET_ARRAY_MASK),
                                  .texts = model->texts,
                                  .prefers = model->target == TARGET_PREFERENCE || ends,
                                  .ends = ends,
                                  .targets = model->target == TARGET_REWARD ? 2 : 1,
                                  .padding = (int32_t)model->padding,
                                  .packed = packed};
    TRY(open_labels(dataset, model, name, split));
    if (job->windows == WINDOWS_CONTINUOUS) return NULL;
    split->documents = dataset_dir_array(dataset, name, DATASET_ARRAY_DOCUMENTS);
    if (split->documents != NULL) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "data.windows: %s needs the array documents, which %s does not have",
                      split->packed ? "packed" : "document", dataset->path);
}

static status_t open_dataset(const struct train_job *job, const struct token_path *path,
                             const struct token_model *model, bool check,
                             struct token_source *source)
{
    struct dataset_dir *dataset = &source->dataset;
    TRY(dataset_dir_open(path->root, path->path, check, dataset));
    if (dataset->kind != DATASET_TOKENS)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its kind is images; read it with data.format: images and data.dir",
                          dataset->path);
    if (dataset->vocabulary > model->vocabulary)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its vocabulary has %" PRId64 " ids, but the model's has %" PRId64,
                          dataset->path, dataset->vocabulary, model->vocabulary);
    bool rewards = model->target == TARGET_REWARD;
    bool prefers = rewards || model->target == TARGET_PREFERENCE;
    if (prefers && !dataset->pairs)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its kind is tokens, but data.objective: %s learns from pairs; "
                          "expected a dataset of fsdpd-prepare preference",
                          dataset->path, rewards ? "reward" : "dpo");
    if (!prefers && dataset->pairs)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its kind is pairs, of which only data.objective: dpo or reward "
                          "learns",
                          dataset->path);
    if (!prefers && dataset->texts != (model->texts > 1 ? model->texts : 1))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %" PRId64 " of its documents belong together (texts), but the model "
                          "takes %" PRId64,
                          dataset->path, dataset->texts, model->texts > 1 ? model->texts : 1);
    TRY(open_dataset_split(job, source, model, DATASET_TRAIN, &source->train));
    TRY(open_dataset_split(job, source, model, DATASET_VALIDATION, &source->validation));
    if (source->validation.file != NULL || !job->evaluate || job->source_count > 1) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s has no split to validate with; expected one, or train.evaluate: false",
                      dataset->path);
}

static status_t open_sources(const struct train_job *job, bool check, struct token_data *data)
{
    if (job->data_format != DATA_DATASET) return open_files(job, data);
    data->source_count = job->source_count;
    data->sources = mem_alloc_array((size_t)data->source_count, sizeof *data->sources);
    for (int s = 0; s < data->source_count; s++)
        TRY(open_dataset(job, &job->sources[s], &data->model, check, &data->sources[s]));
    return NULL;
}

/* ---- cutting ---- */

static struct token_split *split_of(struct token_source *source, bool validation)
{
    return validation ? &source->validation : &source->train;
}

static status_t cut(const struct train_job *job, int64_t context, bool validation, int number,
                    struct token_split *split)
{
    bool shuffle = job->shuffle && !validation;
    /* Sources of the same length have different orders. */
    uint64_t seed = job->seed ^ (uint64_t)number * UINT64_C(0x9e3779b97f4a7c15);
    status_t status = token_split_cut(split, context, job->masked ? 0 : 1, shuffle, seed);
    return status_wrap(status, "%s: data for %s", split->file->data.path,
                       validation ? "validation" : "training");
}

/* Training takes rows of datasets by weight; otherwise, and in a validation, all rows occur
 * once. */
static status_t make_stream(const struct train_job *job, int64_t context, bool validation,
                            struct token_data *data)
{
    struct token_stream *stream = validation ? &data->validation : &data->train;
    int count = 0;
    AUTO_FREE int64_t *weights = mem_alloc_array((size_t)data->source_count, sizeof *weights);
    stream->splits = mem_alloc_array((size_t)data->source_count, sizeof *stream->splits);
    status_t status = NULL;
    for (int s = 0; s < data->source_count && status == NULL; s++) {
        struct token_split *split = split_of(&data->sources[s], validation);
        if (split->file == NULL) continue; /* only for the other of training and validation */
        status = cut(job, context, validation, s, split);
        bool weighted = job->data_format == DATA_DATASET && !validation;
        int64_t weight = weighted ? job->sources[s].weight : split->windows.count;
        weights[count] = weight;
        stream->splits[count++] = split;
        stream->rows += split->windows.count;
        data->hash = mix(mix(data->hash, (uint64_t)split->count), (uint64_t)weight);
        data->hash = mix(data->hash, (uint64_t)split->windows.count);
    }
    if (status == NULL && count == 0)
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "data.sources: none has a split to validate with; expected one, or "
                            "train.evaluate: false");
    if (count == 1 && !validation) weights[0] = 1; /* the stream has the source's own order */
    if (status == NULL)
        mixture_init(&stream->mixture, weights, count, job->shuffle && !validation, job->seed);
    return status;
}

/* A batch is an optimizer step's, so its split over ranks and micro-steps does not matter. */
static int64_t evaluated_rows(const struct train_job *job, int64_t rows)
{
    uint64_t micro_steps = job->accumulation_steps > 1 ? job->accumulation_steps : 1;
    uint64_t each = (uint64_t)job->batch_size * (uint64_t)job->world * micro_steps;
    if (job->global_batch > 0) each = job->global_batch;
    uint64_t all = (uint64_t)rows;
    if (job->evaluate_batches == 0 || job->evaluate_batches > all / each) return rows;
    return (int64_t)(job->evaluate_batches * each);
}

/* Labels are of documents, each in a window of its own; so are the texts of pairs. */
static status_t check_label_settings(const struct train_job *job, enum model_target target)
{
    const char *key = target_keys[target];
    bool pairs = target == TARGET_PAIR;
    if (job->data_format != DATA_DATASET)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.format: the model has '%s', so the data need %s: expected "
                          "dataset",
                          key, pairs ? "pairs" : "labels");
    if (job->masked)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.objective: the model has '%s', so its targets are %s and not "
                          "masked tokens",
                          key, pairs ? "pairs" : "labels");
    if (job->windows == WINDOWS_DOCUMENT) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "data.windows: the model has '%s', so each window is one %s: "
                      "expected document",
                      key, pairs ? "text" : "labelled document");
}

static status_t check_settings(const struct train_job *job, const struct token_data *data)
{
    if (job->masked && (job->mask_token < 0 || job->mask_token >= data->model.vocabulary))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.mask_token: expected an id of the model's vocabulary, 0 to %" PRId64
                          ", found %" PRId64,
                          data->model.vocabulary - 1, job->mask_token);
    if (job->masked && job->windows != WINDOWS_CONTINUOUS)
        return status_new(
            STATUS_INVALID_ARGUMENT,
            "data.objective: masked needs data.windows: continuous, as attention would "
            "see what fills up a document's window");
    if (data->model.target != TARGET_TOKEN && data->model.target != TARGET_PREFERENCE &&
        data->model.target != TARGET_REWARD)
        TRY(check_label_settings(job, data->model.target));
    if (job->data_format == DATA_TOKENS && job->evaluate && job->validation_path == NULL &&
        job->validation_fraction <= 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.validation_fraction: 0 leaves nothing to validate with; expected "
                          "more, a data.validation_path, or train.evaluate: false");
    return NULL;
}

static status_t set_up(const struct train_job *job, int64_t context, bool check,
                       struct token_data *data)
{
    TRY(check_settings(job, data));
    TRY(open_sources(job, check, data));
    if (!data->held_out && !job->only_evaluate) TRY(make_stream(job, context, false, data));
    const struct masking masking = {.probability = job->mask_probability,
                                    .mask_token = (int32_t)job->mask_token,
                                    .vocabulary = data->model.vocabulary,
                                    .seed = job->seed};
    data->train.masking = data->validation.masking = masking;
    data->validation.masking.validation = true;
    if (!job->evaluate) return NULL;
    TRY(make_stream(job, context, true, data));
    data->validation_rows = evaluated_rows(job, data->validation.rows);
    data->hash = mix(data->hash, (uint64_t)data->validation_rows);
    return NULL;
}

static status_t check_labels(const struct token_split *split)
{
    const struct npy *labels = split->labels.npy;
    int64_t counted;
    if (labels == NULL || labels->count > CHECK_MAX) return NULL;
    return target_array_count(&split->labels, 0, labels->count, &counted);
}

static status_t check_tokens(const struct token_data *data)
{
    for (int s = 0; s < data->source_count; s++) {
        for (int i = 0; i < 2; i++) {
            const struct token_file *file = &data->sources[s].files[i];
            if (file->data.path == NULL || file->count > CHECK_MAX) continue;
            TRY(token_file_check(file, 0, file->count, data->model.vocabulary));
        }
        TRY(check_labels(&data->sources[s].train));
        TRY(check_labels(&data->sources[s].validation));
    }
    return NULL;
}

static status_t open_data(const struct train_job *job, int64_t context, bool check,
                          struct token_data *data)
{
    status_t status = set_up(job, context, check, data);
    if (status == NULL && check) status = check_tokens(data);
    if (status != NULL) token_data_close(data);
    return status;
}

status_t token_data_open(const struct train_job *job, const struct token_model *model,
                         int64_t context, bool check, struct token_data *data)
{
    *data = (struct token_data){.model = *model};
    return open_data(job, context, check, data);
}

status_t token_data_open_held_out(const struct train_job *job, const struct held_out *set,
                                  const struct token_model *model, int64_t context, bool check,
                                  struct token_data *data)
{
    const struct token_path source = {.path = set->path, .root = set->root, .weight = 1};
    struct train_job alone = *job;
    alone.validation_path = set->path;
    alone.validation_root = set->root;
    alone.sources = &source;
    alone.source_count = 1;
    alone.evaluate_batches = set->batches;
    *data = (struct token_data){.model = *model, .held_out = true};
    status_t status = open_data(&alone, context, check, data);
    return set->name[0] != '\0' ? status_wrap(status, "data.validation: %s", set->name) : status;
}

status_t token_data_measure(const struct token_data *data, struct token_measure *measure,
                            bool *known)
{
    *measure = (struct token_measure){0};
    *known = false;
    int64_t tokens = 0, documents = 0;
    for (int s = 0; s < data->train.mixture.count; s++) {
        const struct token_split *split = data->train.splits[s];
        tokens += split->count;
        documents += split->documents != NULL ? split->documents->count - 1 : 0;
    }
    if (tokens > CHECK_MAX || documents > MEASURED_DOCUMENTS_MAX) return NULL;
    for (int s = 0; s < data->train.mixture.count; s++)
        TRY(token_split_measure(data->train.splits[s], measure));
    *known = data->train.mixture.count > 0;
    return NULL;
}

static struct token_split *split_at(const struct token_data *data, int number)
{
    struct token_split *split = split_of(&data->sources[number / 2], number % 2 == 1);
    return split->windows.count > 0 ? split : NULL;
}

const struct token_split *token_data_split(const struct token_data *data, int number, bool *more)
{
    *more = number < 2 * data->source_count;
    return *more ? split_at(data, number) : NULL;
}

void token_data_set_reference(struct token_data *data, float *reference)
{
    free(data->reference);
    data->reference = reference;
    for (int i = 0; i < 2 * data->source_count; i++) {
        struct token_split *split = split_at(data, i);
        if (split == NULL) continue;
        split->reference = reference;
        reference += split->documents->count - 1;
    }
}

void token_data_digest(const struct token_data *data, struct digest *digest)
{
    struct digester *digester = digester_new();
    for (int i = 0; i < 2 * data->source_count; i++) {
        const struct token_split *split = split_at(data, i);
        if (split == NULL) continue;
        const struct dataset_split *from = &data->sources[i / 2].dataset.splits[i % 2];
        const int64_t sizes[] = {i, split->length, split->count, split->documents->count};
        digester_add(digester, sizes, sizeof sizes);
        for (int a = 0; a < DATASET_ARRAYS; a++)
            digester_add(digester, &from->arrays[a].sum, sizeof from->arrays[a].sum);
    }
    digester_take(digester, digest);
    digester_free(digester);
}

static void close_stream(struct token_stream *stream)
{
    mixture_deinit(&stream->mixture);
    free(stream->splits);
}

void token_data_close(struct token_data *data)
{
    for (int s = 0; s < data->source_count; s++) {
        struct token_source *source = &data->sources[s];
        bool dataset = source->dataset.path != NULL;
        for (int i = 0; i < 2 && !dataset; i++) token_file_close(&source->files[i]);
        token_split_close(&source->train);
        token_split_close(&source->validation);
        dataset_dir_close(&source->dataset);
    }
    close_stream(&data->train);
    close_stream(&data->validation);
    free(data->sources);
    free(data->reference);
    *data = (struct token_data){0};
}

/* Targets of a row. */
static int64_t target_count(const struct token_data *data, const struct token_split *split)
{
    switch (data->model.target) {
    case TARGET_TOKEN:
    case TARGET_TOKEN_CLASS: return split->length;
    case TARGET_PREFERENCE: return (split->packed ? 1 : 2) * split->length;
    case TARGET_REWARD: return split->packed ? split->length : 2;
    case TARGET_PAIR:
    case TARGET_CLASS: return 1;
    case TARGET_NUMBERS: return data->model.numbers;
    }
    return 1;
}

struct token_rows token_data_rows(const struct token_data *data, const struct train_job *job,
                                  int rank, bool validation)
{
    const struct token_stream *stream = validation ? &data->validation : &data->train;
    return (struct token_rows){.splits = stream->splits,
                               .mixture = &stream->mixture,
                               .length = stream->splits[0]->length *
                                         (data->model.texts > 1 ? data->model.texts : 1),
                               .targets = target_count(data, stream->splits[0]),
                               .padding = (int32_t)data->model.padding,
                               .vocabulary = data->model.vocabulary,
                               .packed = stream->splits[0]->packed,
                               .references = !data->model.precomputed    ? 0
                                             : stream->splits[0]->packed ? stream->splits[0]->length
                                                                         : 2,
                               .masking = job->masked ? &stream->masking : NULL,
                               .batch = job->batch_size,
                               .world = job->world,
                               .rank = rank,
                               .limit = validation ? data->validation_rows : 0,
                               .share = validation ? (struct batch_share){0}
                                                   : batch_share_of(job, rank)};
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
