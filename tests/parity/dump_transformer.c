/*
 * dump_transformer MODEL WEIGHTS BATCH BATCH_SIZE TIME LIBRARY: runs a model once, without dropout,
 * and writes to stdout, as float32: the logits, the loss of a training step (1), and the gradients
 * of all parameters that are trained and not tied to another, in state_dict order. For
 * tests/parity/test_transformers.py and tests/parity/test_networks.py.
 *
 * WEIGHTS is a safetensors file with a F32 tensor for every parameter's name. It is "-" if MODEL is
 * a directory of Hugging Face's transformers; then the names of the parameters in its files go to
 * stderr, a line each, in the order of the gradients, and before them lines that begin with "note:
 * " with what a plan would note. BATCH holds the samples, or BATCH_SIZE x TIME tokens, and the
 * targets. TIME is 0 without tokens. LIBRARY is reference or cpu, or, to compute in bf16 with
 * parameters of f32, reference-bf16 or cpu-bf16.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/machine.h"
#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "directory.h"
#include "parameters.h"

struct arguments {
    const char *model, *weights, *batch;
    int64_t batch_size, time;
    enum kernel_library library;
    enum dtype compute;
};

static status_t fill(struct machine *machine, float *const *parameters, const struct buf *batch)
{
    const struct graph *graph = machine->graph;
    size_t bytes = tensor_bytes(&graph->values[graph->input].type);
    size_t target = tensor_bytes(&graph->values[graph->target].type);
    if (batch->length != bytes + target)
        return status_new(STATUS_INVALID_ARGUMENT, "the batch has %zu bytes, expected %zu",
                          batch->length, bytes + target);
    memcpy(machine->memory[graph->input], batch->data, bytes);
    memcpy(machine->memory[graph->target], batch->data + bytes, target);
    for (int v = 0; v < graph->value_count; v++) {
        const struct graph_value *value = &graph->values[v];
        if (value->kind == VALUE_PARAMETER || value->kind == VALUE_BUFFER)
            memcpy(machine->memory[v], parameters[value->parameter], tensor_bytes(&value->type));
    }
    return NULL;
}

static void write_value(const struct machine *machine, int value)
{
    fwrite(machine->memory[value], 1, tensor_bytes(&machine->graph->values[value].type), stdout);
}

static void write_gradients(const struct machine *machine, const struct model *model)
{
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        if (parameter->tied_to >= 0 || parameter->buffer != MODEL_BUFFER_NONE ||
            !parameter->trainable)
            continue;
        write_value(machine, machine_value_of(machine->graph, VALUE_PARAMETER_GRADIENT, p));
    }
}

static status_t run(const struct arguments *arguments, const struct model *model,
                    float *const *parameters, const struct buf *batch, bool train)
{
    const struct graph_options options = {.batch_size = arguments->batch_size,
                                          .time = arguments->time,
                                          .train = train,
                                          .keep_logits = !train,
                                          .compute_dtype = arguments->compute};
    struct graph *graph = NULL;
    struct machine machine = {0};
    status_t status = graph_build(model, &options, &graph);
    if (status == NULL) status = machine_init(&machine, arguments->library, graph);
    if (status == NULL) status = fill(&machine, parameters, batch);
    if (status == NULL) status = machine_run(&machine);
    if (status == NULL && train) {
        write_value(&machine, graph->loss);
        write_gradients(&machine, model);
    } else if (status == NULL) {
        write_value(&machine, graph->ops[graph_loss_op(graph)].inputs[0]);
    }
    machine_deinit(&machine);
    graph_free(graph);
    return status;
}

static status_t dump(const struct arguments *arguments)
{
    struct model *model = NULL;
    float **parameters = NULL;
    struct buf batch = {0};
    status_t status = NULL;
    if (strcmp(arguments->weights, "-") == 0) {
        char *text = NULL;
        status = directory_read(arguments->model, true, &text, &model, &parameters);
        free(text);
    } else {
        status = parameters_read_model(arguments->model, &model);
        if (status == NULL) status = parameters_read(arguments->weights, model, &parameters);
    }
    if (status == NULL) status = file_read(arguments->batch, 1 << 30, &batch);
    if (status == NULL) status = run(arguments, model, parameters, &batch, false);
    if (status == NULL) status = run(arguments, model, parameters, &batch, true);
    buf_deinit(&batch);
    parameters_free(parameters, model);
    model_free(model);
    return status;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        enum kernel_library library;
        enum dtype compute;
    } libraries[] = {{"reference", KERNELS_REFERENCE, DTYPE_F32},
                     {"cpu", KERNELS_CPU, DTYPE_F32},
                     {"reference-bf16", KERNELS_REFERENCE, DTYPE_BF16},
                     {"cpu-bf16", KERNELS_CPU, DTYPE_BF16}};
    struct arguments arguments;
    size_t chosen = 0;
    while (argc == 7 && chosen < COUNT_OF(libraries) &&
           strcmp(argv[6], libraries[chosen].name) != 0)
        chosen++;
    if (argc != 7 || chosen == COUNT_OF(libraries) ||
        !text_parse_i64(argv[4], &arguments.batch_size) ||
        !text_parse_i64(argv[5], &arguments.time)) {
        fprintf(stderr, "Usage: dump_transformer MODEL WEIGHTS BATCH BATCH_SIZE TIME "
                        "reference|cpu[-bf16]\n");
        return 2;
    }
    arguments.model = argv[1];
    arguments.weights = argv[2];
    arguments.batch = argv[3];
    arguments.library = libraries[chosen].library;
    arguments.compute = libraries[chosen].compute;
    status_t status = dump(&arguments);
    if (status == NULL && fflush(stdout) == 0) return 0;
    fprintf(stderr, "dump_transformer: %s\n", status_message(status));
    status_free(status);
    return 1;
}
