/* SPEC_HELD_OUT: data.validation, sets that evaluations read; see spec.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "spec/internal.h"

enum { MOST = 1000000000 };

static status_t read_count(const struct yamldoc_node *item, uint64_t *value)
{
    double number = -1;
    bool read =
        item->kind == YAMLDOC_SCALAR && !item->quoted && text_parse_f64(item->text, &number);
    if (!read || !(number >= 0 && number <= MOST) || number != floor(number))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected an integer from 0 to %d",
                          item->key, MOST);
    *value = (uint64_t)number;
    return NULL;
}

static void set_text(char **text, char *value)
{
    if (*text != protobuf_c_empty_string) free(*text);
    *text = value;
}

static status_t read_set(const struct yamldoc_node *node, const Fsdpd__V1__JobFile *sent,
                         Fsdpd__V1__HeldOutSet *set)
{
    for (int i = 0; i < node->item_count; i++) {
        const struct yamldoc_node *item = node->items[i];
        bool name = strcmp(item->key, "name") == 0;
        char text[72];
        if (name || strcmp(item->key, "path") == 0) {
            if (item->kind != YAMLDOC_SCALAR)
                return status_new(STATUS_INVALID_ARGUMENT, "%s: expected a text", item->key);
            set_text(name ? &set->name : &set->path,
                     name ? mem_strdup(item->text) : spec_expand_home(sent, item->text));
        } else if (strcmp(item->key, "every_steps") == 0) {
            TRY(read_count(item, &set->every_steps));
            set->_every_steps_case = FSDPD__V1__HELD_OUT_SET___EVERY_STEPS_EVERY_STEPS;
        } else if (strcmp(item->key, "batches") == 0) {
            TRY(read_count(item, &set->batches));
            set->_batches_case = FSDPD__V1__HELD_OUT_SET___BATCHES_BATCHES;
        } else {
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: unknown key; expected name, path, every_steps or batches",
                              yamldoc_excerpt(item->key, text));
        }
    }
    return NULL;
}

status_t spec_read_held_out(const struct spec_key *key, const struct yamldoc_node *node,
                            const Fsdpd__V1__JobFile *sent, Fsdpd__V1__DataSpec *data)
{
    TRY(spec_expect_mappings(key, node));
    data->validation = mem_alloc_array((size_t)node->item_count + 1, sizeof *data->validation);
    for (int i = 0; i < node->item_count; i++) {
        Fsdpd__V1__HeldOutSet *set = MESSAGE_NEW(set, fsdpd__v1__held_out_set__init);
        data->validation[data->n_validation++] = set;
        TRY(status_wrap(read_set(node->items[i], sent, set), "set %d", i + 1));
    }
    return spec_check_held_out(data);
}

/* It is a label of metrics, and a part of the names of curves. */
static status_t check_name(const Fsdpd__V1__DataSpec *data, size_t set)
{
    static const char *const taken[] = {"train", "training", "test", "validation"};
    static const struct spec_key name_key = {.type = SPEC_NAME};
    const char *name = data->validation[set]->name;
    TRY(status_wrap(spec_check_text(&name_key, name), "name"));
    for (size_t i = 0; i < COUNT_OF(taken); i++)
        if (strcmp(name, taken[i]) == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "name: expected another than '%s', which every job has", name);
    for (size_t i = 0; i < set; i++)
        if (strcmp(name, data->validation[i]->name) == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "name: expected another than '%s', the name of set %zu", name, i + 1);
    return NULL;
}

status_t spec_check_held_out(const Fsdpd__V1__DataSpec *data)
{
    if (data->n_validation > SPEC_HELD_OUT_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d sets, found %zu",
                          SPEC_HELD_OUT_MAX, data->n_validation);
    for (size_t i = 0; i < data->n_validation; i++) {
        const Fsdpd__V1__HeldOutSet *set = data->validation[i];
        TRY(status_wrap(check_name(data, i), "set %zu", i + 1));
        if (set->path[0] == '\0')
            return status_new(STATUS_INVALID_ARGUMENT, "set %zu: path: is missing", i + 1);
        TRY(status_wrap(spec_check_path(set->path), "set %zu: path", i + 1));
        if (set->every_steps > UINT64_C(1000000000000) || set->batches > MOST)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "set %zu: expected every_steps of at most 1e12 and batches of at "
                              "most %d",
                              i + 1, MOST);
    }
    return NULL;
}

void spec_print_held_out(const Fsdpd__V1__DataSpec *data, struct buf *out)
{
    buf_add_char(out, '[');
    for (size_t i = 0; i < data->n_validation; i++) {
        const Fsdpd__V1__HeldOutSet *set = data->validation[i];
        buf_add_text(out, i > 0 ? ", {name: " : "{name: ");
        yamldoc_print_text(out, set->name);
        buf_add_text(out, ", path: ");
        yamldoc_print_text(out, set->path);
        buf_printf(out, ", every_steps: %llu, batches: %llu}", (unsigned long long)set->every_steps,
                   (unsigned long long)set->batches);
    }
    buf_add_char(out, ']');
}

void spec_complete_held_out(Fsdpd__V1__JobSpec *spec)
{
    for (size_t i = 0; i < spec->data->n_validation; i++) {
        Fsdpd__V1__HeldOutSet *set = spec->data->validation[i];
        if (set->_every_steps_case == 0) set->every_steps = spec->train->evaluate_interval;
        if (set->_batches_case == 0) set->batches = spec->train->evaluate_batches;
        set->_every_steps_case = FSDPD__V1__HELD_OUT_SET___EVERY_STEPS_EVERY_STEPS;
        set->_batches_case = FSDPD__V1__HELD_OUT_SET___BATCHES_BATCHES;
    }
}

const Fsdpd__V1__HeldOutSet *spec_find_held_out(const Fsdpd__V1__DataSpec *data, const char *name)
{
    for (size_t i = 0; i < data->n_validation; i++)
        if (strcmp(data->validation[i]->name, name) == 0) return data->validation[i];
    return NULL;
}

void spec_take_set(char *text, struct spec_field set)
{
    const char *slash = strrchr(text, '/');
    if (slash == NULL || slash == text) return;
    bool loss = strcmp(slash, "/val_loss") == 0;
    if (!loss && strcmp(slash, "/accuracy") != 0) return;
    AUTO_FREE char *name = mem_strndup(text, (size_t)(slash - text));
    spec_field_set_text(set, name);
    strcpy(text, loss ? "loss" : "accuracy"); /* shorter than what it was */
}
