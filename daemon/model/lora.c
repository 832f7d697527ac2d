/*
 * The rewrite of a model; see lora.h. Modules, parameters and calls get new numbers: an adapter's
 * modules follow the one they belong to, its parameters that one's own, and its calls the call of
 * that one, whose readers then read the sum. Pure; any thread.
 */
#include "model/lora.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "model/lora_choose.h"
#include "model/program.h"
#include "model/reader.h"

enum { MATRICES = 2, CALLS = 5 }; /* of an adapter; of a call of its module */

/* The old model beside the new one. `module`, `parameter` and `value`: new numbers by old ones. */
struct rewriting {
    struct model *old, made;
    const struct model_lora *lora;
    struct lora_choice *choices;
    struct model_program program;
    int *module, *parameter, *value;
    uint32_t dropouts;
    int adapters;
};

static const char *const names[][MATRICES] = {{"lora_A", "lora_B"},
                                              {"lora_embedding_A", "lora_embedding_B"}};

/* The call of a constructor, "Linear(inputs, outputs, bias=False)", or "Embedding(inputs,
 * outputs)".
 */
static struct bound constructor_of(const struct layer_type *type, int64_t inputs, int64_t outputs)
{
    struct bound bound = {.signature = &type->signature};
    bool linear = type->kind == OP_LINEAR;
    int64_t values[] = {inputs, outputs, false};
    for (size_t i = 0; i < COUNT_OF(values); i++)
        bound.values[i] = (struct constant){.kind = i < 2    ? CONSTANT_INTEGER
                                                    : linear ? CONSTANT_BOOLEAN
                                                             : CONSTANT_NONE,
                                            .integer = values[i]};
    return bound;
}

/* How many words Tensor.normal_ draws for that number of values. */
static int64_t words_of_normal(int64_t count)
{
    enum { BLOCK = 16 }; /* of data/generator.h; fewer are drawn as pairs, of two words each */
    if (count < BLOCK) return 2 * (count + count % 2);
    return count % BLOCK == 0 ? count : count + BLOCK;
}

/* Adds the module and the parameter of a matrix to (old) module `at`. */
static void add_matrix(struct rewriting *rewriting, int at, int matrix)
{
    struct model *made = &rewriting->made;
    struct layer_parameter parameters[LAYER_MAX_PARAMETERS] = {0};
    const struct lora_choice *choice = &rewriting->choices[at];
    bool embedding = choice->embedding, table = embedding && matrix == 0;
    const struct layer_type *type = layer_find_module(table ? "Embedding" : "Linear");
    struct bound bound = matrix == 0 ? constructor_of(type, choice->inputs, choice->rank)
                                     : constructor_of(type, choice->rank, choice->outputs);
    const char *name = names[embedding][matrix];
    type->parameters(&bound, parameters);
    struct buf print = {0};
    type->print(&bound, &print);
    int index = made->module_count++, parameter = made->parameter_count++;
    struct module *owner = &made->modules[rewriting->module[at]];
    made->modules[index] = (struct module){.path = mem_printf("%s.%s", owner->path, name),
                                           .name = mem_strdup(name),
                                           .type = mem_strdup(type->signature.name),
                                           .print = buf_take(&print),
                                           .parent = rewriting->module[at],
                                           .parameters = mem_dup(&parameter, sizeof parameter),
                                           .parameter_count = 1};
    owner->children =
        mem_resize_array(owner->children, (size_t)owner->child_count + 1, sizeof(int));
    owner->children[owner->child_count++] = index;
    made->parameters[parameter] = (struct parameter){
        .name = mem_printf(embedding ? "%s" : "%s.weight", made->modules[index].path),
        .module = index,
        .type = parameters[0].type,
        .trainable = true,
        .adapter = true,
        .flipped = table,
        .tied_to = -1,
        .init = matrix != embedding ? INIT_ZEROS
                : embedding         ? INIT_NORMAL
                                    : INIT_UNIFORM,
        .bound = embedding ? 1 : parameters[0].bound,
        .init_order = rewriting->old->parameter_count + parameter,
    };
    /* PEFT draws both matrices before it draws one again and zeros the other. */
    if (matrix == embedding)
        made->parameters[parameter].dropped =
            embedding ? words_of_normal(choice->rank * choice->inputs) +
                            words_of_normal(choice->rank * choice->outputs)
                      : choice->rank * (choice->inputs + choice->outputs);
}

