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

static const struct hf_family *find(const char *type)
{
    for (int i = 0; i < kept_count; i++)
        if (strcmp(kept[i].type, type) == 0) return kept[i].family;
    return NULL;
}

static void forget(int index)
{
    free(kept[index].type);
    hf_family_free(kept[index].family);
    kept_count--;
    memmove(&kept[index], &kept[index + 1], (size_t)(kept_count - index) * sizeof *kept);
}

/* The oldest makes room: a fuzzer makes up architectures without end. */
static status_t keep(const char *type, const char *text, const char *file,
                     const struct hf_family **family)
{
    if (kept_count == KEPT_MAX) forget(0);
    TRY(hf_family_parse(text, strlen(text), file, &kept[kept_count].family));
    kept[kept_count].type = mem_strdup(type);
    *family = kept[kept_count++].family;
    return NULL;
}

const struct hf_family *family_file(const char *name)
{
    const struct hf_family *family = find(name);
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

/* The kept family of a type, with the head of an architecture. */
static status_t find_or_keep(const char *key, const char *type, const char *json, size_t length,
                             const char *file, const struct hf_family **family)
{
    char *text = NULL, *dir = directory();
    const char *dirs[] = {dir};
    *family = find(key);
    status_t status = NULL;
    if (*family == NULL) {
        status = status_wrap(hf_family_find(dirs, 1, type, &text), "%s", file);
        if (status == NULL) {
            status = keep(key, text, "a family", family);
            if (status == NULL)
                status = hf_family_choose(kept[kept_count - 1].family, json, length, file);
            if (status != NULL && *family != NULL) forget(kept_count - 1);
        }
    }
    free(text);
    free(dir);
    return status;
}

status_t family_for(const char *json, size_t length, const char *file,
                    const struct hf_family **family)
{
    char *type = NULL, *architecture = NULL;
    TRY(hf_config_type(json, length, file, &type));
    status_t status = hf_config_architecture(json, length, file, &architecture);
    char *key = mem_printf("%s %s", type, architecture != NULL ? architecture : "");
    if (status == NULL) status = find_or_keep(key, type, json, length, file, family);
    free(key);
    free(architecture);
    free(type);
    return status;
}
