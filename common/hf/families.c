/* Directories of family files; see hf.h. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "hf/family.h"
#include "hf/like.h"

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
    if (file.error == NULL && strlen(buf_text(&text)) != text.length)
        file.error = status_new(STATUS_INVALID_ARGUMENT, "%s: has a byte of value 0", path);
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

/* ---- Files that are like others ---- */

struct family_reading {
    struct hf_families *families;
    struct {
        struct yamldoc *document; /* NULL: the file is not one; its error says why */
        bool is_open;             /* one of those that the file being read is like */
        char *whole;              /* its text with what it inherits; NULL: it is like none */
    } * files;
};

static const struct yamldoc_node *field_of(const struct family_reading *reading, int index,
                                           const char *key)
{
    const struct yamldoc *document = reading->files[index].document;
    const struct yamldoc_node *node = document != NULL ? yamldoc_get(document->root, key) : NULL;
    return node != NULL && node->kind == YAMLDOC_SCALAR ? node : NULL;
}

static bool is_named(const struct hf_family_file *file, const char *name)
{
    AUTO_FREE char *end = mem_printf("/%s.yaml", name);
    return strcmp(strrchr(file->path, '/'), end) == 0;
}

/* The first file of the family that a file is like; one that cannot be read is of its own name. */
static status_t find_base(const struct family_reading *reading, const struct yamldoc_node *like,
                          int *base)
{
    for (*base = 0; *base < reading->families->count; ++*base) {
        const struct yamldoc_node *name = field_of(reading, *base, "name");
        bool found = reading->files[*base].document == NULL
                         ? is_named(&reading->families->files[*base], like->text)
                         : name != NULL && strcmp(name->text, like->text) == 0;
        if (!found) continue;
        if (!reading->files[*base].is_open) return NULL;
        return yamldoc_key_error(like, "the family %.60s is like this one", like->text);
    }
    return yamldoc_key_error(like, "there is no family '%.60s'", like->text);
}

/* The text of a file with all that it inherits. */
static status_t read_text(const struct family_reading *reading, int index, struct family_text *text)
{
    const struct hf_family_file *file = &reading->families->files[index];
    const struct yamldoc_node *like = field_of(reading, index, "like");
    AUTO(family_text_deinit) struct family_text inherited = {0};
    int base;
    if (reading->files[index].document == NULL) return status_copy(file->error);
    family_text_read(text, file->text, file->path);
    if (like == NULL) return NULL;
    reading->files[index].is_open = true;
    status_t status = find_base(reading, like, &base);
    if (status == NULL) status = yamldoc_wrap(read_text(reading, base, &inherited), like);
    reading->files[index].is_open = false;
    TRY(status);
    return family_text_inherit(text, reading->files[index].document->root, &inherited);
}

static void read_family(struct family_reading *reading, int index)
{
    struct hf_family_file *file = &reading->families->files[index];
    AUTO(family_text_deinit) struct family_text text = {0};
    if (file->error == NULL) file->error = read_text(reading, index, &text);
    if (file->error != NULL) return;
    char *whole = family_text_write(&text);
    file->error = family_parse(whole, strlen(whole), file->path, &text, &file->family);
    if (field_of(reading, index, "like") == NULL) free(whole);
    else reading->files[index].whole = whole;
}

static void read_families(struct hf_families *families)
{
    struct family_reading reading = {.families = families};
    reading.files = mem_alloc_array((size_t)families->count + 1, sizeof *reading.files);
    for (int i = 0; i < families->count; i++) {
        struct hf_family_file *file = &families->files[i];
        if (file->error == NULL)
            file->error = yamldoc_parse(file->text, strlen(file->text), file->path,
                                        &reading.files[i].document);
    }
    for (int i = 0; i < families->count; i++) read_family(&reading, i);
    for (int i = 0; i < families->count; i++) {
        yamldoc_free(reading.files[i].document);
        if (reading.files[i].whole == NULL) continue;
        free(families->files[i].text);
        families->files[i].text = reading.files[i].whole;
    }
    free(reading.files);
}

/* ---- The families of the process ---- */

static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hf_families *shared; /* those that were opened last; under the lock */

static void free_families(struct hf_families *families)
{
    for (int i = 0; i < families->count; i++) {
        free(families->files[i].path);
        free(families->files[i].text);
        hf_family_free(families->files[i].family);
        status_free(families->files[i].error);
    }
    free(families->files);
    buf_deinit(&families->as_read);
    free(families);
}

