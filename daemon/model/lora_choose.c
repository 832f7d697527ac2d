/* From names and patterns of modules to adapters: PEFT's rules. Pure; any thread. */
#include "model/lora_choose.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "model/program.h"

enum { NAMES_SHOWN = 20 };

static bool has_type(const struct model *model, int module, const char *type)
{
    return strcmp(model->modules[module].type, type) == 0;
}

static bool is_linear(const struct model *model, int module)
{
    return has_type(model, module, "Linear") || has_type(model, module, "Conv1D");
}

static bool is_embedding(const struct model *model, int module)
{
    return has_type(model, module, "Embedding");
}

static bool can_be_adapted(const struct model *model, int module)
{
    return is_linear(model, module) || is_embedding(model, module);
}

/* Of the matrix of a module that can be adapted. */
static void find_sides(const struct model *model, int module, int64_t *inputs, int64_t *outputs)
{
    bool transposed = !has_type(model, module, "Linear");
    const struct module *of = &model->modules[module];
    const int64_t *dims = model->parameters[of->parameters[0]].type.dims;
    *inputs = dims[transposed ? 0 : 1];
    *outputs = dims[transposed ? 1 : 0];
}

/* Whether `name` is the path, the end of it behind a dot, or a pattern of it. */
static bool names_module(const char *name, const char *path)
{
    if (strpbrk(name, "*?[") != NULL) return text_glob_match(name, path);
    size_t name_length = strlen(name), length = strlen(path);
    if (name_length > length || strcmp(path + length - name_length, name) != 0) return false;
    return name_length == length || path[length - name_length - 1] == '.';
}

/* "; did you mean 'q_proj'?", or the names that there are. The caller frees. */
static char *suggest(const struct model *model, const char *name, bool target)
{
    size_t count = 0;
    AUTO_FREE const char **names = mem_alloc_array(2 * (size_t)model->module_count, sizeof *names);
    for (int m = 1; m < model->module_count; m++) {
        if (target && !can_be_adapted(model, m)) continue;
        names[count++] = model->modules[m].name;
        names[count++] = model->modules[m].path;
    }
    struct buf text = {0};
    const char *nearest = name != NULL ? text_nearest(name, names, count) : NULL;
    if (nearest != NULL) {
        buf_printf(&text, "; did you mean '%s'?", nearest);
        return buf_take(&text);
    }
    int shown = 0;
    for (size_t i = 0; i < count && shown <= NAMES_SHOWN; i += 2) {
        bool seen = isdigit((unsigned char)names[i][0]) != 0;
        for (size_t k = 0; k < i && !seen; k += 2) seen = strcmp(names[k], names[i]) == 0;
        if (seen) continue;
        if (shown++ == NAMES_SHOWN) buf_add_text(&text, ", ...");
        else buf_printf(&text, "%s%s", shown == 1 ? "; there are " : ", ", names[i]);
    }
    return buf_take(&text);
}

/* The linear module that makes the scores of a model of tokens, or -1. */
static int find_head(const struct model *model)
{
    const struct model_program *program = model->program;
    int value = program->calls[program->call_count - 1].inputs[0];
    if (model->target != TARGET_TOKEN) return -1;
    while (value > 0) {
        const struct program_call *call = &program->calls[value - 1];
        enum op_kind kind = call->layer.kind;
        if (call->leaf && kind == OP_LINEAR) return call->module;
        if (kind != OP_SCALE && kind != OP_TANH && kind != OP_LOG_SOFTMAX && kind != OP_DROPOUT)
            return -1;
        value = call->inputs[0];
    }
    return -1;
}

static status_t set_rank(const struct model *model, int module, double rank,
                         struct lora_choice *choice)
{
    find_sides(model, module, &choice->inputs, &choice->outputs);
    int64_t inputs = choice->inputs, outputs = choice->outputs;
    int64_t most = inputs < outputs ? inputs : outputs;
    choice->embedding = is_embedding(model, module);
    if (rank >= 1 && rank <= (double)most && rank == floor(rank)) {
        choice->rank = (int)rank;
        return NULL;
    }
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected an integer from 1 to %lld, the smaller side of %s (%lld inputs, "
                      "%lld outputs), found %g",
                      (long long)most, model->modules[module].path, (long long)inputs,
                      (long long)outputs, rank);
}

