/*
 * The words of enums: those of the table of keys where a job file has them, those of workers'
 * states, otherwise the API's names. Pure functions, any thread.
 */
#include <string.h>

#include "proto/message.h"
#include "spec/spec.h"

static const char *const worker_states[SPEC_CHOICES_MAX] = {"idle", "busy", "starting", "draining",
                                                            "drained"};

/* In the order of the values, from 1. NULL: the type has none of its own. */
static const char *const *find_words(const ProtobufCEnumDescriptor *type)
{
    for (size_t i = 0; i < spec_key_count; i++)
        if (spec_keys[i].values == type) return spec_keys[i].choices;
    return type == &fsdpd__v1__worker_state__descriptor ? worker_states : NULL;
}

const char *spec_word(const ProtobufCEnumDescriptor *type, int value)
{
    const char *const *words = find_words(type);
    if (value == 0) return NULL;
    if (words == NULL) return message_enum_name(type, value);
    return value > 0 && value <= SPEC_CHOICES_MAX ? words[value - 1] : NULL;
}

int spec_word_value(const ProtobufCEnumDescriptor *type, const char *word)
{
    for (unsigned i = 0; i < type->n_values; i++) {
        const char *found = spec_word(type, type->values[i].value);
        if (found != NULL && strcmp(found, word) == 0) return type->values[i].value;
    }
    return 0;
}
