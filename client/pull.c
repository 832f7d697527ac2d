/*
 * pull: writes a job's full state_dict to a file, or to a directory in the format of Hugging Face's
 * transformers. Signals are caught before any temporary file exists, so that no signal can leave
 * one behind.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "client.h"
#include "digest/digest.h"
#include "directory.h"
#include "download.h"
#include "exit.h"
#include "fsdpd/v1/control.pb-c.h"
#include "hf/beside.h"
#include "hf/index.h"
#include "hf/peft.h"
#include "print/json.h"
#include "progress.h"
#include "proto/message.h"
#include "pull.h"
#include "rest.h"
#include "rewrite.h"
#include "session.h"
#include "spec/spec.h"

struct client_pull {
    struct client *client;
    struct download download;   /* a file */
    struct directory directory; /* or a directory */
    struct rewrite *rewrite;    /* NULL: the bytes are written unchanged */
    struct rewrite_options rewriting;
    struct rewrite_sink sink;
    struct pulled pulled; /* if the target is a directory */
    struct rest *rest;    /* what is copied into it; NULL: the model is a whole */
    struct live live;
    int64_t started_ns;
    bool local_error; /* from this machine's disk, not from the daemon */
    bool begun;       /* the first chunk has arrived */
    bool checkpoint;  /* its weights are those of a checkpoint */
};

static status_t set_file(struct verb_options *options, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a file name");
    options->file = value;
    return NULL;
}

static status_t set_format(struct verb_options *options, const char *value)
{
    bool form = strcmp(value, "safetensors") == 0;
    options->hf = strcmp(value, "hf") == 0 || (options->hf && !form);
    options->peft = strcmp(value, "peft") == 0 || (options->peft && !form);
    if (form || strcmp(value, "hf") == 0 || strcmp(value, "peft") == 0) return NULL;
    if (strcmp(value, "json") == 0) options->format = FORMAT_JSON;
    else if (strcmp(value, "table") == 0) options->format = FORMAT_TABLE;
    else
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected safetensors, hf or peft (and json or table for the result), "
                          "found '%s'",
                          value);
    return NULL;
}

static status_t set_original(struct verb_options *options, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a directory");
    options->original = value;
    return NULL;
}

static status_t set_dtype(struct verb_options *options, const char *value)
{
    options->bf16 = strcmp(value, "bf16") == 0;
    if (options->bf16 || strcmp(value, "f32") == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "expected f32 or bf16, found '%s'", value);
}

