/*
 * For every family of families/: a checkpoint that leaves a tensor out, has one too many, or has
 * one of another shape is refused, with the tensor's name. The files' data are holes, so that the
 * default widths of families take no space.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/state_header.h"
#include "checkpoint/weights.h"
#include "hf/hf.h"
#include "hf/safetensors.h"
#include "tests/testing.h"

/* Keys of all families; each reads its own. */
static const char sizes[] =
    "\"num_hidden_layers\": 2, \"n_layer\": 2, \"n_layers\": 2, \"num_layers\": 2, "
    "\"attention_layers\": [\"global\", \"local\"], "
    "\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}";
/* Of the families that have layers of several kinds. */
static const char layers[] = ", \"layer_types\": [\"sliding_attention\", \"full_attention\"]";

/* The honest checkpoint of a family, and the model that it is for. */
struct checkpoint {
    char directory[64];
    const struct hf_family *family;
    struct model *model;
    struct safetensors_entry *entries; /* one more than `count`, for lies */
    int *owners;                       /* by entry: the parameter whose memory it is */
    int count, lies;
};

static void write_checkpoint(const struct checkpoint *honest,
                             const struct safetensors_entry *entries, int count)
{
    struct safetensors_entry *written = mem_alloc_array((size_t)count, sizeof *written);
    struct buf header = {0};
    memcpy(written, entries, (size_t)count * sizeof *written);
    safetensors_write_header(&header, written, count, NULL, 0);
    char *path = file_path_join(honest->directory, "model.safetensors");
    FILE *file = fopen(path, "we"); /* thousands of files: none waits for the disk */
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(header.data, 1, header.length, file), header.length);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(truncate(path, (off_t)(header.length + written[count - 1].end)), 0);
    buf_deinit(&header);
    free(written);
    free(path);
}

static status_t open_weights(const struct checkpoint *honest)
{
    struct weights_source source = {.dir = honest->directory,
                                    .root = honest->directory,
                                    .family = honest->family};
    struct weights *weights = NULL;
    status_t status = weights_open(&source, honest->model, &weights);
    weights_free(weights);
    return status;
}

/* Expects "what (NAME", the first and only complaint of its kind. */
static void expect_refused(struct checkpoint *honest, const char *what, const char *name)
{
    status_t status = open_weights(honest);
    char *expected = mem_printf("1 %s (%s", what, name);
    ck_assert_msg(status != NULL, "%s: not refused: %s", hf_family_name(honest->family), expected);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), expected) != NULL, "%s: expected %s, found %s",
                  hf_family_name(honest->family), expected, status_message(status));
    status_free(status);
    free(expected);
    honest->lies++;
}

/* Whether the parameter has another tensor, which is enough. */
static bool has_twin(const struct checkpoint *honest, int entry)
{
    int count = 0;
    for (int i = 0; i < honest->count; i++) count += honest->owners[i] == honest->owners[entry];
    return count > 1;
}

static void leave_out(struct checkpoint *honest, int entry)
{
    if (has_twin(honest, entry)) return;
    struct safetensors_entry kept = honest->entries[entry];
    honest->entries[entry] = honest->entries[honest->count - 1];
    write_checkpoint(honest, honest->entries, honest->count - 1);
    honest->entries[entry] = kept;
    expect_refused(honest, "missing", honest->model->parameters[honest->owners[entry]].name);
}

static void misshape(struct checkpoint *honest, int entry, int64_t first, int64_t second)
{
    struct safetensors_entry kept = honest->entries[entry];
    honest->entries[entry].dims[0] = first;
    if (kept.dim_count == 0) honest->entries[entry].dim_count = 1;
    if (kept.dim_count > 1) honest->entries[entry].dims[1] = second;
    write_checkpoint(honest, honest->entries, honest->count);
    honest->entries[entry] = kept;
    expect_refused(honest, "of another shape", kept.name);
}

/* Of a layer that the model does not have. */
static void add_layer(struct checkpoint *honest, int entry)
{
    const char *layer = strstr(honest->entries[entry].name, ".0.");
    if (layer == NULL) return;
    struct safetensors_entry *more = &honest->entries[honest->count];
    *more = honest->entries[entry];
    more->name = mem_printf("%.*s.99.%s", (int)(layer - more->name), more->name, layer + 3);
    write_checkpoint(honest, honest->entries, honest->count + 1);
    expect_refused(honest, "that the model does not have", more->name);
    free(more->name);
}

