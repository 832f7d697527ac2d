/* See beside.h. The weights are worth more than these files: what cannot be read is left out. */
#include "beside.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "client.h"
#include "digest/digest.h"
#include "hf/beside.h"
#include "spec/spec.h"

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

status_t beside_copy(struct session *session, const Fsdpd__V1__Job *job,
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
