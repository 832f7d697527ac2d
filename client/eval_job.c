/* eval of what does not run: a job that trains nothing and evaluates the weights of a job or of a
 * directory (train.only_evaluate). The verb waits for its end, and prints the figures of its
 * record. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "eval.h"
#include "exit.h"
#include "follow.h"
#include "lists.h"
#include "print/json.h"
#include "proto/message.h"
#include "spec/spec.h"

enum { NAME_MAX_LENGTH = 40 };

/* "eval-NAME", of the characters that a name of a job has. */
static char *name_of(const char *of, const char *before)
{
    struct buf name = {0};
    buf_add_text(&name, before);
    for (const char *at = of; *at != '\0' && name.length < NAME_MAX_LENGTH; at++) {
        char lower = *at >= 'A' && *at <= 'Z' ? (char)(*at - 'A' + 'a') : *at;
        bool plain = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
        buf_add_char(&name, plain ? lower : '-');
    }
    while (name.data[name.length - 1] == '-') name.length--;
    return buf_take(&name);
}

/* ---- the weights of a job ---- */

static const Fsdpd__V1__HeldOutSet *find_set(const Fsdpd__V1__DataSpec *data, const char *name)
{
    for (size_t i = 0; i < data->n_validation; i++)
        if (strcmp(data->validation[i]->name, name) == 0) return data->validation[i];
    return NULL;
}

/* What is evaluated becomes the job's own data. */
static void replace_data(Fsdpd__V1__DataSpec *data, char *path)
{
    if (spec_has_images(data)) {
        data->dir = path;
        return;
    }
    data->path = path;
    data->n_sources = 0;
    if (data->format != FSDPD__V1__DATA_FORMAT__DATA_FORMAT_DATASET) data->validation_path = path;
}

static status_t choose_data(const struct verb_options *options, const char *id, char *path,
                            Fsdpd__V1__DataSpec *data, Fsdpd__V1__TrainSpec *train)
{
    const Fsdpd__V1__HeldOutSet *set = NULL;
    if (options->held_out != NULL) {
        set = find_set(data, options->held_out);
        if (set == NULL)
            return status_new(STATUS_INVALID_ARGUMENT, "set: data.validation of %s has no set '%s'",
                              id, options->held_out);
        train->evaluate_batches = set->batches;
    }
    if (set != NULL || path != NULL) replace_data(data, set != NULL ? set->path : path);
    if (options->batches_given) train->evaluate_batches = options->batches;
    data->n_validation = 0;
    return NULL;
}

/* `sample` becomes the options of fsdpctl sample. */
static void choose_sample(const struct sample_options *options, char **prompt,
                          Fsdpd__V1__TrainSampleSpec *sample)
{
    *prompt = (char *)(options->tokens != NULL ? options->tokens : options->prompt);
    sample->prompts = prompt;
    sample->n_prompts = 1;
    sample->every_steps = 0;
    sample->max_tokens = options->max_tokens > 0 ? options->max_tokens : (uint32_t)SAMPLE_TOKENS;
    sample->temperature = options->temperature;
    sample->seed = options->seed;
    sample->top_k = options->top_k;
    sample->top_p = options->top_p;
    sample->min_p = options->min_p;
    sample->repetition_penalty = options->repetition_penalty;
    sample->stop = (char **)&options->stop;
    sample->n_stop = options->stop != NULL;
    if (options->top_p > 0) sample->_top_p_case = FSDPD__V1__TRAIN_SAMPLE_SPEC___TOP_P_TOP_P;
    if (options->repetition_penalty > 0)
        sample->_repetition_penalty_case =
            FSDPD__V1__TRAIN_SAMPLE_SPEC___REPETITION_PENALTY_REPETITION_PENALTY;
    sample->_top_k_case = FSDPD__V1__TRAIN_SAMPLE_SPEC___TOP_K_TOP_K;
    sample->_min_p_case = FSDPD__V1__TRAIN_SAMPLE_SPEC___MIN_P_MIN_P;
    sample->_every_steps_case = FSDPD__V1__TRAIN_SAMPLE_SPEC___EVERY_STEPS_EVERY_STEPS;
    sample->_max_tokens_case = FSDPD__V1__TRAIN_SAMPLE_SPEC___MAX_TOKENS_MAX_TOKENS;
    sample->_temperature_case = FSDPD__V1__TRAIN_SAMPLE_SPEC___TEMPERATURE_TEMPERATURE;
    sample->_seed_case = FSDPD__V1__TRAIN_SAMPLE_SPEC___SEED_SEED;
}