static void write_lies(struct checkpoint *honest)
{
    for (int i = 0; i < honest->count; i++) {
        const struct safetensors_entry *entry = &honest->entries[i];
        int64_t first = entry->dims[0], second = entry->dims[1];
        leave_out(honest, i);
        add_layer(honest, i);
        misshape(honest, i, first + 1, second); /* as a wrong number of fused rows */
        if (entry->dim_count == 2 && first != second) misshape(honest, i, second, first);
    }
}

static void find_entries(struct checkpoint *honest)
{
    const struct model *model = honest->model;
    size_t most = (size_t)model->parameter_count + 1;
    honest->entries = mem_alloc_array(most, sizeof *honest->entries);
    honest->owners = mem_alloc_array(most, sizeof *honest->owners);
    for (int i = 0; i < model->parameter_count; i++) {
        const struct parameter *parameter = &model->parameters[i];
        const char *name = hf_export_name(honest->family, parameter->name);
        if (name == NULL) continue;
        struct safetensors_entry *entry = &honest->entries[honest->count];
        *entry = (struct safetensors_entry){.name = (char *)name,
                                            .dtype = (char *)"F32",
                                            .dim_count = parameter->type.dim_count};
        memcpy(entry->dims, parameter->type.dims, sizeof entry->dims);
        if (parameter->buffer == MODEL_BUFFER_COUNT) state_header_count(entry);
        int owner = i;
        while (model->parameters[owner].tied_to >= 0) owner = model->parameters[owner].tied_to;
        honest->owners[honest->count++] = owner;
    }
}

/* Mistral knows the key only to refuse it. */
static bool has_kinds(const struct hf_family *family)
{
    const char *key = NULL;
    for (int i = 0; (key = hf_family_item(family, HF_FAMILY_KEYS, i)) != NULL; i++)
        if (strcmp(key, "layer_types") == 0) break;
    return key != NULL && strncmp(hf_family_item(family, HF_FAMILY_MODEL_TYPES, 0), "mistral",
                                  strlen("mistral")) != 0;
}

/* Code World Models must say whether their positions are scaled. */
static const char *scaling_of(const struct hf_family *family)
{
    bool scaled = strcmp(hf_family_name(family), "cwm") == 0;
    return scaled ? ", \"rope_scaling\": {\"rope_type\": \"default\"}" : "";
}

static status_t check_family(const struct hf_family_file *file)
{
    ck_assert_msg(file->error == NULL, "%s", status_message(file->error));
    struct checkpoint honest = {.directory = "/tmp/fsdpd-lies-XXXXXX", .family = file->family};
    const char *inside = hf_family_inside(file->family); /* NULL: keys are not in an object */
    char *text = NULL, *json = mem_printf("{\"model_type\": \"%s\", %s%s%s%s%s%s%s}",
                                          hf_family_item(file->family, HF_FAMILY_MODEL_TYPES, 0),
                                          inside != NULL ? "\"" : "", inside != NULL ? inside : "",
                                          inside != NULL ? "\": {" : "", sizes,
                                          has_kinds(file->family) ? layers : "",
                                          scaling_of(file->family), inside != NULL ? "}" : "");
    ck_assert_ptr_nonnull(mkdtemp(honest.directory));
    TRY(hf_config_to_model(file->family, json, strlen(json), file->path, &text));
    TRY(model_parse(text, strlen(text), file->path, &honest.model));
    find_entries(&honest);
    write_checkpoint(&honest, honest.entries, honest.count);
    TRY(open_weights(&honest));
    write_lies(&honest);
    printf("%s: %d tensors, %d lies\n", hf_family_name(file->family), honest.count, honest.lies);
    ck_assert_int_gt(honest.lies, honest.count);
    char *path = file_path_join(honest.directory, "model.safetensors");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(honest.directory), 0);
    free(path);
    free(json);
    free(honest.entries);
    free(honest.owners);
    model_free(honest.model);
    free(text);
    return NULL;
}

TESTS_BELOW(.timeout = 60);

enum { PARTS = 6 };

/* Of the families, every PARTS-th from _i on. */
LOOP_TEST(every_family_names_the_tensor, 0, PARTS, .sanitized_every = 3)
{
    const char *root = getenv("srcdir");
    char *dir = file_path_join(root != NULL ? root : ".", "families");
    const struct hf_families *families = NULL;
    status_t status = hf_families_open((const char *[]){dir}, 1, &families);
    for (int i = _i; status == NULL && i < families->count; i += PARTS)
        status = check_family(&families->files[i]);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_ge(families->count, 20);
    hf_families_close(families);
    free(dir);
}
