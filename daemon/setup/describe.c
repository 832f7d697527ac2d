/*
 * Describes a session's data: opens the files that the job names, checks that they fit the model,
 * and counts what a step and a run read of them. See session_state.h.
 */
#include <inttypes.h>

#include "base/mem.h"
#include "data/batch_share.h"
#include "data/image_rows.h"
#include "setup/session_state.h"

static status_t check_shape(const struct train_session *session, const struct image_set *set,
                            const char *images, const char *directory)
{
    const struct model *model = session->model;
    const struct tensor_type *input =
        model->input_count > 0 ? &model_first_image(model)->type : &model->input;
    const struct image_transform *transform = &session->job->transform;
    int64_t height = transform->height > 0 ? transform->height : set->height;
    int64_t width = transform->width > 0 ? transform->width : set->width;
    const int64_t dims[] = {set->channels, height, width};
    struct tensor_type image = tensor_type_make(DTYPE_F32, 3, dims);
    struct tensor_type plain = tensor_type_make(DTYPE_F32, 2, dims + 1);
    struct tensor_type row = tensor_type_make(DTYPE_F32, 1, dims + 2);
    bool is_plain = set->channels == 1 && tensor_same_shape(input, &plain);
    bool is_row = set->channels == 1 && height == 1 && tensor_same_shape(input, &row);
    if (tensor_same_shape(input, &image) || is_plain || is_row) return NULL;
    const struct weights_source *weights = session->job->weights;
    bool is_hf = weights != NULL && !weights->own_names;
    char expected[128], found[128];
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: the model's input is %s, but the %s images in %s are %s%s",
                      session->job->model_file, tensor_format_shape(input, expected), images,
                      directory, tensor_format_shape(&image, found),
                      is_hf
                          ? "; the model's size is image_size of its config.json, or its family's "
                            "default; data.resize scales images"
                          : "");
}

static uint64_t count_steps(int64_t samples, int world, uint32_t batch_size)
{
    uint64_t per_rank = ((uint64_t)samples + (uint64_t)world - 1) / (uint64_t)world;
    return (per_rank + batch_size - 1) / batch_size;
}

/* That a sample has for targets; 0 if it has classes. */
static int64_t count_numbers(const struct model *model)
{
    return model->targets.dim_count > 0 ? tensor_element_count(&model->targets) : 0;
}

static struct image_targets image_targets_of(const struct model *model)
{
    return (struct image_targets){.classes = model->class_count,
                                  .numbers = count_numbers(model),
                                  .named = model->input_count > 0 ? model : NULL};
}

static struct token_model token_model_of(const struct model *model)
{
    return (struct token_model){.vocabulary = model->vocabulary,
                                .target = model->target,
                                .classes = model->class_count,
                                .numbers = count_numbers(model),
                                .texts = model->texts,
                                .padding = model->padding > 0 ? model->padding : 0,
                                .precomputed = model->precomputed};
}

/* All that a directory has to test with. */
static status_t open_image_set(const struct train_session *session, const struct held_out *held,
                               struct evaluation_set *set)
{
    const struct image_targets targets = image_targets_of(session->model);
    struct train_job other = *session->job;
    struct image_set train = {0};
    other.data_dir = held->path;
    other.data_root = held->root;
    status_t status =
        image_files_open(&other, targets, !session->headers_only, &train, &set->own_images);
    image_set_close(&train);
    TRY(status);
    TRY(check_shape(session, &set->own_images, "test", held->path));
    TRY(image_set_prepare(&set->own_images));
    set->images = &set->own_images;
    set->steps = count_steps(set->own_images.count, session->job->world, session->evaluate_batch);
    return NULL;
}

status_t session_open_set(const struct train_session *session, const struct held_out *held,
                          struct evaluation_set *set)
{
    const struct train_job *job = session->job;
    const struct token_model model = token_model_of(session->model);
    set->name = held->name;
    set->every_steps = held->every_steps;
    if (job->data_format == DATA_IMAGES) return open_image_set(session, held, set);
    set->tokens = &set->own;
    TRY(token_data_open_held_out(job, held, &model, job->context, !session->headers_only,
                                 &set->own));
    set->steps = count_steps(set->own.validation_rows, job->world, session->evaluate_batch);
    return NULL;
}

/* Of the job's own data, which are open; the others with `open`. */
static status_t open_sets(struct train_session *session, bool open)
{
    const struct train_job *job = session->job;
    bool images = job->data_format == DATA_IMAGES;
    int64_t rows = images ? session->test_set.count : session->tokens.validation_rows;
    if (!job->evaluate) return NULL;
    session->sets = mem_alloc_array(1 + (size_t)job->held_out_count, sizeof *session->sets);
    session->sets[session->set_count++] = (struct evaluation_set){
        .name = "",
        .every_steps = job->evaluate_interval,
        .tokens = &session->tokens,
        .images = images ? &session->test_set : NULL,
        .steps = count_steps(rows, job->world, session->evaluate_batch),
    };
    for (int i = 0; i < job->held_out_count && open; i++)
        TRY(session_open_set(session, &job->held_out[i], &session->sets[session->set_count++]));
    return NULL;
}