static bool samples(const struct client *client)
{
    return client->options.sample.tokens != NULL || client->options.sample.prompt != NULL;
}

/* What was trained is evaluated without its teacher, whose modules these settings may name. */
static void leave_teacher(Fsdpd__V1__JobSpec *spec, Fsdpd__V1__ModelSpec *model,
                          Fsdpd__V1__FsdpSpec *fsdp)
{
    if (model->teacher == NULL) return;
    bool frozen = model->lora != NULL || model->adapter[0] != '\0' || model->n_freeze > 0;
    model->teacher = NULL;
    spec->distill = NULL;
    fsdp->wrap = NULL;
    fsdp->n_activation_checkpointing = 0;
    fsdp->_keep_frozen_case = FSDPD__V1__FSDP_SPEC___KEEP_FROZEN__NOT_SET;
    if (!frozen) model->base_dtype = FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32;
}

/* The source's settings, as its own evaluation of these data would have them. */
static status_t settings_of(const struct client *client, const Fsdpd__V1__Job *job, char *path,
                            Fsdpd__V1__JobSpec **made)
{
    const struct verb_options *options = &client->options;
    struct spec_settings with;
    Fsdpd__V1__JobSpec spec = *spec_settings(job->spec, job->chosen, &with);
    Fsdpd__V1__TrainSpec train = *spec.train;
    Fsdpd__V1__DataSpec data = *spec.data;
    Fsdpd__V1__FsdpSpec fsdp = *spec.fsdp;
    Fsdpd__V1__ModelSpec model = *spec.model;
    Fsdpd__V1__DeadlineSpec deadline = FSDPD__V1__DEADLINE_SPEC__INIT;
    Fsdpd__V1__TrainSampleSpec sample = FSDPD__V1__TRAIN_SAMPLE_SPEC__INIT;
    char *prompt = NULL;
    AUTO_FREE char *name = name_of(spec.name, samples(client) ? "sample-" : "eval-");
    train.sample = NULL;
    if (samples(client)) {
        choose_sample(&options->sample, &prompt, &sample);
        train.sample = &sample;
        train.evaluate_batches = 1;
    }
    TRY(choose_data(options, job->id, path, &data, &train));
    train.only_evaluate = train.evaluate = true;
    train._only_evaluate_case = FSDPD__V1__TRAIN_SPEC___ONLY_EVALUATE_ONLY_EVALUATE;
    train.early_stop = NULL;
    fsdp.tune = fsdp.choose = false;
    leave_teacher(&spec, &model, &fsdp);
    spec.model = &model;
    spec.name = name;
    spec.train = &train;
    spec.data = &data;
    spec.fsdp = &fsdp;
    spec.save_model = spec.tensorboard = false;
    spec._priority_case = FSDPD__V1__JOB_SPEC___PRIORITY__NOT_SET;
    spec.n_after = spec.n_after_any = spec.n_labels = 0;
    spec.notify = NULL;
    spec.checkpoint = NULL;
    spec.elastic = NULL;
    spec.array = NULL;
    spec.of_array = NULL;
    spec.start = NULL;
    if (options->finish_by != NULL) deadline.finish = (char *)options->finish_by;
    spec.deadline = &deadline;
    if (options->set_count > 0)
        return client_read_settings(client, job->id, "is evaluated", &spec, made);
    *made = spec_copy(&spec);
    return NULL;
}

/* The newest checkpoint, or the best one. */
static status_t find_step(struct session *session, const char *id, bool best, uint64_t *step)
{
    Fsdpd__V1__ListCheckpointsRequest request = FSDPD__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    ProtobufCMessage *response;
    request.id = (char *)id;
    TRY(lists_read(session, &control_list_checkpoints, &request.base, LIST_FROM_NEWEST, &response));
    const Fsdpd__V1__ListCheckpointsResponse *list = (const void *)response;
    for (size_t i = 0; i < list->n_checkpoints; i++)
        if (list->checkpoints[i]->step > *step && (!best || list->checkpoints[i]->_best_case != 0))
            *step = list->checkpoints[i]->step;
    protobuf_c_message_free_unpacked(response, NULL);
    if (*step > 0) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION, "job %s has no %scheckpoint%s", id,
                      best ? "best " : "", best ? " (checkpoint.best)" : "");
}

