/*
 * Inside hf/: what is the same for all families, in transformers' base class of configurations. The
 * lists of docs/hugging-face.md are compared with these.
 */
#ifndef FSDPD_HF_KNOWN_H
#define FSDPD_HF_KNOWN_H

#include <stdbool.h>

/* The name that model files have for an activation of transformers' table; NULL if they have none. */
const char *known_activation(const char *name);
const char *known_activation_at(int index); /* transformers' name; NULL after the last */

/* A key that a family without an entry for it refuses. */
struct known_refused {
    const char *name;
    enum {
        KNOWN_FLAG,    /* if true */
        KNOWN_ENTRIES, /* with entries */
        KNOWN_VALUE,   /* if not null */
        KNOWN_LAYERS,  /* unless it is a list of "full_attention" */
    } kind;
    const char *why;
};
const struct known_refused *known_refused_at(int index); /* NULL after the last */

/* Whether a key changes nothing that is computed here, in every family. Keys that are refused
 * otherwise are among them. */
bool known_is_harmless(const char *name);
const char *known_harmless_at(int index); /* NULL after the last */

#endif
