/* Shared by the files of common/spec; private to this room. */
#ifndef FSDPD_SPEC_INTERNAL_H
#define FSDPD_SPEC_INTERNAL_H

#include "spec/spec.h"
#include "yaml/yaml.h"

/* A place in the message: the field and the message that it lies in. */
struct spec_field {
    const ProtobufCFieldDescriptor *descriptor;
    void *member; /* NULL if a message along the path is missing */
};

/* The place of a key. `make` allocates messages along the path. */
struct spec_field spec_field_find(const Fsdpd__V1__JobSpec *spec, const struct spec_key *key,
                                  bool make);

/* Read and write single fields, by the descriptor's type. */
double spec_field_number(struct spec_field field);
const char *spec_field_text(struct spec_field field);
void spec_field_set_number(struct spec_field field, double value);
void spec_field_set_text(struct spec_field field, const char *text);

/* Whether the message has a value here; a number or a switch may be given as 0. */
bool spec_field_is_given(struct spec_field field);
/* Sets the key's default; it must have one, and not stay absent. */
void spec_field_set_default(struct spec_field field, const struct spec_key *key);

/* The items of a repeated field of texts; `count` may be NULL. */
char **spec_field_texts(struct spec_field field, size_t *count);
/* Appends a copy. */
void spec_field_add_text(struct spec_field field, const char *text);
/* Likewise of a repeated field of messages; appended are themselves. */
void *const *spec_field_messages(struct spec_field field, size_t *count);
void spec_field_add_message(struct spec_field field, void *message);

/* Whether the key belongs to this spec (its type's key is set accordingly). */
bool spec_key_applies(const struct spec_key *key, const Fsdpd__V1__JobSpec *spec);

/* The first row of that name, which exists. */
const struct spec_key *spec_key_find(const char *name);

/* Whether it is a number, or indices, without a default. */
bool spec_key_stays_absent(const struct spec_key *key);

/* Where the key belongs, from all rows of its name: "optimizer.type adadelta, adam or adamw"; the
 * caller frees it. */
char *spec_key_place(const struct spec_key *key);

/* Checks one value: "expected ..., found ...", without the key. */
status_t spec_check_number(const struct spec_key *key, double value, const char *found);
status_t spec_check_text(const struct spec_key *key, const char *text);
/* "main", "others"; "" for neither, NULL for what is unknown. The value of a word, 0 if none. */
const char *spec_use_word(Fsdpd__V1__OptimizerUse use);
Fsdpd__V1__OptimizerUse spec_use_value(const char *word);

/* For a list of patterns or of types. */
status_t spec_check_list(const struct spec_key *key, char *const *items, size_t count);
status_t spec_check_groups(Fsdpd__V1__OptimizerGroup *const *groups, size_t count);
/* Checks a word against the choices of another key, for a unit's own setting. "" is valid. */
status_t spec_check_choice_of(const char *key, const char *text);
/* model.base_dtype, which depends on several keys. */
void spec_complete_base(Fsdpd__V1__JobSpec *spec);
/* Groups take what they leave out from the optimizer; a source's weight is 1. */
void spec_complete_groups(Fsdpd__V1__OptimizerSpec *optimizer);
void spec_complete_source(Fsdpd__V1__DataSource *source);
status_t spec_check_sources(Fsdpd__V1__DataSource *const *sources, size_t count);
status_t spec_check_units(Fsdpd__V1__WrapUnit *const *units, size_t count);

/* A job file that is read: its text, and what messages name it. */
struct spec_source {
    const char *text;
    size_t length;
    const char *file;
    const Fsdpd__V1__JobFile *sent; /* by a client; NULL: the files are this machine's */
    const struct spec_override *overrides;
    int override_count;
};

/* sent.c: the text of a file that the client sent along; NULL: it did not. */
const char *spec_sent_text(const Fsdpd__V1__JobFile *sent, const char *name);

/* file.c: one job, or an array's record. */
status_t spec_read_source(const struct spec_source *source, Fsdpd__V1__JobSpec **spec);
/* The document with its overrides, which the caller frees, as `sweep`, which is NULL if the
 * file is none; and what it says, complete. */
status_t spec_open(const struct spec_source *source, struct yamldoc **document,
                   Fsdpd__V1__SweepSpec **sweep);
status_t spec_read_tree(const struct spec_source *source, const struct yamldoc *document,
                        Fsdpd__V1__JobSpec **spec);
/* Whether the key's value is a list of mappings: "expected ..., found ...", without the key. */
status_t spec_expect_mappings(const struct spec_key *key, const struct yamldoc_node *node);

/* array.c: whether the document has array.indices; if so, the spec of the array's record, with the
 * values of its first index. Changes the document. */
bool spec_is_array(const struct yamldoc *document);
status_t spec_read_array(const struct spec_source *source, struct yamldoc *document,
                         const Fsdpd__V1__SweepSpec *sweep, Fsdpd__V1__JobSpec **spec);