static status_t request_of_job(struct client *client, struct session *session,
                               const Fsdpd__V1__Job *job, Fsdpd__V1__SubmitJobRequest *request)
{
    const struct verb_options *options = &client->options;
    uint64_t step = options->checkpoint_step;
    if (options->checkpoint && step == 0) TRY(find_step(session, job->id, options->best, &step));
    AUTO_FREE char *path = eval_data(options);
    TRY(settings_of(client, job, path, &request->spec));
    Fsdpd__V1__ModelSpec *model = request->spec->model;
    if (model->base_dtype <= FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32) { /* else checkpoints lack it */
        free(model->weights != protobuf_c_empty_string ? model->weights : NULL);
        model->weights = (char *)protobuf_c_empty_string;
    }
    message_free(model->weights_from);
    message_free(model->adapter_from);
    model->weights_from = model->adapter_from = NULL;
    free(model->job != protobuf_c_empty_string ? model->job : NULL);
    model->job = mem_strdup(job->id);
    model->checkpoint = step;
    model->_checkpoint_case = options->checkpoint ? FSDPD__V1__MODEL_SPEC___CHECKPOINT_CHECKPOINT
                                                  : FSDPD__V1__MODEL_SPEC___CHECKPOINT__NOT_SET;
    return NULL;
}

/* ---- a directory ---- */

/* What a path says of its format, unless --key data.format does. */
static const char *format_of(const struct verb_options *options, const char *path)
{
    static const char key[] = "data.format=";
    const char *format = NULL, *dot = strrchr(path, '.');
    for (int i = 0; i < options->set_count; i++)
        if (strncmp(options->sets[i].text, key, sizeof key - 1) == 0)
            format = options->sets[i].text + sizeof key - 1;
    if (format != NULL) return format;
    struct stat info;
    bool directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    AUTO_FREE char *manifest = file_path_join(path, "dataset.json");
    if (directory) return stat(manifest, &info) == 0 ? "dataset" : "images";
    if (dot != NULL && strcmp(dot, ".bin") == 0) return "tokens";
    return dot != NULL && strchr(dot, '/') == NULL ? "text" : "dataset";
}

static void add_line(struct buf *out, const char *key, const char *text)
{
    buf_printf(out, "%s", key);
    json_add_string(out, text); /* which YAML reads, too */
    buf_add_char(out, '\n');
}

/* A job file as a user would write it, so that --key has the place of errors. */
static status_t request_of_directory(struct client *client, Fsdpd__V1__SubmitJobRequest *request)
{
    const struct verb_options *options = &client->options;
    AUTO_FREE char *here = realpath(options->arguments[0], NULL), *path = eval_data(options);
    const char *model = here != NULL ? here : options->arguments[0], *slash = strrchr(model, '/');
    if (path == NULL || options->held_out != NULL || options->checkpoint)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s is a directory: expected --data PATH, and no --set or --checkpoint",
                          options->arguments[0]);
    const char *format = format_of(options, path);
    bool images = strcmp(format, "images") == 0 || strcmp(format, "idx") == 0;
    bool file = strcmp(format, "tokens") == 0 || strcmp(format, "text") == 0;
    AUTO_FREE char *name = name_of(slash != NULL ? slash + 1 : model, "eval-");
    AUTO(buf_deinit) struct buf text = {0};
    buf_printf(&text, "name: %s\n", name);
    add_line(&text, "model:\n  hf: ", model);
    buf_printf(&text, "data:\n  format: %s\n", format);
    add_line(&text, images ? "  dir: " : "  path: ", path);
    if (file) add_line(&text, "  validation_path: ", path);
    buf_add_text(&text, "train:\n  only_evaluate: true\n  batch_size: 8\n");
    if (!images)
        buf_printf(&text, "  evaluate_batches: %u\n",
                   options->batches_given ? options->batches : 0);
    buf_add_text(&text, "optimizer: {type: sgd}\nsave_model: false\n");
    if (options->finish_by != NULL) add_line(&text, "deadline:\n  finish: ", options->finish_by);
    return spec_pack_text(buf_text(&text), text.length, "eval", options->sets, options->set_count,
                          &request->job_file);
}

