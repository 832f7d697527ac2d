/* The rewrite of a model for pairs; see preference.h. Calls get new numbers. Pure; any thread. */
#include "model/preference.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/program.h"
#include "model/reader.h"

enum { NO_VALUE = -2 }; /* of an adapter: the reference has nothing there */

/* `value` and `reference`: by old value, its new number, and that of the same in the reference.
 * `copy`: by parameter, its copy, or itself if it is not trained; NULL: the reference is the model
 * without adapters. */
struct preferring {
    const struct model *model;
    struct model_program program;
    int *value, *reference, *copy;
};

static bool is_adapter(const struct model *model, int parameter)
{
    return parameter >= 0 && model->parameters[parameter].adapter;
}

static int copy_of(const struct preferring *preferring, int parameter)
{
    return parameter >= 0 && preferring->copy != NULL ? preferring->copy[parameter] : parameter;
}

/* What the call makes for the reference, if that needs no call of its own; -1: it needs one. */
static int find_reference(const struct preferring *preferring, const struct program_call *call,
                          int made)
{
    bool differs = copy_of(preferring, call->weight) != call->weight ||
                   copy_of(preferring, call->bias) != call->bias;
    int other = NO_VALUE, nothing = 0;
    if (preferring->copy == NULL && is_adapter(preferring->model, call->weight)) return NO_VALUE;
    for (int k = 0; k < LAYER_MAX_TENSORS; k++) {
        if (call->inputs[k] < 0) continue;
        int reference = preferring->reference[call->inputs[k]];
        nothing += reference == NO_VALUE;
        if (reference != NO_VALUE) other = reference;
        differs = differs || reference != preferring->value[call->inputs[k]];
    }
    if (nothing > 0) return other; /* the sum with an adapter, or what leads to one */
    return differs ? -1 : made;
}

static void move_inputs(struct program_call *call, const int *numbers)
{
    for (int k = 0; k < LAYER_MAX_TENSORS; k++)
        if (call->inputs[k] >= 0) call->inputs[k] = numbers[call->inputs[k]];
}

static void move_calls(struct preferring *preferring)
{
    const struct model_program *from = preferring->model->program;
    struct model_program *to = &preferring->program;
    for (int i = 0; i + 1 < from->call_count; i++) {
        struct program_call *call = &to->calls[to->call_count++];
        *call = from->calls[i];
        move_inputs(call, preferring->value);
        int made = preferring->value[i + 1] = to->call_count;
        int *reference = &preferring->reference[i + 1];
        *reference = find_reference(preferring, &from->calls[i], made);
        if (*reference != -1) continue;
        call = &to->calls[to->call_count++];
        *call = from->calls[i];
        move_inputs(call, preferring->reference);
        call->weight = copy_of(preferring, call->weight);
        call->bias = copy_of(preferring, call->bias);
        call->name = mem_printf("%s.reference", from->calls[i].name);
        *reference = to->call_count;
    }
}

static void make_layer(const struct model_preference *preference, struct layer *layer)
{
    *layer = (struct layer){.kind = OP_PREFERENCE_LOSS};
    layer->attrs.preference.reduction = REDUCTION_MEAN;
    layer->attrs.preference.kind = preference->loss;
    layer->attrs.preference.beta = preference->beta;
    layer->attrs.preference.label_smoothing = preference->label_smoothing;
}

/* The loss reads the scores of both. */
static void set_loss(struct preferring *preferring, const struct model_preference *preference)
{
    const struct model_program *from = preferring->model->program;
    struct program_call *loss = &preferring->program.calls[preferring->program.call_count++];
    *loss = from->calls[from->call_count - 1];
    int scores = loss->inputs[0];
    loss->inputs[0] = preferring->value[scores];
    loss->inputs[1] = preferring->reference[scores];
    make_layer(preference, &loss->layer);
}

/* Those that are trained. */
static int count_copies(const struct model *model)
{
    int count = 0;
    for (int p = 0; p < model->parameter_count; p++) count += model->parameters[p].trainable;
    return count;
}

/* Adds the copies behind all parameters; `copy`: by parameter. */
static void add_copies(struct model *model, int *copy)
{
    int count = model->parameter_count, next = count;
    model->parameters = mem_resize_array(model->parameters, (size_t)(count + count_copies(model)),
                                         sizeof *model->parameters);
    for (int p = 0; p < count; p++) {
        const struct parameter *from = &model->parameters[p];
        copy[p] = from->trainable ? next++ : p;
        if (!from->trainable) continue;
        struct parameter *made = &model->parameters[copy[p]];
        *made = *from;
        made->name = mem_printf("%s.reference", from->name);
        made->trainable = made->adapter = false;
        made->reference = true;
        made->of = p;
        if (from->tied_to >= 0) made->tied_to = copy[from->tied_to];
    }
    model->parameter_count = next;
}

