/*
 * "did you mean": suggestions for keys that a job file does not have, and for a value where a
 * section is expected.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "spec/internal.h"

/* What other trainers and PyTorch's arguments call a key. */
static const struct {
    const char *word, *key;
} other_names[] = {
    {"learning_rate", "optimizer.lr"},
    {"max_lr", "optimizer.lr"},
    {"betas", "optimizer.beta1"},
    {"epsilon", "optimizer.eps"},
    {"lr_scheduler", "schedule.type"},
    {"lr_scheduler_type", "schedule.type"},
    {"scheduler", "schedule.type"},
    {"num_warmup_steps", "schedule.warmup_steps"},
    {"num_training_steps", "schedule.total_steps"},
    {"num_decay_steps", "schedule.decay_steps"},
    {"min_lr_ratio", "schedule.end_factor"},
    {"min_lr_rate", "schedule.end_factor"},
    {"lr_end", "schedule.end_factor"},
    {"milestones", "schedule.phases"},
    {"clip_grad_norm", "train.clip_grad_norm.max_norm"},
    {"max_grad_norm", "train.clip_grad_norm.max_norm"},
    {"gradient_clipping", "train.clip_grad_norm.max_norm"},
    {"gradient_clip_val", "train.clip_grad_norm.max_norm"},
    {"num_epochs", "train.epochs"},
    {"num_train_epochs", "train.epochs"},
    {"max_epochs", "train.epochs"},
    {"num_steps", "train.max_steps"},
    {"micro_batch_size", "train.batch_size"},
    {"per_device_train_batch_size", "train.batch_size"},
    {"eval_steps", "train.evaluate_interval"},
    {"logging_steps", "train.log_interval"},
    {"save_steps", "checkpoint.every_steps"},
    {"save_total_limit", "checkpoint.keep"},
    {"metric_for_best_model", "checkpoint.best.metric"},
    {"max_length", "data.context"},
    {"seq_length", "data.context"},
    {"sequence_length", "data.context"},
    {"dtype", "precision.param_dtype"},
    {"torch_dtype", "precision.param_dtype"},
    {"mixed_precision", "precision.param_dtype"},
    {"sharding_strategy", "fsdp.strategy"},
    {"auto_wrap_policy", "fsdp.wrap.policy"},
    {"gradient_checkpointing", "fsdp.activation_checkpointing"},
    {"world_size", "workers"},
    {"nproc_per_node", "workers"},
    {"num_gpus", "workers"},
};