/* Marks the modules that one name of a list means; refuses a name that means none, unless this is
 * lenient. */
static status_t mark(const struct model *model, const char *name, bool target, bool lenient,
                     bool *marked)
{
    int found = 0, other = -1;
    for (int m = 1; m < model->module_count; m++) {
        if (!names_module(name, model->modules[m].path)) continue;
        if (target && !can_be_adapted(model, m)) {
            other = m;
            continue;
        }
        found++;
        marked[m] = true;
    }
    if (other >= 0 && (found == 0 || strpbrk(name, "*?[") == NULL))
        return status_new(STATUS_UNIMPLEMENTED,
                          "'%s' is %s, of the type %s; only Linear, Conv1D and Embedding can be "
                          "adapted, yet",
                          name, model->modules[other].path, model->modules[other].type);
    if (found > 0 || lenient) return NULL;
    AUTO_FREE char *hint = suggest(model, name, target);
    return status_new(STATUS_INVALID_ARGUMENT, "'%s' matches no %smodule of the model%s", name,
                      target ? "Linear, Conv1D or Embedding " : "", hint);
}

static status_t mark_all(const struct model *model, const struct model_lora *lora,
                         const struct lora_names *names, bool target, const char *key, bool *marked)
{
    for (int i = 0; i < names->count; i++)
        TRY(status_wrap(mark(model, names->items[i], target, lora->lenient, marked),
                        "model.lora.%s", key));
    return NULL;
}

static status_t mark_targets(const struct model *model, const struct model_lora *lora,
                             bool *targets)
{
    const struct lora_names *names = &lora->targets;
    if (names->count == 0) {
        AUTO_FREE char *hint = suggest(model, NULL, true);
        return status_new(STATUS_INVALID_ARGUMENT,
                          "model.lora.targets: is missing, as PEFT has no default for this model; "
                          "expected all-linear or names of Linear, Conv1D or Embedding modules%s",
                          hint);
    }
    if (names->count > 1 || strcmp(names->items[0], "all-linear") != 0) {
        TRY(mark_all(model, lora, names, true, "targets", targets));
        for (int m = 1; m < model->module_count; m++)
            if (targets[m]) return NULL;
        AUTO_FREE char *hint = suggest(model, NULL, true);
        return status_new(STATUS_INVALID_ARGUMENT,
                          "model.lora.targets: no Linear, Conv1D or Embedding module of the model "
                          "matches%s",
                          hint);
    }
    int head = find_head(model);
    for (int m = 1; m < model->module_count; m++) targets[m] = m != head && is_linear(model, m);
    return NULL;
}

/* The number of the layer that the module is in: the first part of its path that is a number and
 * has something behind it; -1 outside of layers. */
static int64_t layer_of(const char *path)
{
    int64_t number;
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        AUTO_FREE char *part = mem_strndup(path, (size_t)(dot - path));
        if (isdigit((unsigned char)part[0]) && text_parse_i64(part, &number)) return number;
    }
    return -1;
}

/* Takes back what is in no wanted layer. */
static status_t keep_layers(const struct model *model, const struct lora_names *layers,
                            bool *targets)
{
    AUTO_FREE bool *wanted = mem_alloc_array((size_t)model->module_count, sizeof *wanted);
    for (int i = 0; i < layers->count; i++) {
        int64_t number = -1;
        bool found = false;
        if (text_parse_i64(layers->items[i], &number) && number >= 0)
            for (int m = 1; m < model->module_count; m++)
                if (targets[m] && layer_of(model->modules[m].path) == number)
                    found = wanted[m] = true;
        if (!found)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "model.lora.layers: no target is in a layer '%s'; expected numbers "
                              "of layers, from 0",
                              layers->items[i]);
    }
    if (layers->count > 0) memcpy(targets, wanted, (size_t)model->module_count * sizeof *wanted);
    return NULL;
}

