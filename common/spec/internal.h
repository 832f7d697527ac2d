/* What the files of common/spec share; nobody else includes this. */
#ifndef FSDPD_SPEC_INTERNAL_H
#define FSDPD_SPEC_INTERNAL_H

#include "spec/spec.h"
#include "yaml/yaml.h"

/* A place in the message: the field and the message that it lies in. */
struct spec_field {
    const ProtobufCFieldDescriptor *descriptor;
    void *member; /* NULL if a message on the way is missing */
};

/* The place of a key. `make` allocates the messages on the way. */
struct spec_field spec_field_find(const Fsdpd__V1__JobSpec *spec, const struct spec_key *key,
                                  bool make);

/* Reading and writing single fields, by the type that the descriptor says. */
double spec_field_number(struct spec_field field);
const char *spec_field_text(struct spec_field field);
void spec_field_set_number(struct spec_field field, double value);
void spec_field_set_text(struct spec_field field, const char *text);

/* The items of a repeated field of texts; `count` may be NULL. */
char **spec_field_texts(struct spec_field field, size_t *count);
/* Appends a copy. */
void spec_field_add_text(struct spec_field field, const char *text);

/* Whether the key belongs to this spec (its type's key is set accordingly). */
bool spec_key_applies(const struct spec_key *key, const Fsdpd__V1__JobSpec *spec);

/* Checks one value: "expected ..., found ...", without the key. */
status_t spec_check_number(const struct spec_key *key, double value, const char *found);
status_t spec_check_text(const struct spec_key *key, const char *text);
/* Of a list of patterns or of types. */
status_t spec_check_list(const struct spec_key *key, char *const *items, size_t count);
status_t spec_check_groups(Fsdpd__V1__OptimizerGroup *const *groups, size_t count);
/* Checks a word against the choices of another key: that of a unit for itself. "" is fine. */
status_t spec_check_choice_of(const char *key, const char *text);
/* The number of ranks that a choice is, if its key allows for one; 0 for a word. */
uint32_t spec_choice_ranks(const char *text);
status_t spec_check_units(Fsdpd__V1__WrapUnit *const *units, size_t count);

/* queue.c: the values of SPEC_LABELS and SPEC_JOBS from a job file. */
status_t spec_read_labels(const struct yamldoc_node *node, Fsdpd__V1__JobSpec *spec);
status_t spec_read_jobs(const struct yamldoc_node *node, struct spec_field field);

/* The rules that involve several keys. */
status_t spec_check_together(const Fsdpd__V1__JobSpec *spec);

/* "an integer from 1 to 4096", "full_shard or no_shard", ... */
void spec_key_expected(const struct spec_key *key, struct buf *out);

/* A number as short as it can be written without loss. `text` holds at least 32 bytes. */
char *spec_format_number(double value, char text[static 32]);

#endif