/* `whole`: the reference is the model as it began. */
static status_t check_model(const struct model *model, bool whole)
{
    const struct model_program *program = model->program;
    const struct program_call *loss = &program->calls[program->call_count - 1];
    if (model->target != TARGET_TOKEN || loss->layer.kind != OP_CROSS_ENTROPY ||
        loss->layer.attrs.loss.weights.values != NULL ||
        loss->layer.attrs.loss.label_smoothing > 0 || loss->layer.attrs.loss.gamma > 0 ||
        program->terms > 1)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.objective: dpo needs a model that predicts tokens, whose loss is a "
                          "plain cross_entropy");
    const struct parameter *other = NULL;
    bool adapted = false;
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        adapted = adapted || parameter->adapter;
        if (parameter->trainable && !parameter->adapter) other = parameter;
    }
    if (whole) return NULL;
    if (!adapted)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.objective: dpo: the reference is the model with its adapter "
                          "switched off; expected model.lora or model.adapter");
    if (other != NULL)
        return status_new(STATUS_UNIMPLEMENTED,
                          "model.lora.modules_to_save: with data.objective: dpo the reference is "
                          "the model with its adapter switched off, so that nothing else can be "
                          "trained; %s would be",
                          other->name);
    return NULL;
}

/* The number is not taken at the last token: what follows is computed of each, and the targets say
 * at which tokens texts end. */
static status_t number_tokens(struct model *model)
{
    struct model_program *program = model->program;
    int last = 0; /* the value of the call last() */
    for (int i = 0; i < program->call_count; i++) {
        const struct layer *layer = &program->calls[i].layer;
        if (layer->kind == OP_MEAN && layer->attrs.mean.last && layer->dim == 1) last = i + 1;
    }
    if (last == 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.windows: packed: data.objective: reward needs a model that makes "
                          "its number at the last token of a text (last()): expected document");
    int tokens = program->calls[last - 1].inputs[0];
    for (int i = last; i < program->call_count; i++)
        for (int k = 0; k < LAYER_MAX_TENSORS; k++)
            if (program->calls[i].inputs[k] == last) program->calls[i].inputs[k] = tokens;
    return NULL;
}

/* A model of one number for each text; its own loss, by a target, is not used. */
static status_t reward(struct model *model, const struct model_preference *preference)
{
    struct program_call *loss = &model->program->calls[model->program->call_count - 1];
    if (!model->tokens || model->target != TARGET_NUMBERS || model->texts != 1 ||
        tensor_element_count(&model->targets) != 1 || model->program->terms > 1)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.objective: reward needs a model that makes one number of a text: "
                          "'targets: 1', or a sequence classification with num_labels 1");
    if (preference->packed) TRY(number_tokens(model));
    make_layer(preference, &loss->layer);
    model->target = TARGET_REWARD;
    model->targets = (struct tensor_type){0};
    model->texts = preference->packed ? 1 : 2;
    return NULL;
}

/* Of the two inputs of the loss, the second one comes with the batch. */
static void take_computed(struct model *model, const struct model_preference *preference)
{
    make_layer(preference, &model->program->calls[model->program->call_count - 1].layer);
    model->target = TARGET_PREFERENCE;
    model->texts = preference->packed ? 1 : 2;
    model->precomputed = true;
}

status_t model_prefer(struct model *model, const struct model_preference *preference)
{
    int calls = model->program->call_count;
    bool copies = preference->reference == REFERENCE_COPY;
    if (preference->reward) return reward(model, preference);
    TRY(check_model(model, preference->reference != REFERENCE_ADAPTER));
    if (preference->reference == REFERENCE_PRECOMPUTED) {
        take_computed(model, preference);
        return NULL;
    }
    if (2 * calls > MODEL_MAX_CALLS)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data.objective: dpo makes the model larger than %d calls",
                          MODEL_MAX_CALLS);
    AUTO_FREE int *value = mem_alloc_array((size_t)calls + 1, sizeof *value);
    AUTO_FREE int *reference = mem_alloc_array((size_t)calls + 1, sizeof *reference);
    AUTO_FREE int *copy = mem_alloc_array((size_t)model->parameter_count + 1, sizeof *copy);
    if (copies) add_copies(model, copy);
    struct preferring preferring = {.model = model,
                                    .program = *model->program,
                                    .value = value,
                                    .reference = reference,
                                    .copy = copies ? copy : NULL};
    preferring.program.calls =
        mem_alloc_array((size_t)(2 * calls), sizeof *preferring.program.calls);
    preferring.program.call_count = 0;
    preferring.program.call_capacity = 2 * calls;
    move_calls(&preferring);
    set_loss(&preferring, preference);
    free(model->program->calls);
    *model->program = preferring.program;
    model->target = TARGET_PREFERENCE;
    model->texts = preference->packed ? 1 : 2;
    return NULL;
}
