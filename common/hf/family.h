/* Inside hf/: a family file, parsed. docs/families.md says what its keys mean. */
#ifndef FSDPD_HF_FAMILY_H
#define FSDPD_HF_FAMILY_H

#include "expression/constant.h"
#include "hf/hf.h"
#include "yaml/yaml.h"

enum family_type {
    FAMILY_SIZE, /* an integer from 1 */
    FAMILY_INTEGER,
    FAMILY_NUMBER,
    FAMILY_PROBABILITY, /* from 0 to below 1 */
    FAMILY_BOOLEAN,
    FAMILY_TEXT,
    FAMILY_LIST,  /* of texts, integers and booleans */
    FAMILY_COUNT, /* the number of an object's entries, at least 1 */
};

/* An expression over the configuration's keys; NULL in both if the family does not give it. */
struct family_expression {
    const struct yamldoc_node *node; /* for messages */
    struct expression *expression;
};

/* One key of config.json, and its name in the model file. */
struct family_key {
    const char *name;
    enum family_type type;
    const struct yamldoc_node *paths;     /* where it may stand; NULL: under its name */
    const struct yamldoc_node *supported; /* the values that are; NULL: all */
    const char *why;                      /* what a refusal adds; may be NULL */
    const char *text;                     /* of a text: the default; may be NULL */
    bool null;                            /* null is a value, and not as if the key were missing */
    struct family_expression standard, from, to, needed, length;
};

/* A condition that relates several values. */
struct family_check {
    int key;              /* that a message names */
    const char *expected; /* what it expects, with {names} of keys in it */
    struct family_expression that;
};

/* A tensor that files leave out where a condition holds. */
struct family_left_out {
    const char *parameter;
    struct family_expression when;
};

/* Another architecture of the family: the same body with another head. */
struct family_head {
    const char *architecture, *model; /* sections that replace those of the family's model file */
    struct family_key *keys;          /* besides the family's, or instead of them */
    int key_count;
    const struct yamldoc_node *other_heads, *fresh; /* may be NULL */
};

struct hf_family {
    struct yamldoc *document; /* owns all texts */
    const char *name, *architecture, *model;
    const struct yamldoc_node *model_types, *also; /* lists or scalars; `also` may be NULL */
    struct family_key *keys;
    int key_count;
    struct family_check *checks;
    int check_count;
    struct family_head *heads;
    int head_count;
    char *composed;                   /* the model file of the head that was chosen; else NULL */
    const struct yamldoc_node *fresh; /* parameters that files may lack; may be NULL */
    const char *prefix; /* "" if there is none */
    const struct yamldoc_node *bare, *buffers, *other_heads, *names, *old_names; /* may be NULL */
    struct family_left_out *left_out;
    int left_out_count;
};

void family_key_deinit(struct family_key *key);

/* heads.c: the sections of `model` with those of `head` in their places; its blocks are added to
 * the others, or replace those of the same name. The caller frees. */
char *family_compose(const char *model, const char *head);

/* The texts of a node that is a list of texts, one text, or NULL. */
int family_text_count(const struct yamldoc_node *node);
const char *family_text(const struct yamldoc_node *node, int index);
bool family_has_text(const struct yamldoc_node *node, const char *text);

#endif
