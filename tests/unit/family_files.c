/* See family_files.h. */
#include "family_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { KEPT_MAX = 64 };

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
    struct buf text = {0};
    char *dir = directory(), *path = mem_printf("%s/%s.yaml", dir, name);
    status_t status = file_read(path, HF_FAMILY_MAX, &text);
    if (status == NULL) status = keep(name, buf_text(&text), path, &family);
    if (status != NULL) {
        fprintf(stderr, "%s\n", status_message(status));
        abort();
    }
    buf_deinit(&text);
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