status_t pull_set_max_shard_size(struct verb_options *options, const char *value)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {{"", 1},          {"kB", 1000},       {"KB", 1000},
                 {"MB", 1000000},  {"GB", 1000000000}, {"KiB", 1 << 10},
                 {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    int64_t number;
    size_t digits = strspn(value, "0123456789");
    char text[20];
    if (digits > 0 && digits < sizeof text) {
        memcpy(text, value, digits);
        text[digits] = '\0';
        for (size_t i = 0; i < COUNT_OF(units); i++)
            if (strcmp(units[i].name, value + digits) == 0 && text_parse_i64(text, &number) &&
                number > 0 && number <= INT64_MAX / units[i].bytes) {
                options->max_shard_bytes = (uint64_t)(number * units[i].bytes);
                return NULL;
            }
    }
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected bytes, such as 5000000000 or 5GB, found '%s'", value);
}

status_t pull_set_checkpoint(struct verb_options *options, const char *value)
{
    int64_t step = 0;
    options->best = strcmp(value, "best") == 0;
    if (!options->best && strcmp(value, "latest") != 0 &&
        (!text_parse_i64(value, &step) || step <= 0))
        return status_new(
            STATUS_INVALID_ARGUMENT,
            "expected a step, as fsdpctl checkpoints lists them, latest or best, found "
            "'%s'",
            value);
    options->checkpoint = true;
    options->checkpoint_step = (uint64_t)step;
    return NULL;
}

static status_t set_merge(struct verb_options *options, const char *value)
{
    (void)value;
    options->merge = true;
    return NULL;
}

static status_t set_ema(struct verb_options *options, const char *value)
{
    (void)value;
    options->ema = true;
    return NULL;
}

const struct verb_option pull_options[] = {
    {"output", 'o', "FILE", "the file, or directory, to write (required; \"-\": standard output)",
     set_file},
    {"format", 0, "FORMAT",
     "safetensors (default), or a directory, hf: for transformers, peft: of adapters; json: a "
     "result in JSON",
     set_format},
    {"merge", 0, NULL, "with hf: add the adapters to the model", set_merge},
    {"ema", 0, NULL, "the average of the weights over the steps (train.ema)", set_ema},
    {"dtype", 0, "DTYPE", "f32 (default) or bf16, rounded to nearest", set_dtype},
    {"checkpoint", 0, "STEP", "the weights of this checkpoint, of the latest or of the best one",
     pull_set_checkpoint},
    {"max-shard-size", 0, "BYTES", "with hf: of one file (default 5GB)", pull_set_max_shard_size},
    {"original", 0, "DIR", "with hf, of a language model: the directory with its vision tower",
     set_original},
    {0},
};

static double seconds_since(int64_t started_ns)
{
    return (double)(clock_monotonic_ns() - started_ns) / 1e9;
}

static void draw(struct client_pull *pull)
{
    if (!pull->client->terminal.err || !live_due(&pull->live)) return;
    AUTO(buf_deinit) struct buf line = {0};
    uint64_t done = pull->rewrite ? rewrite_received(pull->rewrite) : pull->download.written;
    uint64_t total = pull->rewrite ? rewrite_total(pull->rewrite) : pull->download.total;
    terminal_measure(&pull->client->terminal);
    progress_bytes(done, total, seconds_since(pull->started_ns), pull->client->terminal.width,
                   pull->client->terminal.colour, &line);
    live_draw(&pull->live, &line);
}

/* Notes that the weights are those of a checkpoint, rather than the ranks' current or the final
 * ones. */
static void note_checkpoint(struct client_pull *pull, const Fsdpd__V1__PullStateDictResponse *chunk)
{
    if (pull->begun) return;
    pull->begun = true;
    if (chunk->checkpoint == NULL) return;
    char when[32];
    pull->checkpoint = true;
    output_note("%s: these are the weights of its checkpoint of step %llu, which was taken at %s",
                pull->client->options.arguments[0], (unsigned long long)chunk->checkpoint->step,
                clock_format_wall(message_time_ms(chunk->checkpoint->time), when));
}

static status_t take_chunk(const ProtobufCMessage *message, void *user)
{
    struct client_pull *pull = user;
    const Fsdpd__V1__PullStateDictResponse *chunk = (const void *)message;
    note_checkpoint(pull, chunk);
    status_t status = pull->rewrite ? rewrite_add(pull->rewrite, chunk->data.data, chunk->data.len,
                                                  chunk->total_size, chunk->step)
                                    : download_add(&pull->download, chunk);
    pull->local_error = status != NULL && status_code(status) != STATUS_DATA_LOSS;
    draw(pull);
    return status;
}

/* The sinks for rewritten bytes: a file or a directory. */

static status_t begin_in_file(void *user, int number, int count)
{
    (void)user;
    (void)number;
    (void)count;
    return NULL;
}

static status_t write_to_file(void *user, const void *bytes, size_t size)
{
    struct client_pull *pull = user;
    return download_put(&pull->download, bytes, size);
}

static status_t end_in_file(void *user)
{
    (void)user;
    return NULL;
}

static status_t begin_in_directory(void *user, int number, int count)
{
    struct client_pull *pull = user;
    AUTO_FREE char *name = hf_shard_name(number, count);
    bool peft = pull->client->options.peft;
    return directory_open(&pull->directory, peft ? PEFT_WEIGHTS : name);
}

static status_t write_to_directory(void *user, const void *bytes, size_t size)
{
    struct client_pull *pull = user;
    return directory_write(&pull->directory, bytes, size);
}

static status_t end_in_directory(void *user)
{
    struct client_pull *pull = user;
    return directory_close(&pull->directory);
}

static bool is_directory(const struct client_pull *pull)
{
    return pull->client->options.hf || pull->client->options.peft;
}

/* Writes the files that accompany the weights, then gives the directory its name. */
static status_t finish_directory(struct client_pull *pull)
{
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = NULL;
    int count = rewrite_file_count(pull->rewrite);
    if (pull->rest != NULL) TRY(rest_write(pull->rest, &pull->sink, count, count));
    if (count > 1) {
        rewrite_index(pull->rewrite, &text);
        status = directory_put(&pull->directory, "model.safetensors.index.json", &text);
        buf_clear(&text);
    }
    const char *dtype = pull->rewriting.bf16 ? "bfloat16" : "float32";
    const char *config = pull->pulled.config;
    bool peft = pull->client->options.peft;
    if (peft) pull_describe_adapter(&pull->pulled, pull->rewrite, &text);
    else if (status == NULL)
        status = hf_config_export(pull->pulled.family, config, strlen(config), dtype, &text);
    if (status == NULL)
        status = directory_put(&pull->directory, peft ? PEFT_CONFIG : "config.json", &text);
    if (status == NULL) status = directory_finish(&pull->directory);
    return status;
}

static status_t finish(struct client_pull *pull)
{
    if (pull->rewrite != NULL) TRY(rewrite_finish(pull->rewrite));
    return is_directory(pull) ? finish_directory(pull) : download_finish(&pull->download);
}

static void report(struct client_pull *pull, const char *id, double seconds)
{
    const struct verb_options *options = &pull->client->options;
    bool to_stdout = strcmp(options->file, "-") == 0;
    uint64_t size = is_directory(pull) ? pull->directory.bytes : pull->download.total;
    uint64_t step = pull->rewrite ? rewrite_step(pull->rewrite) : pull->download.step;
    struct buf text = {0};
    char bytes[32];
    if (options->format == FORMAT_JSON) {
        buf_add_text(&text, "{\n  \"id\": ");
        json_add_string(&text, id);
        buf_add_text(&text, ",\n  \"file\": ");
        json_add_string(&text, options->file);
        buf_printf(
            &text,
            ",\n  \"bytes\": %llu,\n  \"step\": %llu,\n  \"checkpoint\": %s,\n  \"seconds\": ",
            (unsigned long long)size, (unsigned long long)step,
            pull->checkpoint ? "true" : "false");
        json_add_number(&text, seconds);
        buf_add_text(&text, "\n}\n");
    } else {
        buf_printf(&text, "%s%s%s", to_stdout ? "" : options->file, to_stdout ? "" : ": ",
                   text_format_bytes(size, bytes));
        if (is_directory(pull)) buf_printf(&text, " in %d files", pull->directory.file_count);
        buf_printf(&text, ", the weights of %s after step %llu%s%s\n", id, (unsigned long long)step,
                   pull->checkpoint ? ", from its checkpoint" : "",
                   options->bf16 ? ", as bf16" : "");
    }
    if (!to_stdout) {
        output_print(&text);
        return;
    }
    text.length--; /* output_note adds the newline */
    text.data[text.length] = '\0';
    output_note("%s", buf_text(&text));
    buf_deinit(&text);
}

/* Reads the job's own configuration, which determines the names of its weights. */
static status_t read_config(const Fsdpd__V1__Job *job, bool peft, struct hf_family **family,
                            char **text)
{
    const char *config = job->spec && job->spec->model ? job->spec->model->hf_config : "";
    if (config[0] == '\0' && peft) return NULL;
    if (config[0] == '\0')
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s does not have a model of Hugging Face's transformers (model.hf), "
                          "so it cannot be written as one; without --format hf its weights can be "
                          "pulled as a file",
                          job->id);
    const char *planned = job->spec->model->hf_family;
    TRY(hf_family_parse(planned, strlen(planned), "the job's family", family));
    char *model = NULL;
    TRY(hf_config_to_model(*family, config, strlen(config), "the job's config.json", &model));
    free(model); /* the family has what is needed here */
    *text = mem_strdup(config);
    return NULL;
}

