/* See family_files.h. All families are read once, before Check forks a process for each test: to
 * read them takes longer than most tests. */
#include "family_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

static const struct hf_families *all; /* freed with the process */

static char *directory(void)
{
    const char *root = getenv("srcdir");
    return file_path_join(root != NULL ? root : ".", "families");
}

__attribute__((constructor)) static void read_all(void)
{
    char *dir = directory();
    status_t status = hf_families_open((const char *[]){dir}, 1, &all);
    if (status != NULL) fprintf(stderr, "%s\n", status_message(status));
    status_free(status);
    free(dir);
}

struct hf_family *family_file(const char *name)
{
    char *file = mem_printf("/%s.yaml", name);
    int i = 0;
    while (i < all->count && strcmp(strrchr(all->files[i].path, '/'), file) != 0) i++;
    if (i == all->count || all->files[i].family == NULL) {
        fprintf(stderr, "%s: %s\n", name,
                i == all->count ? "no such family" : status_message(all->files[i].error));
        abort();
    }
    free(file);
    return all->files[i].family;
}

static bool is_of_type(const struct hf_family *family, const char *type)
{
    const char *item;
    for (int i = 0; family != NULL && (item = hf_family_item(family, HF_FAMILY_MODEL_TYPES, i));
         i++)
        if (strcmp(item, type) == 0) return true;
    return false;
}

status_t family_for(const char *json, size_t length, const char *file, struct hf_family **family)
{
    char *type = NULL, *text = NULL, *dir = directory();
    const char *dirs[] = {dir};
    status_t status = hf_config_type(json, length, file, &type);
    *family = NULL;
    for (int i = 0; i < all->count && status == NULL && *family == NULL; i++)
        if (is_of_type(all->files[i].family, type)) *family = all->files[i].family;
    if (status == NULL && *family == NULL)
        status =
            status_wrap(hf_family_find(dirs, 1, type, &text), "%s", file); /* why there is none */
    free(text);
    free(type);
    free(dir);
    return status;
}