/* Their paths, and texts or errors. */
static void add_as_read(struct hf_families *families)
{
    for (int i = 0; i < families->count; i++) {
        const struct hf_family_file *file = &families->files[i];
        const char *parts[] = {file->path, file->text,
                               file->error != NULL ? status_message(file->error) : ""};
        for (size_t k = 0; k < COUNT_OF(parts); k++)
            buf_add(&families->as_read, parts[k], strlen(parts[k]) + 1);
    }
}

static bool is_same(const struct hf_families *a, const struct hf_families *b)
{
    return a->as_read.length == b->as_read.length &&
           (a->as_read.length == 0 ||
            memcmp(a->as_read.data, b->as_read.data, a->as_read.length) == 0);
}

static void release(struct hf_families *families)
{
    if (families != NULL && --families->holders == 0) free_families(families);
}

static void share(struct hf_families *read, const struct hf_families **families)
{
    add_as_read(read);
    pthread_mutex_lock(&shared_lock);
    if (shared != NULL && is_same(shared, read)) free_families(read);
    else {
        read_families(read);
        release(shared);
        shared = read;
        shared->holders = 1;
    }
    shared->holders++;
    *families = shared;
    pthread_mutex_unlock(&shared_lock);
}

/* Files are read each time, since they may have changed; to parse them takes much longer. */
status_t hf_families_open(const char *const *dirs, int dir_count,
                          const struct hf_families **families)
{
    struct hf_families *read = mem_alloc(sizeof *read);
    AUTO_FREE char *own = own_directory();
    status_t status = NULL;
    for (int i = 0; i < dir_count && status == NULL; i++)
        status = read_directory(dirs[i], true, read);
    if (status == NULL) status = read_directory(own, false, read);
    if (status == NULL) share(read, families);
    else free_families(read);
    return status;
}

void hf_families_close(const struct hf_families *families)
{
    pthread_mutex_lock(&shared_lock);
    release((struct hf_families *)families);
    pthread_mutex_unlock(&shared_lock);
}

/* Whether a file that cannot be read as a family seems meant for the model type: by its name, or
 * by its model_type. Then the search must not continue to another family. */
static bool is_meant(const struct hf_family_file *file, const char *model_type)
{
    static const char key[] = "\nmodel_type:", between[] = " \t\r\n,[]\"'#";
    char *text = mem_printf("\n%s", file->text);
    char *at = strstr(text, key), *rest = NULL, *word = NULL;
    bool meant = is_named(file, model_type);
    if (at != NULL) at += strlen(key);
    /* the value ends where a line starts another key */
    for (char *end = at; end != NULL && (end = strchr(end, '\n')) != NULL; end++)
        if (end[1] != ' ' && end[1] != '-') *end = '\0';
    if (at != NULL) word = strtok_r(at, between, &rest);
    for (; word != NULL; word = strtok_r(NULL, between, &rest))
        meant = meant || strcmp(word, model_type) == 0;
    free(text);
    return meant;
}

status_t hf_family_find(const char *const *dirs, int dir_count, const char *model_type, char **text)
{
    const struct hf_families *families;
    struct buf known = {0};
    const char *found = NULL;
    status_t status = NULL, broken = NULL;
    TRY(hf_families_open(dirs, dir_count, &families));
    for (int i = 0; i < families->count && found == NULL && status == NULL; i++) {
        const struct hf_family_file *file = &families->files[i];
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
            status_new(STATUS_UNIMPLEMENTED,
                       "model_type: '%.60s' is not supported; %s are, and docs/model-types.md says "
                       "why others are not%s%s",
                       model_type, known.length > 0 ? buf_text(&known) : "no families",
                       broken != NULL ? "; a family file is broken: " : "",
                       broken != NULL ? status_message(broken) : "");
    buf_deinit(&known);
    hf_families_close(families);
    return status;
}

void hf_families_report(const char *const *dirs, int dir_count)
{
    struct hf_families *read = mem_alloc(sizeof *read);
    const struct hf_families *families;
    for (int i = 0; i < dir_count; i++)
        log_status(LOG_WARNING, "family_broken", read_directory(dirs[i], true, read));
    int count = read->count; /* the rest is what these may be like */
    AUTO_FREE char *own = own_directory();
    log_status(LOG_WARNING, "family_broken", read_directory(own, false, read));
    share(read, &families);
    for (int i = 0; i < count; i++)
        log_status(LOG_WARNING, "family_broken", status_copy(families->files[i].error));
    hf_families_close(families);
}