status_t pull_find_job(const struct client *client, struct session *session, bool peft,
                       struct pulled *pulled, struct rewrite_options *options)
{
    const char *id = client->options.arguments[0];
    TRY(client_get_job(session, id, &pulled->job));
    TRY(read_config(pulled->job, peft, &pulled->family, &pulled->config));
    const Fsdpd__V1__JobSpec *spec = pulled->job->spec;
    bool adapted = spec != NULL && spec->model != NULL && adapter_given(spec->model);
    if (peft && !adapted)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s trains no adapters (model.lora), so there is nothing to write "
                          "for peft",
                          id);
    options->family = pulled->family;
    options->adapted = adapted ? spec->model : NULL;
    options->merge = !peft;
    return NULL;
}

void pulled_deinit(struct pulled *pulled)
{
    if (pulled->job != NULL) fsdpd__v1__job__free_unpacked(pulled->job, NULL);
    hf_family_free(pulled->family);
    free(pulled->config);
}

void pull_describe_adapter(const struct pulled *pulled, const struct rewrite *rewrite,
                           struct buf *out)
{
    adapter_describe(pulled->job->spec->model, rewrite_header(rewrite),
                     pulled->family != NULL ? hf_family_architecture(pulled->family) : "", out);
}

/* Without --merge, a directory of a whole model would lack its adapters. */
static status_t check_merge(const struct client_pull *pull)
{
    const struct verb_options *options = &pull->client->options;
    bool adapted = pull->rewriting.adapted != NULL;
    if (options->checkpoint && !options->peft &&
        pull->pulled.job->spec->model->base_dtype > FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "the checkpoints of job %s lack the parameters that it does not train "
                          "(model.base_dtype); expected --format peft, or no --checkpoint",
                          options->arguments[0]);
    if (options->peft || adapted == options->merge) return NULL;
    if (!adapted)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s trains no adapters (model.lora), so --merge has nothing to add",
                          options->arguments[0]);
    return status_new(STATUS_FAILED_PRECONDITION,
                      "job %s trains adapters (model.lora): --format peft writes these, and "
                      "--format hf --merge the model with them added",
                      options->arguments[0]);
}