/* ---- the evaluation ---- */

struct figures {
    Fsdpd__V1__Validation *last;
    Fsdpd__V1__Sampled *sampled;
};

static status_t take_rows(const ProtobufCMessage *message, void *user)
{
    const Fsdpd__V1__GetMetricsResponse *chunk = (const void *)message;
    struct figures *figures = user;
    for (size_t i = 0; i < chunk->n_rows; i++) {
        const Fsdpd__V1__JobEvent *event = chunk->rows[i]->event;
        if (event != NULL && event->event_case == FSDPD__V1__JOB_EVENT__EVENT_VALIDATION) {
            message_free(figures->last);
            figures->last = message_copy(event->validation);
        }
        if (event != NULL && event->event_case == FSDPD__V1__JOB_EVENT__EVENT_SAMPLED) {
            message_free(figures->sampled);
            figures->sampled = message_copy(event->sampled);
        }
    }
    return NULL;
}

static int print_figures(struct client *client, struct session *session, const char *id)
{
    Fsdpd__V1__GetMetricsRequest request = FSDPD__V1__GET_METRICS_REQUEST__INIT;
    struct figures figures = {0};
    request.id = (char *)id;
    request.changes = true;
    status_t status = session_stream(session, &control_get_metrics, &request.base,
                                     client->options.timeout_ms, take_rows, &figures);
    if (status == NULL && (samples(client) ? figures.sampled == NULL : figures.last == NULL))
        status =
            status_new(STATUS_INTERNAL, "job %s has no figures: fsdpctl logs %s says why", id, id);
    if (status == NULL && samples(client)) sample_print(client, figures.sampled);
    else if (status == NULL) eval_print(client, figures.last);
    message_free(figures.last);
    message_free(figures.sampled);
    return status == NULL ? EXIT_DONE : output_error(status);
}

/* The user has left, who wanted the figures. The daemon cancels the job, too, once it has seen that
 * its watcher left: then it is over here. */
static void cancel(struct client *client, const char *id)
{
    Fsdpd__V1__CancelJobRequest request = FSDPD__V1__CANCEL_JOB_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    struct session *session;
    int code;
    request.id = (char *)id;
    if (!client_open(client, &session, &code)) return;
    status_t status = session_call(session, &control_cancel_job, &request.base, false, &response);
    session_free(session);
    if (response != NULL) protobuf_c_message_free_unpacked(response, NULL);
    if (status == NULL || status_code(status) == STATUS_FAILED_PRECONDITION)
        output_note("cancelled %s", id);
    else output_note("%s was not cancelled: %s", id, status_message(status));
    status_free(status);
}

static int wait_for_figures(struct client *client, struct session *session,
                            const Fsdpd__V1__Job *job)
{
    output_note("%s %s; Ctrl-C cancels it", job->id, samples(client) ? "samples" : "evaluates");
    int code = follow_job(client, session, job, FOLLOW_OWN);
    if (code > EXIT_SIGNAL) cancel(client, job->id);
    return code == EXIT_DONE ? print_figures(client, session, job->id) : code;
}

static int submit(struct client *client, struct session *session,
                  const Fsdpd__V1__SubmitJobRequest *request)
{
    ProtobufCMessage *response;
    status_t status = session_call(session, &control_submit_job, &request->base, false, &response);
    if (status != NULL) return output_error(status);
    const Fsdpd__V1__Job *job = (const void *)response;
    int code = EXIT_DONE;
    if (client->options.detach) {
        struct buf id = {0};
        output_clean(&id, job->id, false);
        buf_add_char(&id, '\n');
        output_print(&id);
    } else {
        code = wait_for_figures(client, session, job);
    }
    protobuf_c_message_free_unpacked(response, NULL);
    return code;
}

int eval_by_job(struct client *client, struct session *session, const Fsdpd__V1__Job *job)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    status_t status = job != NULL ? request_of_job(client, session, job, &request)
                                  : request_of_directory(client, &request);
    int code = status == NULL ? submit(client, session, &request) : output_error(status);
    spec_free(request.spec);
    message_free(request.job_file);
    return code;
}