/* Moves a module, with its parameters, and adds its adapter. */
static void move_module(struct rewriting *rewriting, int at)
{
    struct model *old = rewriting->old, *made = &rewriting->made;
    int index = rewriting->module[at] = made->module_count++;
    struct module *moved = &made->modules[index];
    *moved = old->modules[at];
    if (at > 0) moved->parent = rewriting->module[moved->parent];
    for (int i = 0; i < moved->parameter_count; i++) {
        int from = moved->parameters[i], to = made->parameter_count++;
        struct parameter *parameter = &made->parameters[to];
        *parameter = old->parameters[from];
        parameter->module = index;
        parameter->trainable = parameter->trainable && rewriting->choices[at].saved;
        rewriting->parameter[from] = moved->parameters[i] = to;
    }
    if (rewriting->choices[at].rank == 0) return;
    for (int matrix = 0; matrix < MATRICES; matrix++) add_matrix(rewriting, at, matrix);
}

static void move_modules(struct rewriting *rewriting)
{
    struct model *old = rewriting->old, *made = &rewriting->made;
    size_t modules = (size_t)(old->module_count + MATRICES * rewriting->adapters);
    size_t parameters = (size_t)(old->parameter_count + MATRICES * rewriting->adapters);
    made->modules = mem_alloc_array(modules, sizeof *made->modules);
    made->parameters = mem_alloc_array(parameters, sizeof *made->parameters);
    made->module_count = made->parameter_count = 0;
    for (int m = 0; m < old->module_count; m++) move_module(rewriting, m);
    for (int m = 0; m < old->module_count; m++) {
        struct module *moved = &made->modules[rewriting->module[m]];
        if (rewriting->choices[m].rank > 0) continue; /* its children are new */
        for (int i = 0; i < moved->child_count; i++)
            moved->children[i] = rewriting->module[moved->children[i]];
    }
    for (int p = 0; p < old->parameter_count; p++) {
        struct parameter *moved = &made->parameters[rewriting->parameter[p]];
        if (moved->tied_to >= 0) moved->tied_to = rewriting->parameter[moved->tied_to];
    }
}

/* Adds a call that reads `x` and perhaps `y`; returns its value. */
static int add_call(struct rewriting *rewriting, const struct program_call *base, int matrix,
                    const struct layer *layer, const char *name, int x, int y)
{
    struct program_call *call = &rewriting->program.calls[rewriting->program.call_count++];
    *call = (struct program_call){.layer = *layer,
                                  .inputs = {x, y, -1, -1, -1},
                                  .weight = -1,
                                  .bias = -1,
                                  .module = base->module,
                                  .parametric = base->parametric,
                                  .without_batch = base->without_batch,
                                  .other = base->other,
                                  .line = base->line,
                                  .name = mem_printf("%s.%s", base->name, name)};
    if (matrix >= 0) {
        const struct module *owner = &rewriting->made.modules[base->module];
        call->module = owner->children[matrix];
        call->weight = rewriting->made.modules[call->module].parameters[0];
        call->leaf = true;
    }
    return rewriting->program.call_count;
}

/* Adds the calls of an adapter; returns the value of the sum. The scale stands between the
 * matrices, where it has the fewest elements. */
static int add_adapter(struct rewriting *rewriting, const struct program_call *base, double scale)
{
    const struct layer linear = {.kind = OP_LINEAR}, sum = {.kind = OP_ADD};
    const bool embedding = base->layer.kind == OP_EMBEDDING;
    const struct layer scaled = {.kind = OP_SCALE, .attrs.scale = {scale, 0}};
    int y = rewriting->program.call_count, x = base->inputs[0];
    if (rewriting->lora->dropout > 0 && !embedding) {
        struct layer drop = {.kind = OP_DROPOUT};
        drop.attrs.dropout.p = rewriting->lora->dropout;
        drop.attrs.dropout.stream = rewriting->dropouts++;
        x = add_call(rewriting, base, -1, &drop, "lora_dropout", x, -1);
    }
    x = add_call(rewriting, base, 0, embedding ? &base->layer : &linear, "lora_A", x, -1);
    x = add_call(rewriting, base, -1, &scaled, "lora_scale", x, -1);
    x = add_call(rewriting, base, 1, &linear, "lora_B", x, -1);
    return add_call(rewriting, base, -1, &sum, "lora_sum", y, x);
}

static int moved_to(const int *numbers, int number)
{
    return number >= 0 ? numbers[number] : number;
}