/* A model that is a part of another one goes back into the directory that it came from. */
static status_t open_rest(struct client_pull *pull)
{
    const struct verb_options *options = &pull->client->options;
    const struct hf_family *family = pull->pulled.family;
    bool part = family != NULL && hf_family_inside(family) != NULL;
    const char *id = options->arguments[0];
    if (!part && options->original == NULL) return NULL;
    if (!part)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s trains a whole model, so there is nothing to copy (--original)",
                          id);
    if (options->peft)
        return status_new(STATUS_UNIMPLEMENTED,
                          "job %s trains a part of %s, whose adapters cannot be written for peft",
                          id, hf_family_architecture(family));
    if (options->original == NULL)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s trains the language model of %s: --original DIR names the "
                          "directory that it came from, whose other weights are copied",
                          id, hf_family_architecture(family));
    TRY(rest_open(options->original, family, &pull->rest));
    pull->rewriting.more = rest_entries(pull->rest, &pull->rewriting.more_count);
    return NULL;
}

/* Creates the temporary file or directory. */
static status_t begin(struct client_pull *pull)
{
    const struct verb_options *options = &pull->client->options;
    pull->rewriting.bf16 = options->bf16;
    pull->sink = (struct rewrite_sink){begin_in_file, write_to_file, end_in_file, pull};
    if (is_directory(pull)) {
        uint64_t most = options->max_shard_bytes > 0 ? options->max_shard_bytes : HF_SHARD_BYTES;
        pull->rewriting.max_shard_bytes = options->peft ? 0 : most;
        pull->sink =
            (struct rewrite_sink){begin_in_directory, write_to_directory, end_in_directory, pull};
        TRY(directory_begin(&pull->directory, options->file));
    } else {
        TRY(download_begin(&pull->download, options->file));
    }
    if (is_directory(pull) || options->bf16)
        pull->rewrite = rewrite_new(&pull->rewriting, &pull->sink);
    return NULL;
}

static int stream(struct client_pull *pull, struct session *session)
{
    const struct verb_options *options = &pull->client->options;
    Fsdpd__V1__PullStateDictRequest request = FSDPD__V1__PULL_STATE_DICT_REQUEST__INIT;
    request.id = (char *)options->arguments[0];
    request.from_checkpoint = options->checkpoint;
    request.checkpoint_step = options->checkpoint_step;
    request.best = options->best;
    request.average = options->ema;
    pull->started_ns = clock_monotonic_ns();
    status_t status = session_stream(session, &control_pull_state_dict, &request.base,
                                     options->timeout_ms, take_chunk, pull);
    live_clear(&pull->live);
    if (status == NULL) {
        status = finish(pull);
        pull->local_error = status != NULL;
    }
    if (status == NULL) {
        report(pull, request.id, seconds_since(pull->started_ns));
        return EXIT_DONE;
    }
    int code = output_error(status);
    if (session_signal(session) != 0) return EXIT_SIGNAL + session_signal(session);
    return pull->local_error ? EXIT_FAILED : code;
}

