/* SPEC_RULES: numbers for modules that patterns name, model.lora.rank_pattern; see spec.h. */
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "spec/internal.h"

static status_t read_rule(const struct yamldoc_node *item, struct spec_field field)
{
    char text[72];
    double value = 0;
    bool scalar = item->kind == YAMLDOC_SCALAR;
    if (!scalar || item->quoted || !text_parse_f64(item->text, &value))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected a number%s%s", item->key,
                          scalar ? ", found " : "",
                          scalar ? yamldoc_excerpt(item->text, text) : "");
    Fsdpd__V1__LoraRule *rule = MESSAGE_NEW(rule, fsdpd__v1__lora_rule__init);
    rule->match = mem_strdup(item->key);
    rule->value = value;
    spec_field_add_message(field, rule);
    return NULL;
}

status_t spec_read_rules(const struct spec_key *key, const struct yamldoc_node *node,
                         struct spec_field field)
{
    if (yamldoc_is_null(node)) return NULL;
    if (node->kind != YAMLDOC_MAPPING) {
        AUTO(buf_deinit) struct buf expected = {0};
        spec_key_expected(key, &expected);
        return status_new(STATUS_INVALID_ARGUMENT, "expected %s, found %s", buf_text(&expected),
                          node->kind == YAMLDOC_SEQUENCE ? "a list" : "a single value");
    }
    for (int i = 0; i < node->item_count; i++) TRY(read_rule(node->items[i], field));
    return spec_check_rules(key, field);
}

status_t spec_check_rules(const struct spec_key *key, struct spec_field field)
{
    size_t count;
    Fsdpd__V1__LoraRule *const *rules = (void *)spec_field_messages(field, &count);
    AUTO_FREE char **names = mem_alloc_array(count + 1, sizeof *names);
    for (size_t i = 0; i < count; i++) names[i] = rules[i]->match;
    TRY(spec_check_list(key, names, count));
    const struct spec_key number = {.type = SPEC_NUMBER, .min = key->min, .max = key->max};
    for (size_t i = 0; i < count; i++)
        TRY(status_wrap(spec_check_number(&number, rules[i]->value, NULL), "%s", rules[i]->match));
    return NULL;
}

void spec_print_rules(struct spec_field field, struct buf *out)
{
    size_t count;
    char number[32];
    Fsdpd__V1__LoraRule *const *rules = (void *)spec_field_messages(field, &count);
    buf_add_char(out, '{');
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_add_text(out, ", ");
        yamldoc_print_text(out, rules[i]->match);
        buf_printf(out, ": %s", spec_format_number(rules[i]->value, number));
    }
    buf_add_char(out, '}');
}
