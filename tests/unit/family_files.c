/* See family_files.h. */
#include "family_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { KEPT_MAX = 128 };

static struct {
    char *type; /* or a family's name */
    struct hf_family *family;
} kept[KEPT_MAX];
static int kept_count;

static char *directory(void)
{
    const char *root = getenv("srcdir");
    return file_path_join(root != NULL ? root : ".", "families");
}

static struct hf_family *find(const char *type)
{
    for (int i = 0; i < kept_count; i++)
        if (strcmp(kept[i].type, type) == 0) return kept[i].family;
    return NULL;
}

static status_t keep(const char *type, const char *text, const char *file,
                     struct hf_family **family)
{
    if (kept_count == KEPT_MAX) abort();
    TRY(hf_family_parse(text, strlen(text), file, &kept[kept_count].family));
    kept[kept_count].type = mem_strdup(type);
    *family = kept[kept_count++].family;
    return NULL;
}

struct hf_family *family_file(const char *name)
{
    struct hf_family *family = find(name);
    if (family != NULL) return family;
    struct hf_families families = {0};
    char *dir = directory(), *path = mem_printf("%s/%s.yaml", dir, name);
    status_t status = hf_families_read((const char *[]){dir}, 1, &families);
    for (int i = 0; i < families.count && family == NULL && status == NULL; i++) {
        struct hf_family_file *file = &families.files[i];
        if (strcmp(file->path, path) != 0) continue;
        status =
            file->error != NULL ? status_copy(file->error) : keep(name, file->text, path, &family);
    }
    if (family == NULL) {
        fprintf(stderr, "%s: %s\n", path, status_message(status));
        abort();
    }
    hf_families_deinit(&families);
    free(path);
    free(dir);
    return family;
}

status_t family_for(const char *json, size_t length, const char *file, struct hf_family **family)
{
    char *type = NULL, *text = NULL, *dir = directory();
    const char *dirs[] = {dir};
    status_t status = hf_config_type(json, length, file, &type);
    *family = status == NULL ? find(type) : NULL;
    if (status == NULL && *family == NULL) {
        status = status_wrap(hf_family_find(dirs, 1, type, &text), "%s", file);
        if (status == NULL) status = keep(type, text, "a family", family);
    }
    free(text);
    free(type);
    free(dir);
    return status;
}