/* ---- files beside the weights ---- */

enum { JOBS_MAX = 16 }; /* that are looked at, each the source of the one before */

typedef Fsdpd__V1__GetModelFileResponse model_files;

static void model_files_free(model_files *files)
{
    if (files != NULL) fsdpd__v1__get_model_file_response__free_unpacked(files, NULL);
}

static status_t ask(struct session *session, const char *id, const char *name, uint64_t offset,
                    model_files **out)
{
    Fsdpd__V1__GetModelFileRequest request = FSDPD__V1__GET_MODEL_FILE_REQUEST__INIT;
    ProtobufCMessage *response;
    request.id = (char *)id;
    request.name = (char *)name;
    request.offset = offset;
    TRY(session_call(session, &control_get_model_file, &request.base, false, &response));
    *out = (model_files *)(void *)response;
    return NULL;
}

/* The list of the job's own directory; it has none of a model that is a file. */
static status_t list(struct session *session, const Fsdpd__V1__Job *job, model_files **out)
{
    bool directory =
        job->spec != NULL && job->spec->model != NULL && job->spec->model->hf[0] != '\0';
    return directory ? ask(session, job->id, "", 0, out) : NULL;
}

/* The job whose weights this one began with; NULL: there is none. */
static const char *source_of(const Fsdpd__V1__Job *job)
{
    struct spec_from found[SPEC_FROM_MAX];
    bool known = job->spec != NULL && job->spec->model != NULL;
    return known && spec_find_from(job->spec->model, found) > 0 ? found[0].from->job : NULL;
}

/* The first list that is not empty, and the job that it is of; *files NULL: there is none. */
static status_t find(struct session *session, const Fsdpd__V1__Job *job, char **id,
                     model_files **files)
{
    Fsdpd__V1__Job *other = NULL;
    status_t status = NULL;
    for (int looked = 0; job != NULL && status == NULL && looked < JOBS_MAX; looked++) {
        status = list(session, job, files);
        if (status == NULL && *files != NULL && (*files)->n_files > 0) {
            *id = mem_strdup(job->id);
            break;
        }
        model_files_free(*files);
        *files = NULL;
        const char *next = source_of(job);
        Fsdpd__V1__Job *source = NULL;
        if (status == NULL && next != NULL) status = client_get_job(session, next, &source);
        if (other != NULL) fsdpd__v1__job__free_unpacked(other, NULL);
        job = other = source;
    }
    if (other != NULL) fsdpd__v1__job__free_unpacked(other, NULL);
    return status;
}

/* Reads a file in pieces, which may be of different moments and hosts. */
static status_t fetch(struct session *session, const char *id, const Fsdpd__V1__ModelFile *file,
                      struct buf *bytes)
{
    struct digest sum;
    char digits[DIGEST_DIGITS + 1];
    if (!hf_is_beside(file->name) || file->size_bytes > HF_BESIDE_MAX)
        return status_new(STATUS_DATA_LOSS,
                          "the daemon offers '%s' of %llu bytes, which is no file of a tokenizer",
                          file->name, (unsigned long long)file->size_bytes);
    for (size_t count = 1; count > 0 && bytes->length < file->size_bytes;) {
        model_files *piece = NULL;
        TRY(ask(session, id, file->name, bytes->length, &piece));
        count = piece->data.len;
        if (count > 0) buf_add(bytes, piece->data.data, count);
        model_files_free(piece);
    }
    digest_of(buf_text(bytes), bytes->length, &sum);
    if (bytes->length == file->size_bytes && strcmp(digest_format(&sum, digits), file->sha256) == 0)
        return NULL;
    return status_new(STATUS_DATA_LOSS, "%s changed while it was read", file->name);
}

