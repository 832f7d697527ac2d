/* Directories of family files; see hf.h. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "hf/hf.h"

enum { FILES_MAX = 1000 };

/* The directory that came with the program: beside it in a build directory, else where `make
 * install` puts it. The caller frees. */
static char *own_directory(void)
{
    char *program = realpath("/proc/self/exe", NULL);
    if (program != NULL) {
        char *directory = file_path_directory(program);
        char *beside = file_path_join(directory, "families");
        free(directory);
        free(program);
        if (access(beside, X_OK) == 0) return beside;
        free(beside);
    }
    return mem_strdup(FAMILIES_DIR);
}

static int is_family_file(const struct dirent *entry)
{
    return file_name_is_plain(entry->d_name, ".yaml");
}

static status_t visit_file(const char *path, hf_family_visit *visit, void *user, bool *done)
{
    struct buf text = {0};
    struct hf_family *family = NULL;
    status_t error = file_read(path, HF_FAMILY_MAX, &text);
    if (error == NULL) error = hf_family_parse(buf_text(&text), text.length, path, &family);
    const struct hf_family_file file = {path, buf_text(&text), text.length, family};
    status_t status = visit(user, &file, error, done);
    hf_family_free(family);
    buf_deinit(&text);
    return status;
}

static status_t visit_directory(const char *directory, bool required, hf_family_visit *visit,
                                void *user, bool *done)
{
    struct dirent **entries = NULL;
    int count = scandir(directory, &entries, is_family_file, alphasort);
    if (count < 0 && errno == ENOENT && !required) return NULL;
    if (count < 0) return status_from_errno(errno, "families: cannot read %s", directory);
    status_t status = NULL;
    if (count > FILES_MAX)
        status = status_new(STATUS_INVALID_ARGUMENT, "families: %s: more than %d files", directory,
                            FILES_MAX);
    for (int i = 0; i < count; i++) {
        char *path = file_path_join(directory, entries[i]->d_name);
        if (status == NULL && !*done) status = visit_file(path, visit, user, done);
        free(path);
        free(entries[i]);
    }
    free(entries);
    return status;
}

status_t hf_families_each(const char *const *dirs, int dir_count, hf_family_visit *visit,
                          void *user)
{
    bool done = false;
    status_t status = NULL;
    for (int i = 0; i < dir_count && status == NULL && !done; i++)
        status = visit_directory(dirs[i], true, visit, user, &done);
    if (status != NULL || done) return status;
    char *own = own_directory();
    status = visit_directory(own, false, visit, user, &done);
    free(own);
    return status;
}

struct family_search {
    const char *model_type;
    status_t broken;  /* the first file with a mistake that serves other model types */
    char *text;       /* of the family that serves it; NULL: not found yet */
    struct buf known; /* the model types of those that were seen */
};

/* Whether a file that cannot be read as a family seems meant for the model type: by its name, or
 * by its model_type. Then the search must not continue to another family. */
static bool is_meant(const struct hf_family_file *file, const char *model_type)
{
    static const char key[] = "\nmodel_type:";
    char *name = mem_printf("/%s.yaml", model_type), *text = mem_printf("\n%s", file->text);
    const char *at = strstr(text, key);
    bool meant = strcmp(strrchr(file->path, '/'), name) == 0;
    if (at != NULL) at += strlen(key);
    while (at != NULL && !meant) {
        size_t length = strcspn(at, " \t\r\n,[]\"'#");
        meant = length > 0 && length == strlen(model_type) && strncmp(at, model_type, length) == 0;
        at += length;
        /* the value ends where a line starts another key */
        at = *at == '\0' || (*at == '\n' && strchr(" -", at[1]) == NULL) ? NULL : at + 1;
    }
    free(name);
    free(text);
    return meant;
}

static status_t take_if_named(void *user, const struct hf_family_file *file, status_t error,
                              bool *done)
{
    struct family_search *search = user;
    const char *type;
    if (error != NULL && is_meant(file, search->model_type)) return error;
    search->broken = status_first(search->broken, error);
    for (int i = 0;
         error == NULL && (type = hf_family_item(file->family, HF_FAMILY_MODEL_TYPES, i)); i++) {
        buf_printf(&search->known, "%s%.60s", search->known.length > 0 ? ", " : "", type);
        *done = *done || strcmp(type, search->model_type) == 0;
    }
    if (*done) search->text = mem_strndup(file->text, file->length);
    return NULL;
}

status_t hf_family_find(const char *const *dirs, int dir_count, const char *model_type, char **text)
{
    struct family_search search = {.model_type = model_type};
    status_t status = hf_families_each(dirs, dir_count, take_if_named, &search);
    if (status == NULL && search.text == NULL)
        status = status_new(STATUS_UNIMPLEMENTED,
                            "model_type: '%.60s' is not supported; %s are%s%s", model_type,
                            search.known.length > 0 ? buf_text(&search.known) : "no families",
                            search.broken != NULL ? "; a family file is broken: " : "",
                            search.broken != NULL ? status_message(search.broken) : "");
    status_free(search.broken);
    if (status == NULL) *text = search.text;
    else free(search.text);
    buf_deinit(&search.known);
    return status;
}

static status_t report_broken(void *user, const struct hf_family_file *file, status_t error,
                              bool *done)
{
    (void)user;
    (void)file;
    (void)done;
    log_status(LOG_WARNING, "family_broken", error);
    return NULL;
}

void hf_families_report(const char *const *dirs, int dir_count)
{
    bool done = false;
    for (int i = 0; i < dir_count; i++)
        log_status(LOG_WARNING, "family_broken",
                   visit_directory(dirs[i], true, report_broken, NULL, &done));
}
