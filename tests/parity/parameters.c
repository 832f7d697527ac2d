/* See parameters.h. */
#include "parameters.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "hf/safetensors.h"

status_t parameters_read_model(const char *path, struct model **model)
{
    struct buf text = {0};
    TRY(file_read(path, 1 << 20, &text));
    status_t status = model_parse(buf_text(&text), text.length, path, model);
    buf_deinit(&text);
    return status;
}

static status_t read_one(const struct buf *file, const struct safetensors_header *header,
                         const struct parameter *parameter, float **values)
{
    for (int i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (strcmp(entry->name, parameter->name) != 0) continue;
        struct tensor_type type = tensor_type_make(DTYPE_F32, entry->dim_count, entry->dims);
        if (strcmp(entry->dtype, "F32") != 0 || !tensor_same_shape(&type, &parameter->type))
            return status_new(STATUS_INVALID_ARGUMENT, "%s: another type or shape",
                              parameter->name);
        *values = mem_dup(file->data + header->data_offset + entry->begin,
                          (size_t)(entry->end - entry->begin));
        return NULL;
    }
    return status_new(STATUS_NOT_FOUND, "no tensor '%s' among the weights", parameter->name);
}

static status_t read_all(const struct buf *file, const struct model *model, float **parameters)
{
    struct safetensors_header header;
    uint64_t needed;
    TRY(safetensors_read_header(file->data, file->length, file->length, &header, &needed));
    status_t status = NULL;
    for (int p = 0; p < model->parameter_count && status == NULL; p++)
        if (model->parameters[p].tied_to < 0)
            status = read_one(file, &header, &model->parameters[p], &parameters[p]);
    safetensors_header_deinit(&header);
    return status;
}

status_t parameters_read(const char *path, const struct model *model, float ***parameters)
{
    struct buf file = {0};
    TRY(file_read(path, 1 << 30, &file));
    float **made = mem_alloc_array((size_t)model->parameter_count, sizeof *made);
    status_t status = read_all(&file, model, made);
    buf_deinit(&file);
    if (status != NULL) {
        parameters_free(made, model);
        return status;
    }
    *parameters = made;
    return NULL;
}

void parameters_free(float **parameters, const struct model *model)
{
    for (int p = 0; parameters != NULL && p < model->parameter_count; p++) free(parameters[p]);
    free(parameters);
}