static status_t read_image_sizes(struct train_session *session)
{
    const struct train_job *job = session->job;
    /* Sums over the test set do not depend on how it is split, but memory does. So a test batch is
     * split into pieces no larger than a training batch, and evaluation never determines a job's
     * peak. */
    session->evaluate_batch =
        job->test_batch_size < job->batch_size ? job->test_batch_size : job->batch_size;
    session->micro_steps = job->accumulation_steps > 1 ? job->accumulation_steps : 1;
    if (!train_job_has_data(job) && session->headers_only) return NULL;
    const struct image_targets targets = image_targets_of(session->model);
    TRY(image_files_open(job, targets, !session->headers_only, &session->train_set,
                         &session->test_set));
    TRY(check_shape(session, &session->train_set, "training", job->data_dir));
    if (job->evaluate) TRY(check_shape(session, &session->test_set, "test", job->data_dir));
    TRY(open_sets(session, true));
    session->epoch_batches = count_steps(session->train_set.count, job->world, job->batch_size);
    const struct batch_share share = batch_share_of(job, session->rank);
    if (share.samples > 0)
        session->epoch_batches =
            (uint64_t)(batch_share_rows(&share, session->train_set.count) / share.batch);
    uint64_t epoch_steps =
        (session->epoch_batches + session->micro_steps - 1) / session->micro_steps;
    session->epoch_steps = (double)epoch_steps;
    session->steps = job->only_evaluate ? 0 : epoch_steps * job->epochs;
    if (job->max_steps > 0 && job->max_steps < session->steps) session->steps = job->max_steps;
    return NULL;
}

static status_t choose_context(struct train_session *session)
{
    int64_t *context = &session->settings.context, most = session->model->context;
    if (*context == 0) *context = most;
    if (*context <= most) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "data.context: expected at most the %" PRId64
                      " positions of the model, found %" PRId64,
                      most, *context);
}

/* UINT64_MAX on overflow. */
static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

/* With a global batch, the batches of this world: as few as fit, and as even as goes. */
status_t session_divide_global_batch(struct train_session *session)
{
    struct train_job *job = &session->settings;
    if (job->global_batch == 0) return NULL;
    TRY(batch_share_check(job));
    const struct batch_share share = batch_share_of(job, session->rank);
    job->batch_size = (uint32_t)share.batch;
    job->accumulation_steps = share.micro_steps;
    return NULL;
}

/* Integer division: rounding could add a step. */
static status_t count_token_steps(struct train_session *session)
{
    const struct train_job *job = session->job;
    if (job->only_evaluate) return NULL; /* there is no stream of training data */
    bool data = train_job_has_data(job);
    uint64_t windows = data ? (uint64_t)session->tokens.train.rows : 0, rows, all;
    rows = product(product(job->batch_size, (uint64_t)job->world), session->micro_steps);
    if (job->global_batch > 0) rows = job->global_batch;
    session->epoch_steps = (double)windows / (double)rows;
    uint64_t steps = job->max_steps > 0 ? job->max_steps : UINT64_MAX;
    if (data && job->epochs > 0) {
        all = product(windows, job->epochs);
        uint64_t epochs = all / rows + (all % rows != 0);
        if (epochs < steps) steps = epochs;
    }
    if (!data && job->epochs > 0 && steps == UINT64_MAX) return NULL; /* unknown without data */
    if (product(steps, rows) >= UINT64_C(1) << 62)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "train.max_steps: expected a number of steps, or of train.epochs");
    session->steps = steps;
    return NULL;
}

/* Also opens the files; rows are read on demand. */
static status_t read_token_sizes(struct train_session *session)
{
    const struct train_job *job = session->job;
    session->evaluate_batch = job->batch_size;
    TRY(choose_context(session));
    const struct token_model model = token_model_of(session->model);
    TRY(token_data_accumulation(job, job->context * session->model->texts, &session->micro_steps));
    session->settings.accumulation_steps = session->micro_steps;
    bool opens = train_job_has_data(job) || !session->headers_only;
    if (opens)
        TRY(token_data_open(job, &model, job->context, !session->headers_only, &session->tokens));
    TRY(open_sets(session, opens));
    return count_token_steps(session);
}

status_t session_read_sizes(struct train_session *session)
{
    const struct train_job *job = session->job;
    bool tokens = job->data_format != DATA_IMAGES;
    if (tokens && !session->model->tokens)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: the model's input are images, but data.format says tokens",
                          job->model_file);
    if (!tokens && session->model->tokens)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: the model's input are tokens, but data.format says images (idx)",
                          job->model_file);
    return tokens ? read_token_sizes(session) : read_image_sizes(session);
}