static void move_calls(struct rewriting *rewriting)
{
    const struct model_program *from = rewriting->old->program;
    struct model_program *to = &rewriting->program;
    for (int i = 0; i < from->call_count; i++) {
        struct program_call *call = &to->calls[to->call_count++];
        *call = from->calls[i];
        call->module = rewriting->module[call->module];
        call->weight = moved_to(rewriting->parameter, call->weight);
        call->bias = moved_to(rewriting->parameter, call->bias);
        for (int k = 0; k < LAYER_MAX_TENSORS; k++)
            call->inputs[k] = moved_to(rewriting->value, call->inputs[k]);
        if (call->layer.kind == OP_BATCH_NORM)
            for (int k = 0; k < LAYER_MAX_BUFFERS; k++)
                call->buffers[k] = rewriting->parameter[call->buffers[k]];
        const struct lora_choice *choice = &rewriting->choices[from->calls[i].module];
        const struct program_call base = *call;
        bool adapted = call->leaf && choice->rank > 0;
        rewriting->value[i + 1] =
            adapted ? add_adapter(rewriting, &base, choice->scale) : to->call_count;
    }
}

/* Counts adapters and calls. */
static status_t count(struct rewriting *rewriting)
{
    const struct model *old = rewriting->old;
    int calls = old->program->call_count;
    for (int m = 0; m < old->module_count; m++)
        rewriting->adapters += rewriting->choices[m].rank > 0;
    for (int i = 0; i < old->program->call_count; i++) {
        const struct program_call *call = &old->program->calls[i];
        if (call->leaf && rewriting->choices[call->module].rank > 0) calls += CALLS;
        rewriting->dropouts += call->layer.kind == OP_DROPOUT || call->layer.kind == OP_ATTENTION;
    }
    if (calls > MODEL_MAX_CALLS ||
        old->module_count + MATRICES * rewriting->adapters > MODEL_MAX_MODULES)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "model.lora: %d adapters make the model larger than %d modules or %d "
                          "calls",
                          rewriting->adapters, MODEL_MAX_MODULES, MODEL_MAX_CALLS);
    rewriting->program.calls = mem_alloc_array((size_t)calls, sizeof *rewriting->program.calls);
    rewriting->program.call_count = 0;
    rewriting->program.call_capacity = calls;
    return NULL;
}

status_t model_adapt(struct model *model, const struct model_lora *lora)
{
    size_t modules = (size_t)model->module_count, values = (size_t)model->program->call_count + 1;
    AUTO_FREE struct lora_choice *choices = mem_alloc_array(modules, sizeof *choices);
    AUTO_FREE int *module = mem_alloc_array(modules, sizeof *module);
    AUTO_FREE int *parameter = mem_alloc_array((size_t)model->parameter_count + 1, sizeof(int));
    AUTO_FREE int *value = mem_alloc_array(values, sizeof *value);
    struct rewriting rewriting = {.old = model,
                                  .made = *model,
                                  .lora = lora,
                                  .choices = choices,
                                  .program = *model->program,
                                  .module = module,
                                  .parameter = parameter,
                                  .value = value};
    TRY(lora_choose(model, lora, choices));
    TRY(count(&rewriting));
    move_modules(&rewriting);
    move_calls(&rewriting);
    free(model->modules);
    free(model->parameters);
    free(model->program->calls);
    *model->program = rewriting.program;
    *model = rewriting.made;
    return NULL;
}

/* A path with all numbers as "*". */
static char *path_without_numbers(const char *path)
{
    struct buf text = {0};
    while (*path != '\0') {
        size_t length = strcspn(path, "."), digits = strspn(path, "0123456789");
        if (digits == length) buf_add_char(&text, '*');
        else buf_printf(&text, "%.*s", (int)length, path);
        path += length;
        if (*path == '.') buf_add_char(&text, *path++);
    }
    return buf_take(&text);
}

bool model_describe_adapters(const struct model *model, struct buf *text)
{
    enum { SHOWN = 16 };
    char *paths[SHOWN] = {0};
    int counts[SHOWN] = {0}, kinds = 0, all = 0, more = 0;
    for (int p = 0; p < model->parameter_count; p++) {
        const struct module *matrix = &model->modules[model->parameters[p].module];
        if (!model->parameters[p].adapter || (strcmp(matrix->name, names[false][0]) != 0 &&
                                              strcmp(matrix->name, names[true][0]) != 0))
            continue;
        char *path = path_without_numbers(model->modules[matrix->parent].path);
        int k = 0;
        while (k < kinds && strcmp(paths[k], path) != 0) k++;
        all++;
        if (k < SHOWN) counts[k]++;
        else more++;
        if (k == kinds && kinds < SHOWN) paths[kinds++] = path;
        else free(path);
    }
    if (all > 0) buf_printf(text, "%d module%s: ", all, all == 1 ? "" : "s");
    for (int k = 0; k < kinds; k++) {
        buf_printf(text, counts[k] > 1 ? "%s%s (%d)" : "%s%s", k > 0 ? ", " : "", paths[k],
                   counts[k]);
        free(paths[k]);
    }
    if (more > 0) buf_printf(text, " and %d more", more);
    return all > 0;
}
