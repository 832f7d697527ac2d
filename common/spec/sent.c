/* Job files that a client sent, none of whose files is read from this machine; see spec.h. */
#include <string.h>

#include "base/mem.h"
#include "proto/message.h"
#include "spec/internal.h"

const char *spec_sent_text(const Fsdpd__V1__JobFile *sent, const char *name)
{
    for (size_t i = 0; i < sent->n_files; i++)
        if (strcmp(sent->files[i]->key, name) == 0) return sent->files[i]->value;
    return NULL;
}

/* Its overrides are in `overrides`, which has room for them. */
static struct spec_source source_of(const Fsdpd__V1__JobFile *sent, struct spec_override *overrides)
{
    for (size_t i = 0; i < sent->n_overrides; i++)
        overrides[i] = (struct spec_override){.text = sent->overrides[i]};
    return (struct spec_source){.text = sent->text,
                                .length = strlen(sent->text),
                                .file = sent->name[0] != '\0' ? sent->name : "job.yaml",
                                .sent = sent,
                                .overrides = overrides,
                                .override_count = (int)sent->n_overrides};
}

/* With `part` the jobs of an array, else one job or the array's record. */
static status_t read_sent(const Fsdpd__V1__JobFile *sent, const struct spec_array_part *part,
                          spec_array_visit *visit, void *user, Fsdpd__V1__JobSpec **spec)
{
    if (sent->n_overrides > SPEC_OVERRIDES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "job_file.overrides: expected at most %d, found %zu", SPEC_OVERRIDES_MAX,
                          sent->n_overrides);
    AUTO_FREE struct spec_override *overrides =
        mem_alloc_array(sent->n_overrides + 1, sizeof *overrides);
    const struct spec_source source = source_of(sent, overrides);
    return part == NULL ? spec_read_source(&source, spec)
                        : spec_array_each_of(&source, part, visit, user);
}

status_t spec_read_sent(const Fsdpd__V1__JobFile *sent, Fsdpd__V1__JobSpec **spec)
{
    return read_sent(sent, NULL, NULL, NULL, spec);
}

status_t spec_array_each(const Fsdpd__V1__JobFile *sent, const struct spec_array_part *part,
                         spec_array_visit *visit, void *user)
{
    return read_sent(sent, part, visit, user, NULL);
}

/* ---- places of errors ---- */

static const struct yamldoc_node *node_of(const struct yamldoc *document, const char *key)
{
    const struct yamldoc_node *node = document->root;
    for (const char *word = key; node != NULL && word != NULL;) {
        const char *dot = strchr(word, '.');
        AUTO_FREE char *name = dot ? mem_strndup(word, (size_t)(dot - word)) : mem_strdup(word);
        node = node->kind == YAMLDOC_MAPPING ? yamldoc_get(node, name) : NULL;
        word = dot ? dot + 1 : NULL;
    }
    return node;
}

status_t spec_place(const Fsdpd__V1__JobFile *sent, status_t status)
{
    const char *message = status_message(status), *colon = strstr(message, ": ");
    if (status == NULL || colon == NULL || status_about(status).line != 0) return status;
    AUTO_FREE char *key = mem_strndup(message, (size_t)(colon - message));
    bool known = false;
    for (size_t i = 0; i < spec_key_count; i++) known |= strcmp(spec_keys[i].key, key) == 0;
    if (!known) return status;
    status = status_with(status, (struct status_details){.field = key});
    if (sent == NULL) return status;
    AUTO_FREE struct spec_override *overrides =
        mem_alloc_array(sent->n_overrides + 1, sizeof *overrides);
    const struct spec_source source = source_of(sent, overrides);
    struct yamldoc *document;
    Fsdpd__V1__SweepSpec *sweep;
    status_t unread = spec_open(&source, &document, &sweep);
    if (unread != NULL) {
        status_free(unread);
        return status;
    }
    const struct yamldoc_node *node = node_of(document, key);
    if (node != NULL) status = yamldoc_place(status, node);
    message_free(sweep);
    yamldoc_free(document);
    return status;
}
