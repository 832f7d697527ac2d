/* The figures of training; see metric_table.h. Fields are found by their descriptors. */
#include "spec/metric_table.h"

#include <math.h>
#include <string.h>

#include "base/array.h"
#include "spec/metric_list.h"

#define OF_STEPS(type, field, ...)                                                                 \
    {.name = #field, .fields[METRIC_STEP] = #field, .latest = {#field}, __VA_ARGS__},
#define AT(epoch, validation)                                                                      \
    {                                                                                              \
        [METRIC_EPOCH] = (epoch), [METRIC_VALIDATION] = (validation)                               \
    }
#define SCORE(score, text)                                                                         \
    {                                                                                              \
        .name = #score, .fields = AT("scores." #score, "scores." #score),                          \
        .tags = AT("test/" #score, "validation/" #score),                                          \
        .latest = {"test_scores." #score, "val_scores." #score}, .gauge = #score, .help = (text),  \
    }

/* Append to it; CSV has its columns in this order. */
const struct metric metric_table[] = {
    /* clang-format off */
    METRICS_OF_STEPS(OF_STEPS)
    /* clang-format on */
    {.name = "train_loss",
     .fields = AT("train_loss", NULL),
     .tags = AT("train/epoch_loss", NULL),
     .latest = {"train_loss"},
     .help = "Mean loss over an epoch's training."},
    {.name = "val_loss",
     .fields = AT(NULL, "loss"),
     .tags = AT(NULL, "validation/loss"),
     .latest = {"val_loss"},
     .gauge = "validation_loss",
     .help = "Loss of the last validation, per target."},
    {.name = "test_loss",
     .fields = AT("test_loss", NULL),
     .tags = AT("test/loss", NULL),
     .latest = {"test_loss"},
     .gauge = "test_loss",
     .help = "Loss of the last evaluation."},
    {.name = "accuracy",
     .fields = AT("accuracy", "scores.accuracy"),
     .tags = AT("test/accuracy", "validation/accuracy"),
     .latest = {"accuracy", "val_scores.accuracy"},
     .gauge = "accuracy",
     .help = "Accuracy of the last evaluation or validation, 0 to 1."},
    {.name = "seconds",
     .unit = "s",
     .fields = AT("seconds", "seconds"),
     .help = "Time of an epoch, with its evaluation, or of a validation."},
    SCORE(f1, "F1 of the last evaluation or validation, 0 to 1."),
    SCORE(perplexity, "Perplexity of the last validation: e to the loss."),
    SCORE(pearson, "Pearson correlation of the last validation, -1 to 1."),
    SCORE(mse, "Mean squared error of the last validation."),
};

size_t metric_count(void)
{
    return COUNT_OF(metric_table);
}

static const ProtobufCFieldDescriptor *find(const ProtobufCMessage *message, const char *name)
{
    return protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
}

static bool is_optional(const ProtobufCFieldDescriptor *field)
{
    return field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
}

/* Of an optional field, which field is set: this one's number, or 0. */
static uint32_t *presence(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    return (uint32_t *)(void *)((char *)message + field->quantifier_offset);
}

bool metric_read(const ProtobufCMessage *message, const char *path, double *value)
{
    char name[64];
    const char *dot = strchr(path, '.');
    size_t length = dot != NULL ? (size_t)(dot - path) : strlen(path);
    if (length >= sizeof name) return false;
    memcpy(name, path, length);
    name[length] = '\0';
    const ProtobufCFieldDescriptor *field = find(message, name);
    if (field == NULL || (is_optional(field) && *presence(message, field) != field->id))
        return false;
    const void *member = (const char *)message + field->offset;
    if (dot != NULL) {
        const ProtobufCMessage *part = *(ProtobufCMessage *const *)member;
        return part != NULL && metric_read(part, dot + 1, value);
    }
    *value = field->type == PROTOBUF_C_TYPE_DOUBLE ? *(const double *)member
                                                   : (double)*(const uint64_t *)member;
    return true;
}

enum metric_event metric_kind(const Fsdpd__V1__JobEvent *event)
{
    int of = (int)event->event_case;
    return of == FSDPD__V1__JOB_EVENT__EVENT_METRICS      ? METRIC_STEP
           : of == FSDPD__V1__JOB_EVENT__EVENT_EPOCH      ? METRIC_EPOCH
           : of == FSDPD__V1__JOB_EVENT__EVENT_VALIDATION ? METRIC_VALIDATION
                                                          : METRIC_EVENTS;
}

static const ProtobufCMessage *body_of(const Fsdpd__V1__JobEvent *event)
{
    switch (metric_kind(event)) {
    case METRIC_STEP: return &event->metrics->base;
    case METRIC_EPOCH: return &event->epoch->base;
    case METRIC_VALIDATION: return &event->validation->base;
    case METRIC_EVENTS: break;
    }
    return NULL;
}

uint64_t metric_step(const Fsdpd__V1__JobEvent *event)
{
    double step = 0;
    const ProtobufCMessage *body = body_of(event);
    return body != NULL && metric_read(body, "step", &step) ? (uint64_t)step : 0;
}

bool metric_of_event(const struct metric *metric, const Fsdpd__V1__JobEvent *event, double *value)
{
    enum metric_event kind = metric_kind(event);
    return kind != METRIC_EVENTS && metric->fields[kind] != NULL &&
           metric_read(body_of(event), metric->fields[kind], value);
}

bool metric_of_job(const struct metric *metric, const Fsdpd__V1__Metrics *latest, double *value)
{
    for (size_t i = 0; i < COUNT_OF(metric->latest); i++)
        if (metric->latest[i] != NULL && metric_read(&latest->base, metric->latest[i], value))
            return true;
    return false;
}

void metric_set_mean(ProtobufCMessage *message, const char *name, double value)
{
    const ProtobufCFieldDescriptor *field = find(message, name);
    void *member = (char *)message + field->offset;
    if (is_optional(field)) *presence(message, field) = field->id;
    if (field->type == PROTOBUF_C_TYPE_DOUBLE) *(double *)member = value;
    else *(uint64_t *)member = (uint64_t)value;
}

void metric_set(ProtobufCMessage *message, const char *name, double value)
{
    const ProtobufCFieldDescriptor *field = find(message, name);
    bool absent = isnan(value) && is_optional(field);
    metric_set_mean(message, name, absent ? 0 : value);
    if (absent) *presence(message, field) = 0;
}

/* ---- a job's latest figures ---- */

static bool is_of_steps(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(metric_table); i++)
        if (metric_table[i].fields[METRIC_STEP] != NULL && strcmp(metric_table[i].name, name) == 0)
            return true;
    return false;
}

static void move(char *to, char *from, size_t size)
{
    memcpy(to, from, size);
    memset(from, 0, size);
}

/* Moves a field that `to` lacks: one that is absent, a message that is missing, an empty list. */
static void move_missing(ProtobufCMessage *to, ProtobufCMessage *from,
                         const ProtobufCFieldDescriptor *field)
{
    char *place = (char *)to + field->offset, *old = (char *)from + field->offset;
    char *count = (char *)to + field->quantifier_offset;
    char *old_count = (char *)from + field->quantifier_offset;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        if (*(size_t *)(void *)count > 0) return;
        move(count, old_count, sizeof(size_t));
        move(place, old, sizeof(void *));
    } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        if (*(void **)(void *)place == NULL) move(place, old, sizeof(void *));
    } else if (is_optional(field) && *presence(to, field) == 0) {
        move(count, old_count, sizeof(uint32_t));
        memcpy(place, old, sizeof(uint64_t));
    }
}

void metric_merge(Fsdpd__V1__Metrics *latest, Fsdpd__V1__Metrics *old)
{
    /* Scores are those of the loss beside them. */
    bool tested = latest->_test_loss_case != 0;
    bool validated = latest->_val_step_case != 0 && latest->val_step != old->val_step;
    const ProtobufCMessageDescriptor *all = latest->base.descriptor;
    for (unsigned i = 0; i < all->n_fields; i++) {
        const char *name = all->fields[i].name;
        if (is_of_steps(name) || (tested && strcmp(name, "test_scores") == 0) ||
            (validated && strcmp(name, "val_scores") == 0))
            continue;
        move_missing(&latest->base, &old->base, &all->fields[i]);
    }
    for (size_t i = 0; i < COUNT_OF(metric_table); i++) {
        double now, before;
        const struct metric *metric = &metric_table[i];
        if (metric->largest && metric_read(&latest->base, metric->name, &now) &&
            metric_read(&old->base, metric->name, &before) && before > now)
            metric_set(&latest->base, metric->name, before);
    }
}