static status_t mark_saved(const struct model *model, const struct model_lora *lora, bool *saved)
{
    static const char *const heads[] = {"classifier", "score"};
    TRY(mark_all(model, lora, &lora->save, false, "modules_to_save", saved));
    for (int m = 1; m < model->module_count; m++) {
        for (size_t i = 0; i < COUNT_OF(heads); i++)
            saved[m] = saved[m] || names_module(heads[i], model->modules[m].path);
        saved[m] = saved[m] || saved[model->modules[m].parent];
    }
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        int owner = parameter->tied_to;
        if (owner >= 0 && saved[parameter->module] != saved[model->parameters[owner].module])
            return status_new(STATUS_UNIMPLEMENTED,
                              "model.lora.modules_to_save: %s and %s share their memory, so that "
                              "one cannot be trained without the other",
                              parameter->name, model->parameters[owner].name);
    }
    return NULL;
}

static bool rule_matches(const struct lora_rule *rule, const char *path)
{
    const char *match = rule->match;
    return match[0] == '^' ? strcmp(match + 1, path) == 0 : names_module(match, path);
}

/* The value of the first rule that matches; a rule that matches no adapter is refused. */
static status_t apply_rules(const struct model *model, const struct lora_rule *rules, int count,
                            const bool *targets, bool lenient, const char *key, double *values)
{
    for (int i = count - 1; i >= 0; i--) {
        bool found = lenient;
        for (int m = 1; m < model->module_count; m++)
            if (targets[m] && rule_matches(&rules[i], model->modules[m].path)) {
                found = true;
                values[m] = rules[i].value;
            }
        if (!found)
            return status_new(STATUS_INVALID_ARGUMENT, "model.lora.%s: '%s' matches no target", key,
                              rules[i].match);
    }
    return NULL;
}

/* By module: whether it gets an adapter. */
static status_t choose_targets(const struct model *model, const struct model_lora *lora,
                               const struct lora_choice *choices, bool *targets)
{
    AUTO_FREE bool *excluded = mem_alloc_array((size_t)model->module_count, sizeof *excluded);
    TRY(mark_targets(model, lora, targets));
    TRY(mark_all(model, lora, &lora->exclude, false, "exclude", excluded));
    int left = 0;
    TRY(keep_layers(model, &lora->layers, targets));
    for (int m = 1; m < model->module_count; m++) {
        targets[m] = targets[m] && !excluded[m] && !choices[m].saved;
        left += targets[m];
    }
    if (left > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "model.lora.targets: all that match are excluded or saved as they are");
}

static status_t choose(const struct model *model, const struct model_lora *lora,
                       struct lora_choice *choices)
{
    size_t count = (size_t)model->module_count;
    AUTO_FREE bool *saved = mem_alloc_array(count, sizeof *saved);
    AUTO_FREE bool *targets = mem_alloc_array(count, sizeof *targets);
    AUTO_FREE double *ranks = mem_alloc_array(count, sizeof *ranks);
    AUTO_FREE double *alphas = mem_alloc_array(count, sizeof *alphas);
    TRY(mark_saved(model, lora, saved));
    for (size_t m = 0; m < count; m++) {
        choices[m].saved = saved[m];
        ranks[m] = lora->rank;
        alphas[m] = lora->alpha;
    }
    TRY(choose_targets(model, lora, choices, targets));
    TRY(apply_rules(model, lora->ranks, lora->rank_count, targets, lora->lenient, "rank_pattern",
                    ranks));
    TRY(apply_rules(model, lora->alphas, lora->alpha_count, targets, lora->lenient, "alpha_pattern",
                    alphas));
    for (int m = 0; m < model->module_count; m++) {
        if (!targets[m]) continue;
        TRY(status_wrap(set_rank(model, m, ranks[m], &choices[m]), "model.lora.%s",
                        ranks[m] == lora->rank ? "rank" : "rank_pattern"));
        choices[m].scale = alphas[m] / (lora->rslora ? sqrt(ranks[m]) : ranks[m]);
    }
    return NULL;
}

status_t lora_choose(const struct model *model, const struct model_lora *lora,
                     struct lora_choice *choices)
{
    status_t status = choose(model, lora, choices);
    return lora->lenient ? status_wrap(status, "model.adapter") : status;
}
