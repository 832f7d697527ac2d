/*
 * See job_message.h. A list and the pieces of a file are read by calls of their own, perhaps on
 * different hosts: the sums in the list say whether the pieces are of that file.
 */
#include "worker/job_message.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "digest/digest.h"
#include "hf/beside.h"
#include "proto/message.h"

enum { PIECE_BYTES = 1 << 20 };

struct beside {
    char *root, *dir;
    Fsdpd__V1__GetModelFileResponse *out;
};

/* ---- the list ---- */

static status_t add_file(struct beside *beside, const char *name)
{
    AUTO_FREE char *path = file_path_join(beside->dir, name);
    AUTO(buf_deinit) struct buf bytes = {0};
    status_t status = beneath_read(beside->root, path, HF_BESIDE_MAX, &bytes);
    if (status_code(status) == STATUS_NOT_FOUND) {
        status_free(status);
        return NULL;
    }
    if (status != NULL) return status;
    struct digest sum;
    char digits[DIGEST_DIGITS + 1];
    digest_of(buf_text(&bytes), bytes.length, &sum);
    Fsdpd__V1__GetModelFileResponse *out = beside->out;
    Fsdpd__V1__ModelFile *file = MESSAGE_NEW(file, fsdpd__v1__model_file__init);
    file->name = mem_strdup(name);
    file->size_bytes = bytes.length;
    file->sha256 = mem_strdup(digest_format(&sum, digits));
    out->files = mem_resize_array(out->files, out->n_files + 1, sizeof(Fsdpd__V1__ModelFile *));
    out->files[out->n_files++] = file;
    return NULL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* In the order of their names, so that every host has the same list. */
static status_t add_templates(struct beside *beside)
{
    AUTO_FREE char *path = file_path_join(beside->dir, HF_TEMPLATES);
    int fd = -1, count = 0;
    status_t status = beneath_open(beside->root, path, true, &fd);
    if (status_code(status) == STATUS_NOT_FOUND) {
        status_free(status);
        return NULL;
    }
    if (status != NULL) return status;
    DIR *entries = fdopendir(fd);
    if (entries == NULL) {
        status = status_from_errno(errno, "cannot read %s", path);
        close(fd);
        return status;
    }
    char *names[HF_TEMPLATES_MAX];
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL && status == NULL;) {
        char *name = file_path_join(HF_TEMPLATES, entry->d_name);
        if (hf_is_beside(name) && count < HF_TEMPLATES_MAX) {
            names[count++] = name;
            continue;
        }
        if (hf_is_beside(name))
            status = status_new(STATUS_RESOURCE_EXHAUSTED, "%s has more than %d templates", path,
                                HF_TEMPLATES_MAX);
        free(name);
    }
    closedir(entries);
    qsort(names, (size_t)count, sizeof *names, compare_names);
    for (int i = 0; i < count; i++) {
        if (status == NULL) status = add_file(beside, names[i]);
        free(names[i]);
    }
    return status;
}

static status_t list(struct beside *beside)
{
    for (const char *const *name = hf_beside_names; *name != NULL; name++)
        TRY(add_file(beside, *name));
    return add_templates(beside);
}

/* ---- a piece ---- */

static status_t read_piece(struct beside *beside, const Fsdpd__V1__GetModelFileRequest *asked)
{
    if (!hf_is_beside(asked->name))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "name: expected a file that belongs to a tokenizer or the like, such as "
                          "tokenizer.json, found '%s'",
                          asked->name);
    AUTO_FREE char *path = file_path_join(beside->dir, asked->name);
    if (asked->offset > HF_BESIDE_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "offset: expected at most %d, found %llu",
                          HF_BESIDE_MAX, (unsigned long long)asked->offset);
    int fd = -1;
    TRY(beneath_open(beside->root, path, false, &fd));
    ProtobufCBinaryData *data = &beside->out->data;
    data->data = mem_alloc(PIECE_BYTES);
    status_t status = file_read_part(fd, path, data->data, PIECE_BYTES, asked->offset, &data->len);
    close(fd);
    return status;
}

status_t job_files_read(const Fsdpd__V1__PlanOrder *order, const struct worker_options *options,
                        Fsdpd__V1__GetModelFileResponse **out)
{
    struct beside beside = {0};
    const char *hf = order->spec->model != NULL ? order->spec->model->hf : "";
    TRY(job_find_path("model.hf", hf, options, &beside.dir, &beside.root));
    beside.out = MESSAGE_NEW(beside.out, fsdpd__v1__get_model_file_response__init);
    status_t status =
        order->file->name[0] != '\0' ? read_piece(&beside, order->file) : list(&beside);
    free(beside.dir);
    free(beside.root);
    if (status == NULL) *out = beside.out;
    else message_free(beside.out);
    return status_wrap(status, "model.hf");
}
