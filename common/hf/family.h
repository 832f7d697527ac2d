/*
 * Inside hf/: a family file, whose nodes are read directly once its form was checked.
 * docs/families.md says what its keys mean.
 */
#ifndef FSDPD_HF_FAMILY_H
#define FSDPD_HF_FAMILY_H

#include "expression/constant.h"
#include "hf/hf.h"
#include "yaml/yaml.h"

/* Of a key of config.json. */
enum family_type {
    FAMILY_SIZE, /* an integer from 1 */
    FAMILY_INTEGER,
    FAMILY_NUMBER,
    FAMILY_PROBABILITY, /* from 0 to below 1 */
    FAMILY_BOOLEAN,
    FAMILY_TEXT,
    FAMILY_LIST,  /* of texts, integers and booleans */
    FAMILY_COUNT, /* an integer from 1, or the number of an object's entries */
    FAMILY_ACTIVATION, /* a text: transformers' name of one (hf/known.h) */
};

enum { FAMILY_KEYS_MAX = 256 }; /* half of them at most are a head's */
enum { FAMILY_LEFT_OUT_MAX = 16 };

/* Nodes may be NULL unless the file must have them. */
struct hf_family {
    struct yamldoc *document; /* owns all nodes and texts */
    const struct yamldoc_node *root, *tensors, *heads;

    /* what is trained: the family's own architecture, or a head */
    const struct yamldoc_node *trained; /* the root, or the head */
    const char *architecture;
    bool has_new; /* files may lack the new parameters: they are another architecture's */
    const struct yamldoc_node *keys[FAMILY_KEYS_MAX]; /* of config; a node's key is the name */
    int key_count;
    bool left_out[FAMILY_LEFT_OUT_MAX]; /* which conditions hold of the configuration */
    char **notes;                       /* notes on the configuration */
    int note_count, note_capacity;
};

/* hf_family_parse, of a text whose lines are from elsewhere: the places that messages name. */
struct family_text;
status_t family_parse(const char *text, size_t length, const char *file,
                      const struct family_text *from, struct hf_family **family) FSDPD_MUST_USE;

void family_forget_notes(struct hf_family *family);

/* What a family makes of a key of config.json, "rope_scaling.factor" for one inside an object. If
 * the family's keys are inside an object themselves, "/name" is one beside this. */
enum family_key {
    FAMILY_KEY_APPLIED,
    FAMILY_KEY_OUTER,    /* an object with keys that are applied */
    FAMILY_KEY_HARMLESS, /* transformers computes the same whatever it is; or it is checked */
    FAMILY_KEY_UNKNOWN,
};
enum family_key family_key(const struct hf_family *family, const char *path);

/* The index of a key; -1 if there is none of this name. */
int family_find_key(const struct hf_family *family, const char *name);
enum family_type family_type(const struct yamldoc_node *key);

/* Makes the family that of the first of a config.json's architectures; NULL: of its own. */
void family_choose(struct hf_family *family, const char *architecture);

/* The expression that a node is, for the caller to free. */
status_t family_expression(const struct yamldoc_node *node,
                           struct expression **expression) FSDPD_MUST_USE;

/* The items of a node: of a list or a mapping, one text, or none (NULL). */
int family_count(const struct yamldoc_node *node);
const char *family_text(const struct yamldoc_node *node, int index);
bool family_has_text(const struct yamldoc_node *node, const char *text);
bool family_flag(const struct yamldoc_node *node); /* false for NULL */

#endif
