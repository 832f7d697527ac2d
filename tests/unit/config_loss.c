/* See config_loss.h. */
#include "config_loss.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "family_files.h"
#include "machine.h"

enum { SAMPLES = 3, TIME = 16, FIRST_TOKEN = 4, LAST_TOKEN = 60, SIZE_MAX_TRIED = 1 << 20 };

/* A number from 0 to below 1 for element `i` of what has this name. */
static double number_at(uint32_t name, uint32_t i)
{
    uint32_t x = name + i * 0x9e3779b9U;
    x = (x ^ x >> 16) * 0x85ebca6bU;
    x = (x ^ x >> 13) * 0xc2b2ae35U;
    return (double)((x ^ x >> 16) >> 8) / (1 << 24);
}

static uint32_t hash_name(const char *name)
{
    uint32_t hash = 0x811c9dc5U;
    for (; *name != '\0'; name++) hash = (hash ^ (unsigned char)*name) * 0x01000193U;
    return hash;
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name);
    return length >= strlen(end) && strcmp(name + length - strlen(end), end) == 0;
}

static void fill_parameter(const char *name, float *values, int64_t count)
{
    bool norm = strstr(name, "norm") != NULL || strstr(name, "Norm") != NULL ||
                strstr(name, "ln_") != NULL;
    double middle = norm && (ends_with(name, "weight") || ends_with(name, "running_var")) ? 1 : 0;
    uint32_t hash = hash_name(name);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(middle + 0.8 * (number_at(hash, (uint32_t)i) - 0.5));
}

static void fill_input(void *memory, const struct tensor_type *type)
{
    int64_t count = tensor_element_count(type);
    for (int64_t i = 0; i < count; i++)
        if (type->dtype == DTYPE_F32)
            ((float *)memory)[i] = (float)number_at(hash_name("pixels"), (uint32_t)i);
        else
            ((int32_t *)memory)[i] =
                FIRST_TOKEN + (int32_t)(number_at(hash_name("tokens"), (uint32_t)i) *
                                        (LAST_TOKEN - FIRST_TOKEN));
}

static void fill_targets(void *memory, const struct tensor_type *type, int64_t classes)
{
    int64_t count = tensor_element_count(type);
    for (int64_t i = 0; i < count; i++)
        if (type->dtype == DTYPE_F32) ((float *)memory)[i] = (float)(i % 2);
        else ((int32_t *)memory)[i] = (int32_t)(i * 5 % classes);
}

static void fill(const struct machine *machine, const struct hf_family *family,
                 const struct model *model)
{
    const struct graph *graph = machine->graph;
    fill_input(machine->memory[graph->input], &graph->values[graph->input].type);
    fill_targets(machine->memory[graph->target], &graph->values[graph->target].type,
                 model->class_count > 0 ? model->class_count : 1);
    for (int v = 0; v < graph->value_count; v++) {
        const struct graph_value *value = &graph->values[v];
        if (value->kind != VALUE_PARAMETER && value->kind != VALUE_BUFFER) continue;
        const struct parameter *parameter = &model->parameters[value->parameter];
        if (parameter->buffer == MODEL_BUFFER_COUNT) continue;
        const char *name = hf_export_name(family, parameter->name);
        fill_parameter(name != NULL ? name : parameter->name, machine->memory[v],
                       tensor_element_count(&value->type));
    }
}

static status_t run(const struct hf_family *family, const struct model *model, double *loss)
{
    const struct graph_options options = {
        .batch_size = SAMPLES, .time = model->tokens ? TIME : 0, .keep_logits = true};
    struct graph *graph = NULL;
    struct machine machine = {0};
    for (int p = 0; p < model->parameter_count; p++)
        if (tensor_element_count(&model->parameters[p].type) > SIZE_MAX_TRIED)
            return status_new(STATUS_INVALID_ARGUMENT, "too large for this test");
    TRY(graph_build(model, &options, &graph));
    status_t status = machine_init(&machine, KERNELS_CPU, graph);
    if (status == NULL) {
        fill(&machine, family, model);
        status = machine_run(&machine);
    }
    if (status == NULL) *loss = (double)*(float *)machine.memory[graph->loss];
    machine_deinit(&machine);
    graph_free(graph);
    return status;
}

status_t config_loss(const char *json, struct buf *notes, double *loss)
{
    struct hf_family *family = NULL;
    struct model *model = NULL;
    char *text = NULL;
    size_t length = strlen(json);
    TRY(family_for(json, length, "config.json", &family));
    TRY(hf_config_to_model(family, json, length, "config.json", &text));
    const char *note;
    for (int i = 0; (note = hf_family_item(family, HF_FAMILY_NOTES, i)) != NULL; i++)
        buf_printf(notes, "%s\n", note);
    status_t status = model_parse(text, strlen(text), "model.hf", &model);
    free(text);
    if (status == NULL) status = run(family, model, loss);
    model_free(model);
    return status;
}
