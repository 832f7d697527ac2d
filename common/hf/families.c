/* Directories of family files; see hf.h. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "hf/family.h"

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

/* Takes the path. */
static void read_file(char *path, struct hf_families *families)
{
    struct buf text = {0};
    struct hf_family_file file = {.path = path, .error = file_read(path, HF_FAMILY_MAX, &text)};
    if (file.error == NULL)
        file.error = hf_family_parse(buf_text(&text), text.length, path, &file.family);
    file.text = buf_take(&text);
    MEM_GROW(families->files, families->count, families->capacity);
    families->files[families->count++] = file;
}

static status_t read_directory(const char *directory, bool required, struct hf_families *families)
{
    struct dirent **entries = NULL;
    int count = scandir(directory, &entries, is_family_file, alphasort);
    if (count < 0 && errno == ENOENT && !required) return NULL;
    if (count < 0) return status_from_errno(errno, "families: cannot read %s", directory);
    for (int i = 0; i < count; i++) {
        if (count <= FILES_MAX) read_file(file_path_join(directory, entries[i]->d_name), families);
        free(entries[i]);
    }
    free(entries);
    if (count <= FILES_MAX) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "families: %s: more than %d files", directory,
                      FILES_MAX);
}

status_t hf_families_read(const char *const *dirs, int dir_count, struct hf_families *families)
{
    struct hf_families read = {0};
    char *own = own_directory();
    status_t status = NULL;
    for (int i = 0; i < dir_count && status == NULL; i++)
        status = read_directory(dirs[i], true, &read);
    if (status == NULL) status = read_directory(own, false, &read);
    free(own);
    if (status == NULL) *families = read;
    else hf_families_deinit(&read);
    return status;
}

void hf_families_deinit(struct hf_families *families)
{
    for (int i = 0; i < families->count; i++) {
        free(families->files[i].path);
        free(families->files[i].text);
        hf_family_free(families->files[i].family);
        status_free(families->files[i].error);
    }
    free(families->files);
    *families = (struct hf_families){0};
}

/* Whether a file that cannot be read as a family seems meant for the model type: by its name, or
 * by its model_type. Then the search must not continue to another family. */
static bool is_meant(const struct hf_family_file *file, const char *model_type)
{
    static const char key[] = "\nmodel_type:", between[] = " \t\r\n,[]\"'#";
    char *name = mem_printf("/%s.yaml", model_type), *text = mem_printf("\n%s", file->text);
    char *at = strstr(text, key), *rest = NULL, *word = NULL;
    bool meant = strcmp(strrchr(file->path, '/'), name) == 0;
    if (at != NULL) at += strlen(key);
    /* the value ends where a line starts another key */
    for (char *end = at; end != NULL && (end = strchr(end, '\n')) != NULL; end++)
        if (end[1] != ' ' && end[1] != '-') *end = '\0';
    if (at != NULL) word = strtok_r(at, between, &rest);
    for (; word != NULL; word = strtok_r(NULL, between, &rest))
        meant = meant || strcmp(word, model_type) == 0;
    free(name);
    free(text);
    return meant;
}

status_t hf_family_find(const char *const *dirs, int dir_count, const char *model_type, char **text)
{
    struct hf_families families;
    struct buf known = {0};
    const char *found = NULL;
    status_t status = NULL, broken = NULL;
    TRY(hf_families_read(dirs, dir_count, &families));
    for (int i = 0; i < families.count && found == NULL && status == NULL; i++) {
        const struct hf_family_file *file = &families.files[i];
        if (file->error != NULL && is_meant(file, model_type)) status = status_copy(file->error);
        if (broken == NULL) broken = file->error;
        if (file->error != NULL) continue;
        const struct yamldoc_node *types = yamldoc_get(file->family->root, "model_type");
        for (int t = 0; t < family_count(types); t++)
            buf_printf(&known, "%s%.60s", known.length > 0 ? ", " : "", family_text(types, t));
        if (family_has_text(types, model_type)) found = file->text;
    }
    if (found != NULL) *text = mem_strdup(found);
    else if (status == NULL)
        status =
            status_new(STATUS_UNIMPLEMENTED, "model_type: '%.60s' is not supported; %s are%s%s",
                       model_type, known.length > 0 ? buf_text(&known) : "no families",
                       broken != NULL ? "; a family file is broken: " : "",
                       broken != NULL ? status_message(broken) : "");
    buf_deinit(&known);
    hf_families_deinit(&families);
    return status;
}

void hf_families_report(const char *const *dirs, int dir_count)
{
    struct hf_families families = {0};
    for (int i = 0; i < dir_count; i++)
        log_status(LOG_WARNING, "family_broken", read_directory(dirs[i], true, &families));
    for (int i = 0; i < families.count; i++)
        log_status(LOG_WARNING, "family_broken", status_copy(families.files[i].error));
    hf_families_deinit(&families);
}