status_t spec_array_each_of(const struct spec_source *source, const struct spec_array_part *part,
                            spec_array_visit *visit, void *user);

/* sweep.c: whether the document is a sweep file; if so, replaces it by its job file with
 * array.indices, and reads the rest. */
bool spec_is_sweep(const struct yamldoc *document);
status_t spec_open_sweep(const struct spec_source *source, struct yamldoc **document,
                         Fsdpd__V1__SweepSpec **sweep);
/* The value of parameter `number` in the trial of this index. The caller frees it. */
char *spec_sweep_value(const Fsdpd__V1__SweepSpec *sweep, size_t number, uint32_t trial);
/* The job file that a sweep file names, which the caller frees; NULL if it names none. */
status_t spec_sweep_file(const struct spec_source *source, char **name, char **text);

/* queue.c: the values of SPEC_LABELS and SPEC_JOBS from a job file. */
status_t spec_read_labels(const struct yamldoc_node *node, Fsdpd__V1__JobSpec *spec);
/* arguments.c */
status_t spec_read_arguments(const struct yamldoc_node *node, Fsdpd__V1__ModelSpec *model);
status_t spec_check_arguments(Fsdpd__V1__ModelSpec__ArgsEntry *const *arguments, size_t count);

/* rules.c: SPEC_RULES */
status_t spec_read_rules(const struct spec_key *key, const struct yamldoc_node *node,
                         struct spec_field field);
status_t spec_check_rules(const struct spec_key *key, struct spec_field field);
void spec_print_rules(struct spec_field field, struct buf *out);

/* held_out.c: SPEC_HELD_OUT */
status_t spec_read_held_out(const struct spec_key *key, const struct yamldoc_node *node,
                            const Fsdpd__V1__JobFile *sent, Fsdpd__V1__DataSpec *data);
status_t spec_check_held_out(const Fsdpd__V1__DataSpec *data);
void spec_print_held_out(const Fsdpd__V1__DataSpec *data, struct buf *out);
/* What sets leave out is the unnamed one's. */
void spec_complete_held_out(Fsdpd__V1__JobSpec *spec);
/* The set of this name; NULL: none. */
const Fsdpd__V1__HeldOutSet *spec_find_held_out(const Fsdpd__V1__DataSpec *data, const char *name);
/* Moves the NAME of "NAME/val_loss" or "NAME/accuracy" out of the text and into `set`; the metric
 * remains. */
void spec_take_set(char *text, struct spec_field set);

/* phases.c: SPEC_PHASES, and the rules of one schedule; `steps`: those that it has if it does not
 * say; 0: not known */
status_t spec_read_phases(const struct spec_key *key, const struct yamldoc_node *node,
                          Fsdpd__V1__JobSpec *spec);
status_t spec_check_phases(Fsdpd__V1__ScheduleSpec *const *phases, size_t count);
void spec_complete_phase(Fsdpd__V1__ScheduleSpec *phase);
status_t spec_check_schedule(const Fsdpd__V1__ScheduleSpec *schedule, uint64_t steps);

/* sources.c */
status_t spec_read_sources(const struct spec_key *key, const struct yamldoc_node *node,
                           const Fsdpd__V1__JobFile *sent, Fsdpd__V1__DataSpec *data);
/* "~/x" below the home directory of the client that sent the file, or of the user (NULL). Caller
 * frees. */
char *spec_expand_home(const Fsdpd__V1__JobFile *sent, const char *path);
/* Reads the text of the model file that `node` of the job file `file` names. */
status_t spec_read_model(const char *file, const Fsdpd__V1__JobFile *sent,
                         const struct yamldoc_node *node, Fsdpd__V1__ModelSpec *model);
status_t spec_read_jobs(const struct yamldoc_node *node, struct spec_field field);

/* defaults.c: what the keys that begin with `prefix` leave out. */
void spec_complete_keys(Fsdpd__V1__JobSpec *spec, const char *prefix);
/* message.c: checks the keys that begin with `prefix`. */
status_t spec_check_keys(const Fsdpd__V1__JobSpec *spec, const char *prefix);

/* hints.c: "; did you mean train.epochs?", the keys of the section, or "". The caller frees.
 * For a key that there is not; `mapping`: it has keys below it. */
char *spec_hint_key(const char *path, bool mapping);
/* For a value where the keys of a section are expected: the key that takes it. */
char *spec_hint_value(const char *section, const char *text);
/* "epochs" of "train.epochs". */
const char *spec_last_word(const char *key);

/* together.c: rules over several keys. */
status_t spec_check_together(const Fsdpd__V1__JobSpec *spec);

/* The number of ranks in a choice such as "4"; 0 for a word. */
uint32_t spec_choice_ranks(const char *text);

/* "an integer from 1 to 4096", "full_shard or no_shard", ... */
void spec_key_expected(const struct spec_key *key, struct buf *out);

/* A number as short as it can be written without loss. `text` holds at least 32 bytes. */
char *spec_format_number(double value, char text[static 32]);

#endif
