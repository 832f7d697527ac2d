/* SPEC_PHASES: schedules that follow each other, and the rules of one; see spec.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "spec/internal.h"

/* What a phase has besides a schedule's keys. */
static const struct spec_key own_keys[] = {
    {"schedule.steps", SPEC_INTEGER, .fallback = "0", .min = 0, .max = 1e12},
    {"schedule.factor", SPEC_NUMBER, .fallback = "1", .min = 0, .max = 1e6},
};

static const struct spec_key *find_key(const char *word)
{
    AUTO_FREE char *name = mem_printf("schedule.%s", word);
    for (size_t i = 0; i < COUNT_OF(own_keys); i++)
        if (strcmp(own_keys[i].key, name) == 0) return &own_keys[i];
    for (size_t i = 0; i < spec_key_count; i++)
        if (strcmp(spec_keys[i].key, name) == 0) return &spec_keys[i];
    return NULL;
}

/* Whether the text is a value of the key's type; sets it. */
static bool set_value(const struct spec_key *key, const struct yamldoc_node *item,
                      struct spec_field field)
{
    double number = strcmp(item->text, "true") == 0;
    if (item->kind != YAMLDOC_SCALAR) return false;
    if (key->type == SPEC_CHOICE) {
        spec_field_set_text(field, item->text);
        return spec_field_number(field) != 0;
    }
    if (item->quoted) return false;
    if (key->type == SPEC_BOOLEAN) {
        if (number == 0 && strcmp(item->text, "false") != 0) return false;
    } else if (!text_parse_f64(item->text, &number)) {
        return false;
    } else {
        status_t status = spec_check_number(key, number, item->text);
        bool refused = status != NULL;
        status_free(status);
        if (refused) return false;
    }
    spec_field_set_number(field, number);
    return true;
}

static status_t read_phase(const struct yamldoc_node *node, Fsdpd__V1__ScheduleSpec *phase)
{
    char text[72];
    Fsdpd__V1__JobSpec one = FSDPD__V1__JOB_SPEC__INIT;
    one.schedule = phase;
    for (int i = 0; i < node->item_count; i++) {
        const struct yamldoc_node *item = node->items[i];
        const struct spec_key *key = find_key(item->key);
        if (key == NULL || key->type == SPEC_PHASES)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: unknown key; expected steps, factor or a key of a schedule",
                              yamldoc_excerpt(item->key, text));
        if (set_value(key, item, spec_field_find(&one, key, false))) continue;
        AUTO(buf_deinit) struct buf expected = {0};
        spec_key_expected(key, &expected);
        bool scalar = item->kind == YAMLDOC_SCALAR;
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s%s%s", item->key,
                          buf_text(&expected), scalar ? ", found " : "",
                          scalar ? yamldoc_excerpt(item->text, text) : "");
    }
    spec_complete_phase(phase);
    return NULL;
}

status_t spec_read_phases(const struct spec_key *key, const struct yamldoc_node *node,
                          Fsdpd__V1__JobSpec *spec)
{
    bool list = node->kind == YAMLDOC_SEQUENCE;
    for (int i = 0; list && i < node->item_count; i++)
        list = node->items[i]->kind == YAMLDOC_MAPPING;
    if (!list) {
        AUTO(buf_deinit) struct buf expected = {0};
        spec_key_expected(key, &expected);
        return status_new(STATUS_INVALID_ARGUMENT, "expected %s", buf_text(&expected));
    }
    for (int i = 0; i < node->item_count; i++) {
        Fsdpd__V1__ScheduleSpec *phase = MESSAGE_NEW(phase, fsdpd__v1__schedule_spec__init);
        spec_field_add_message(spec_field_find(spec, key, true), phase);
        TRY(status_wrap(read_phase(node->items[i], phase), "phase %d", i + 1));
    }
    return spec_check_phases(spec->schedule_phases, spec->n_schedule_phases);
}

void spec_complete_phase(Fsdpd__V1__ScheduleSpec *phase)
{
    Fsdpd__V1__JobSpec one = FSDPD__V1__JOB_SPEC__INIT;
    one.schedule = phase;
    spec_complete_keys(&one, "schedule.");
    for (size_t i = 0; i < COUNT_OF(own_keys); i++) {
        struct spec_field field = spec_field_find(&one, &own_keys[i], false);
        if (!spec_field_is_given(field)) spec_field_set_default(field, &own_keys[i]);
    }
}

static status_t check_phase(Fsdpd__V1__ScheduleSpec *phase, bool last)
{
    Fsdpd__V1__JobSpec one = FSDPD__V1__JOB_SPEC__INIT;
    one.schedule = phase;
    if (phase->type == FSDPD__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_STEP ||
        phase->type == FSDPD__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_PHASES)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "schedule.type: expected a schedule of one phase that counts steps, "
                          "found %s",
                          spec_word(&fsdpd__v1__schedule_type__descriptor, (int)phase->type));
    TRY(spec_check_keys(&one, "schedule."));
    for (size_t i = 0; i < COUNT_OF(own_keys); i++) {
        struct spec_field field = spec_field_find(&one, &own_keys[i], false);
        TRY(status_wrap(spec_check_number(&own_keys[i], spec_field_number(field), NULL), "%s",
                        own_keys[i].key));
    }
    if (phase->steps == 0 && !last)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "schedule.steps: is missing; only the last phase takes the rest");
    return spec_check_schedule(phase, phase->steps);
}

status_t spec_check_phases(Fsdpd__V1__ScheduleSpec *const *phases, size_t count)
{
    if (count < 1 || count > SPEC_PHASES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected 1 to %d phases, found %zu",
                          SPEC_PHASES_MAX, count);
    for (size_t i = 0; i < count; i++)
        TRY(status_wrap(check_phase(phases[i], i + 1 == count), "phase %zu", i + 1));
    return NULL;
}

status_t spec_check_schedule(const Fsdpd__V1__ScheduleSpec *schedule, uint64_t steps)
{
    const uint64_t warmup = schedule->warmup_steps;
    const uint64_t total = schedule->total_steps > 0 ? schedule->total_steps : steps;
    if (warmup > 0 && (schedule->type == FSDPD__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_ONE_CYCLE ||
                       schedule->type == FSDPD__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_PHASES))
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "schedule.warmup_steps: expected 0, as %s has a rise of its own, found "
                       "%" PRIu64,
                       spec_word(&fsdpd__v1__schedule_type__descriptor, (int)schedule->type),
                       warmup),
            (struct status_details){.field = "schedule.warmup_steps"});
    if (schedule->total_steps > 0 && schedule->total_steps <= warmup)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "schedule.total_steps: expected more than schedule.warmup_steps, which "
                       "are part of them: %" PRIu64 ", found %" PRIu64,
                       warmup, schedule->total_steps),
            (struct status_details){.field = "schedule.total_steps"});
    if (schedule->type == FSDPD__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_WSD && total > 0 &&
        (warmup > total || schedule->decay_steps > total - warmup))
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "schedule.decay_steps: expected at most the %" PRIu64
                                      " steps after the warm-up, found %" PRIu64,
                                      warmup > total ? 0 : total - warmup, schedule->decay_steps),
                           (struct status_details){.field = "schedule.decay_steps"});
    return NULL;
}
