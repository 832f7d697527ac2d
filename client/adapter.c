/* See rewrite.h. */
#include "rewrite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "hf/peft.h"

bool adapter_given(const Fsdpd__V1__ModelSpec *model)
{
    return model->lora != NULL && model->lora->rank > 0;
}

bool adapter_transposed(const Fsdpd__V1__ModelSpec *model)
{
    return strstr(model->text, "Conv1D(") != NULL;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), size = strlen(end);
    return length >= size && strcmp(text + length - size, end) == 0;
}

/* As model.lora names modules: a path, its end behind a dot, or a pattern of paths. */
static bool names_module(const char *name, const char *path)
{
    if (strpbrk(name, "*?[") != NULL) return text_glob_match(name, path);
    size_t length = strlen(path), size = strlen(name);
    return ends_with(path, name) && (length == size || path[length - size - 1] == '.');
}

static double alpha_of(const Fsdpd__V1__LoraSpec *lora, const char *module)
{
    for (size_t i = 0; i < lora->n_alpha_pattern; i++) {
        const Fsdpd__V1__LoraRule *rule = lora->alpha_pattern[i];
        if (rule->match[0] == '^' ? strcmp(rule->match + 1, module) == 0
                                  : names_module(rule->match, module))
            return rule->value;
    }
    return lora->alpha;
}

double adapter_scale(const Fsdpd__V1__LoraSpec *lora, const char *module, int64_t rank)
{
    return alpha_of(lora, module) / (lora->rslora ? sqrt((double)rank) : (double)rank);
}

/* The outermost module around a tensor that was saved whole, for the caller to free; or NULL. */
static char *saved_module(const Fsdpd__V1__LoraSpec *lora, const char *tensor)
{
    static const char *const heads[] = {"classifier", "score"};
    for (const char *dot = tensor; (dot = strchr(dot, '.')) != NULL; dot++) {
        char *path = mem_strndup(tensor, (size_t)(dot - tensor));
        bool saved = false;
        for (size_t i = 0; i < COUNT_OF(heads); i++) saved |= names_module(heads[i], path);
        for (size_t i = 0; i < lora->n_modules_to_save; i++)
            saved |= names_module(lora->modules_to_save[i], path);
        if (saved) return path;
        free(path);
    }
    return NULL;
}

bool adapter_has(const Fsdpd__V1__LoraSpec *lora, const char *tensor)
{
    struct peft_matrix matrix;
    if (peft_find_matrix(tensor, &matrix)) return true;
    AUTO_FREE char *saved = saved_module(lora, tensor);
    return saved != NULL;
}

static void add_name(struct peft_names *names, const char *name)
{
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->items[i], name) == 0) return;
    names->items = mem_resize_array(names->items, (size_t)names->count + 1, sizeof *names->items);
    names->items[names->count++] = mem_strdup(name);
}

/* Peft gets a rule for each module that has another value. */
static void add_rule(struct peft_rules *rules, const char *module, double value, double usual)
{
    if (value == usual) return;
    rules->items = mem_resize_array(rules->items, (size_t)rules->count + 1, sizeof *rules->items);
    rules->items[rules->count++] = (struct peft_rule){mem_strdup(module), value};
}

static void rules_deinit(struct peft_rules *rules)
{
    for (int i = 0; i < rules->count; i++) free(rules->items[i].match);
    free(rules->items);
}

static void names_deinit(struct peft_names *names)
{
    for (int i = 0; i < names->count; i++) free(names->items[i]);
    free(names->items);
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

/* Whether the last parts of the paths name no other module that has parameters. */
static bool ends_suffice(const struct safetensors_header *header, const struct peft_names *paths)
{
    for (int i = 0; i < header->count; i++) {
        AUTO_FREE char *module = mem_strdup(header->entries[i].name);
        bool named = false, listed = false;
        if (strrchr(module, '.') != NULL) *strrchr(module, '.') = '\0';
        for (int k = 0; k < paths->count; k++) {
            named |= strcmp(last_part(paths->items[k]), last_part(module)) == 0;
            listed |= strcmp(paths->items[k], module) == 0;
        }
        if (named && !listed) return false;
    }
    return true;
}

void adapter_describe(const Fsdpd__V1__ModelSpec *model, const struct safetensors_header *header,
                      const char *architecture, struct buf *out)
{
    const Fsdpd__V1__LoraSpec *lora = model->lora;
    AUTO(names_deinit) struct peft_names paths = {0}, ends = {0}, saved = {0};
    AUTO(rules_deinit) struct peft_rules ranks = {0}, alphas = {0};
    for (int i = 0; i < header->count; i++) {
        const char *name = header->entries[i].name;
        struct peft_matrix matrix;
        if (peft_find_matrix(name, &matrix) && matrix.place == 0) {
            AUTO_FREE char *path = mem_strndup(name, matrix.module);
            add_name(&paths, path);
            add_name(&ends, last_part(path));
            add_rule(&ranks, path, (double)header->entries[i].dims[matrix.embedding], lora->rank);
            add_rule(&alphas, path, alpha_of(lora, path), lora->alpha);
            continue;
        }
        AUTO_FREE char *module = saved_module(lora, name);
        if (module != NULL) add_name(&saved, module);
    }
    const struct peft_config config = {.base = model->hf,
                                       .architecture = architecture,
                                       .rank = lora->rank,
                                       .alpha = lora->alpha,
                                       .dropout = lora->dropout,
                                       .rslora = lora->rslora,
                                       .transposed = adapter_transposed(model),
                                       .targets = ends_suffice(header, &paths) ? ends : paths,
                                       .saved = saved,
                                       .ranks = ranks,
                                       .alphas = alphas};
    peft_config_write(&config, out);
}