static void note_missing(const Fsdpd__V1__Job *job)
{
    const Fsdpd__V1__ModelSpec *model = job->spec != NULL ? job->spec->model : NULL;
    if (model == NULL || model->hf[0] == '\0')
        output_note("the model of %s is a file (model.file): it has no tokenizer's files and no "
                    "generation_config.json to copy",
                    job->id);
    else
        output_note("%s, the model of %s, has no tokenizer's files and no generation_config.json "
                    "to copy",
                    model->hf, job->id);
}

static status_t copy(struct session *session, const char *id, const model_files *files,
                     struct directory *directory, status_t *unread)
{
    for (size_t i = 0; i < files->n_files && *unread == NULL; i++) {
        AUTO(buf_deinit) struct buf bytes = {0};
        *unread = fetch(session, id, files->files[i], &bytes);
        if (*unread == NULL) TRY(directory_put(directory, files->files[i]->name, &bytes));
    }
    return NULL;
}

/* What a pulled directory has beside its weights: the files of a tokenizer and the like, byte for
 * byte as a worker's host has them in the job's model.hf (hf/beside.h). If the job's own directory
 * has none, those of the job whose weights it began with, and so on. Without any, or if they cannot
 * be read, a note says so. Fails only for what cannot be written. */
static status_t beside_copy(struct session *session, const Fsdpd__V1__Job *job,
                     struct directory *directory)
{
    model_files *files = NULL;
    AUTO_FREE char *id = NULL;
    status_t unread = find(session, job, &id, &files), status = NULL;
    if (unread == NULL && files == NULL) note_missing(job);
    if (unread == NULL && files != NULL) status = copy(session, id, files, directory, &unread);
    if (unread != NULL)
        output_note("the tokenizer's files were not copied: %s", status_message(unread));
    status_free(unread);
    model_files_free(files);
    return status;
}

/* ---- the pull ---- */

static int run(struct client_pull *pull, struct session *session)
{
    session_catch_signals(session);
    if (is_directory(pull)) {
        status_t status = pull_find_job(pull->client, session, pull->client->options.peft,
                                        &pull->pulled, &pull->rewriting);
        if (status == NULL) status = check_merge(pull);
        if (status == NULL) status = open_rest(pull);
        if (status != NULL) return output_error(status);
    }
    status_t status = begin(pull);
    if (status == NULL && is_directory(pull))
        status = beside_copy(session, pull->pulled.job, &pull->directory);
    if (status == NULL && session_signal(session) != 0)
        return EXIT_SIGNAL + session_signal(session);
    if (status == NULL) return stream(pull, session);
    int code = exit_from_file(status);
    output_error(status);
    return code;
}

static status_t check_options(const struct verb_options *options)
{
    if (options->file == NULL && (options->hf || options->peft))
        return status_new(STATUS_INVALID_ARGUMENT, "pull: expected -o DIR, for example -o %s",
                          options->arguments[0]);
    if (options->file == NULL)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "pull: expected -o FILE, for example -o %s.safetensors",
                          options->arguments[0]);
    if (options->max_shard_bytes > 0 && !options->hf)
        return status_new(STATUS_INVALID_ARGUMENT, "pull: --max-shard-size belongs to --format hf");
    if (options->original != NULL && !options->hf)
        return status_new(STATUS_INVALID_ARGUMENT, "pull: --original belongs to --format hf");
    if (options->hf && options->peft)
        return status_new(STATUS_INVALID_ARGUMENT, "pull: --format: expected either hf or peft");
    if (options->merge && !options->hf)
        return status_new(STATUS_INVALID_ARGUMENT, "pull: --merge belongs to --format hf");
    return NULL;
}

int verb_pull(struct client *client)
{
    status_t status = check_options(&client->options);
    if (status != NULL) return output_usage_error(status);
    struct session *session;
    status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    struct client_pull pull = {.client = client,
                               .download = {.fd = -1},
                               .directory = {.fd = -1},
                               .live = {.terminal = &client->terminal}};
    int code = run(&pull, session);
    rewrite_free(pull.rewrite);
    rest_free(pull.rest);
    download_deinit(&pull.download);
    directory_deinit(&pull.directory);
    pulled_deinit(&pull.pulled);
    session_free(session);
    return code;
}
