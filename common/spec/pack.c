/* A job file as a message that a daemon can read without the client's files; see spec.h. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "spec/internal.h"

/* What a message may contain; a file's name may be anything. */
static bool is_utf8(const char *text)
{
    uint32_t character;
    for (int length; *text != '\0'; text += length)
        if ((length = utf8_decode(text, &character)) == 0) return false;
    return true;
}

static void add_override(Fsdpd__V1__JobFile *sent, char *text)
{
    sent->overrides =
        mem_resize_array(sent->overrides, sent->n_overrides + 1, sizeof *sent->overrides);
    sent->overrides[sent->n_overrides++] = text;
}

/* By itself, or with its section; not with a value for each index of an array. */
static bool is_overridden(const char *key, const struct spec_override *overrides, int count)
{
    for (int i = 0; i < count; i++) {
        size_t length = strcspn(overrides[i].text, "=");
        if (strstr(overrides[i].text, "${") != NULL) continue;
        if (strncmp(overrides[i].text, key, length) == 0 &&
            (key[length] == '\0' || key[length] == '.'))
            return true;
    }
    return false;
}

/* The command line's paths that became absolute, which only this machine could say. */
static void add_paths(Fsdpd__V1__JobFile *sent, const Fsdpd__V1__JobSpec *spec,
                      const struct spec_override *overrides, int count)
{
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (key->type != SPEC_TEXT || key->absent || !spec_key_applies(key, spec) ||
            !is_overridden(key->key, overrides, count))
            continue;
        const char *path = spec_field_text(spec_field_find(spec, key, false));
        if (path[0] != '/') continue;
        struct buf text = {0};
        buf_printf(&text, "%s=", key->key);
        yamldoc_print_text(&text, path);
        add_override(sent, buf_take(&text));
    }
}

static void add_file(Fsdpd__V1__JobFile *sent, const char *name, const char *text)
{
    if (name[0] == '\0' || spec_sent_text(sent, name) != NULL) return;
    sent->files = mem_resize_array(sent->files, sent->n_files + 1, sizeof *sent->files);
    Fsdpd__V1__JobFile__FilesEntry *entry = mem_alloc(sizeof *entry);
    fsdpd__v1__job_file__files_entry__init(entry);
    entry->key = mem_strdup(name);
    entry->value = mem_strdup(text);
    sent->files[sent->n_files++] = entry;
}

static void add_model(Fsdpd__V1__JobFile *sent, const Fsdpd__V1__ModelSpec *model)
{
    add_file(sent, model->file_name, model->text);
}

static status_t add_template(Fsdpd__V1__JobFile *sent, const struct spec_source *source)
{
    char *name, *text;
    TRY(spec_sweep_file(source, &name, &text));
    if (name != NULL) add_file(sent, name, text);
    free(name);
    free(text);
    return NULL;
}

static status_t add_indexed_model(void *user, uint32_t index, Fsdpd__V1__JobSpec *spec)
{
    (void)index;
    add_model(user, spec->model);
    return NULL;
}

/* The model files of an array's jobs, all of which are read. */
static status_t add_models(Fsdpd__V1__JobFile *sent, const Fsdpd__V1__JobSpec *spec,
                           const struct spec_source *source)
{
    add_model(sent, spec->model);
    if (spec->array == NULL) return NULL;
    const struct spec_array_part all = {.count = SPEC_ARRAY_MAX};
    return spec_array_each_of(source, &all, add_indexed_model, sent);
}

status_t spec_pack_text(const char *text, size_t length, const char *file,
                        const struct spec_override *overrides, int count, Fsdpd__V1__JobFile **sent)
{
    Fsdpd__V1__JobSpec *spec;
    const struct spec_source source = {text, length, file, NULL, overrides, count};
    TRY(spec_read_text(text, length, file, overrides, count, &spec));
    Fsdpd__V1__JobFile *made = mem_alloc(sizeof *made);
    fsdpd__v1__job_file__init(made);
    made->text = mem_strndup(text, length);
    made->name = mem_strdup(is_utf8(file) ? file : "job.yaml");
    made->home = file_path_expand_home("~");
    for (int i = 0; i < count; i++) add_override(made, mem_strdup(overrides[i].text));
    add_paths(made, spec, overrides, count);
    status_t status = add_models(made, spec, &source);
    if (status == NULL) status = add_template(made, &source);
    spec_free(spec);
    if (status != NULL) message_free(made);
    else *sent = made;
    return status;
}

status_t spec_pack_file(const char *path, const struct spec_override *overrides, int count,
                        Fsdpd__V1__JobFile **sent)
{
    AUTO(buf_deinit) struct buf text = {0};
    TRY(file_read(path, SPEC_FILE_MAX, &text));
    return spec_pack_text(buf_text(&text), text.length, path, overrides, count, sent);
}
