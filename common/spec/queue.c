/*
 * The spec's settings for the queue: other jobs, deadlines, labels. Checks of single values, also
 * for the command line and the daemon, and readers of these keys.
 */
#include "spec/queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/internal.h"

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

status_t spec_check_label_key(const char *key)
{
    char text[72];
    size_t length = strlen(key);
    if (length >= 1 && length <= SPEC_LABEL_KEY_MAX && strchr(LOWER, key[0]) != NULL &&
        strspn(key, LOWER DIGITS "_-") == length)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected a key of 1 to %d letters a-z, digits, - and _ that starts with a "
                      "letter, found '%s'",
                      SPEC_LABEL_KEY_MAX, yamldoc_excerpt(key, text));
}

status_t spec_check_label_value(const char *value)
{
    char text[72];
    size_t length = strlen(value);
    if (length <= SPEC_LABEL_VALUE_MAX && strspn(value, LOWER UPPER DIGITS "._-+:/@") == length)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected a value of at most %d letters, digits and ._-+:/@, found '%s'",
                      SPEC_LABEL_VALUE_MAX, yamldoc_excerpt(value, text));
}

status_t spec_check_labels(Fsdpd__V1__JobSpec__LabelsEntry *const *labels, size_t count)
{
    if (count > SPEC_LABELS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d labels, found %zu",
                          SPEC_LABELS_MAX, count);
    for (size_t i = 0; i < count; i++) {
        TRY(spec_check_label_key(labels[i]->key));
        TRY(status_wrap(spec_check_label_value(labels[i]->value), "%s", labels[i]->key));
        for (size_t j = 0; j < i; j++)
            if (strcmp(labels[i]->key, labels[j]->key) == 0)
                return status_new(STATUS_INVALID_ARGUMENT, "%s appears twice", labels[i]->key);
    }
    return NULL;
}

status_t spec_check_job_id(const char *id)
{
    char text[72];
    size_t length = strlen(id);
    if (length >= 1 && length <= SPEC_JOB_ID_MAX && id[0] != '-' &&
        strspn(id, LOWER DIGITS "-") == length)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected a job's id, 1 to %d of a-z, 0-9 and -, not beginning with -, found "
                      "'%s'",
                      SPEC_JOB_ID_MAX, yamldoc_excerpt(id, text));
}

status_t spec_check_jobs(char *const *jobs, size_t count)
{
    if (count > SPEC_AFTER_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d jobs, found %zu",
                          SPEC_AFTER_MAX, count);
    for (size_t i = 0; i < count; i++) TRY(spec_check_job_id(jobs[i]));
    return NULL;
}

static int compare_labels(const void *a, const void *b)
{
    const Fsdpd__V1__JobSpec__LabelsEntry *const *first = a, *const *second = b;
    return strcmp((*first)->key, (*second)->key);
}

void spec_sort_labels(Fsdpd__V1__JobSpec *spec)
{
    if (spec->n_labels > 1) qsort(spec->labels, spec->n_labels, sizeof(void *), compare_labels);
}

static bool is_scalar(const struct yamldoc_node *node)
{
    return node->kind == YAMLDOC_SCALAR && !yamldoc_is_null(node);
}

status_t spec_read_labels(const struct yamldoc_node *node, Fsdpd__V1__JobSpec *spec)
{
    if (yamldoc_is_null(node)) return NULL;
    if (node->kind != YAMLDOC_MAPPING)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected a mapping of texts, such as {team: vision}, found %s",
                          node->kind == YAMLDOC_SEQUENCE ? "a list" : "a single value");
    spec->labels = mem_alloc_array((size_t)node->item_count + 1, sizeof *spec->labels);
    for (int i = 0; i < node->item_count; i++) {
        const struct yamldoc_node *item = node->items[i];
        /* Unquoted "null" and "~" are null, which stands for an empty text. */
        if (!is_scalar(item) && !yamldoc_is_null(item))
            return status_new(STATUS_INVALID_ARGUMENT, "%s: expected a text, found a %s", item->key,
                              item->kind == YAMLDOC_SEQUENCE ? "list" : "mapping");
        Fsdpd__V1__JobSpec__LabelsEntry *label = mem_alloc(sizeof *label);
        fsdpd__v1__job_spec__labels_entry__init(label);
        spec->labels[spec->n_labels++] = label;
        label->key = mem_strdup(item->key);
        label->value = mem_strdup(is_scalar(item) ? item->text : "");
    }
    TRY(spec_check_labels(spec->labels, spec->n_labels));
    spec_sort_labels(spec);
    return NULL;
}

status_t spec_read_jobs(const struct yamldoc_node *node, struct spec_field field)
{
    if (yamldoc_is_null(node)) return NULL;
    if (is_scalar(node)) {
        spec_field_add_text(field, node->text);
    } else if (node->kind == YAMLDOC_SEQUENCE) {
        for (int i = 0; i < node->item_count; i++) {
            if (!is_scalar(node->items[i]))
                return status_new(STATUS_INVALID_ARGUMENT, "expected a list of jobs' ids");
            spec_field_add_text(field, node->items[i]->text);
        }
    } else {
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected a job's id or a list of them, found a mapping");
    }
    size_t count;
    char *const *jobs = spec_field_texts(field, &count);
    return spec_check_jobs(jobs, count);
}