const char *spec_last_word(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

static bool is_adapters(const char *key)
{
    return strncmp(key, "model.lora.", strlen("model.lora.")) == 0;
}

const char *spec_key_of_word(const char *word)
{
    const char *found = NULL;
    for (size_t i = 0; i < spec_key_count; i++)
        if (strcmp(spec_last_word(spec_keys[i].key), word) == 0 &&
            (found == NULL || (is_adapters(found) && !is_adapters(spec_keys[i].key))))
            found = spec_keys[i].key;
    if (found != NULL) return found;
    for (size_t i = 0; i < COUNT_OF(other_names); i++)
        if (strcmp(other_names[i].word, word) == 0) return other_names[i].key;
    return NULL;
}

static bool has_siblings(const char *path, size_t section)
{
    for (size_t i = 0; i < spec_key_count && section > 0; i++)
        if (strncmp(spec_keys[i].key, path, section) == 0) return true;
    return false;
}

/* The key of the same section whose last word is similar. Any two short words are, so those must
 * begin alike. */
static const char *nearest_sibling(const char *path)
{
    const char *word = spec_last_word(path), *nearest = NULL;
    size_t section = (size_t)(word - path), count = 0;
    AUTO_FREE const char **words = mem_alloc_array(spec_key_count, sizeof *words);
    for (size_t i = 0; i < spec_key_count; i++) {
        const char *key = spec_keys[i].key;
        bool sibling = strncmp(key, path, section) == 0 && spec_last_word(key) == key + section;
        if (sibling && (strlen(word) > 4 || spec_last_word(key)[0] == word[0]))
            words[count++] = spec_last_word(key);
    }
    const char *best = text_nearest(word, words, count);
    for (size_t i = 0; i < spec_key_count && best != NULL; i++)
        if (spec_last_word(spec_keys[i].key) == best) nearest = spec_keys[i].key;
    return nearest;
}

/* Appends "; the keys of train are epochs, batch_size" if there is such a section. */
static void add_siblings(struct buf *out, const char *path)
{
    size_t section = (size_t)(spec_last_word(path) - path), count = 0;
    for (size_t i = 0; i < spec_key_count && section > 0; i++) {
        const char *key = spec_keys[i].key;
        if (strncmp(key, path, section) != 0 || spec_last_word(key) != key + section) continue;
        size_t first = 0; /* a key has a row for each type that it belongs to */
        while (strcmp(spec_keys[first].key, key) != 0) first++;
        if (first < i) continue;
        if (count++ == 0) buf_printf(out, "; the keys of %.*s are ", (int)section - 1, path);
        else buf_add_text(out, ", ");
        buf_add_text(out, key + section);
    }
}

/* Suggests a key for `path`: the same last word in another section first, then a similar word. NULL
 * if there is none. */
static const char *nearest_key(const char *path)
{
    const char *same = spec_key_of_word(spec_last_word(path));
    if (same) return same;
    AUTO_FREE const char **keys = mem_alloc_array(spec_key_count, sizeof *keys);
    AUTO_FREE const char **words = mem_alloc_array(spec_key_count, sizeof *words);
    size_t section = (size_t)(spec_last_word(path) - path);
    const char *nearest = nearest_sibling(path);
    for (size_t i = 0; i < spec_key_count; i++) keys[i] = spec_keys[i].key;
    if (nearest == NULL && !has_siblings(path, section))
        nearest = text_nearest(path, keys, spec_key_count);
    for (size_t i = 0; i < spec_key_count; i++) words[i] = spec_last_word(keys[i]);
    /* Almost any word is similar to a short one. */
    bool guess = nearest == NULL && strlen(spec_last_word(path)) > 4;
    const char *word = guess ? text_nearest(spec_last_word(path), words, spec_key_count) : NULL;
    for (size_t i = 0; i < spec_key_count && word != NULL && nearest == NULL; i++)
        if (words[i] == word) nearest = keys[i];
    return nearest;
}

/* "train" is a section, as "train.epochs" is a key. Caller frees; may be NULL. */
static char *nearest_section(const char *path)
{
    AUTO_FREE const char **sections = mem_alloc_array(spec_key_count, sizeof *sections);
    size_t count = 0;
    for (size_t i = 0; i < spec_key_count; i++) {
        const char *dot = strchr(spec_keys[i].key, '.');
        if (dot != NULL)
            sections[count++] = mem_strndup(spec_keys[i].key, (size_t)(dot - spec_keys[i].key));
    }
    const char *best = text_nearest(path, sections, count);
    char *copy = best ? mem_strdup(best) : NULL;
    for (size_t i = 0; i < count; i++) free((char *)sections[i]);
    return copy;
}

char *spec_hint_key(const char *path, bool mapping)
{
    AUTO_FREE char *section = mapping ? nearest_section(path) : NULL;
    const char *nearest = section ? section : nearest_key(path);
    struct buf hint = {0};
    if (nearest != NULL) buf_printf(&hint, "; did you mean %s?", nearest);
    else add_siblings(&hint, path);
    return buf_take(&hint);
}

/* Whether a row takes the text as its value. */
static bool takes(const struct spec_key *key, const char *text)
{
    double number;
    status_t status;
    if (key->type == SPEC_INTEGER || key->type == SPEC_NUMBER) {
        if (!text_parse_f64(text, &number)) return false;
        status = spec_check_number(key, number, text);
    } else if (key->type == SPEC_CHOICE || key->type == SPEC_TEXT || key->type == SPEC_MODEL) {
        status = spec_check_text(key, text);
    } else {
        return false;
    }
    bool taken = status == NULL;
    status_free(status);
    return taken;
}

char *spec_hint_value(const char *section, const char *text)
{
    const char *named = NULL, *other = NULL; /* takes this word; takes any number or text */
    size_t length = strlen(section);
    int others = 0;
    for (size_t i = 0; i < spec_key_count && text[0] != '\0'; i++) {
        const char *key = spec_keys[i].key;
        bool below = strncmp(key, section, length) == 0 && key[length] == '.' &&
                     spec_last_word(key) == key + length + 1;
        if (!below || !takes(&spec_keys[i], text)) continue;
        bool word = spec_keys[i].type == SPEC_CHOICE || spec_keys[i].type == SPEC_MODEL;
        if (word && named == NULL) named = key;
        if (other == NULL || strcmp(other, key) != 0) others++;
        other = key;
    }
    const char *key = named != NULL ? named : others == 1 ? other : NULL;
    return key != NULL ? mem_printf("; did you mean %s?", key) : mem_strdup("");
}
