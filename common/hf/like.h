/*
 * Inside hf/: family files that are like another one; docs/families.md says how. Texts are merged
 * as outlines: an entry is a line with a key and the deeper lines below it, in the file as in the
 * model files that it holds. So the result is a text that needs no other file.
 */
#ifndef FSDPD_HF_LIKE_H
#define FSDPD_HF_LIKE_H

#include "yaml/yaml.h"

/* The text of a family. */
struct family_text {
    struct family_line {
        char *text;       /* without the line feed */
        const char *file; /* that it is from; not owned */
        int number;
    } * lines;
    int count, capacity;
};
void family_text_read(struct family_text *text, const char *bytes, const char *file);
char *family_text_write(const struct family_text *text); /* for the caller to free */
void family_text_deinit(struct family_text *text);

/*
 * Makes `text`, whose root this is, the text of `base` with its changes. INVALID_ARGUMENT, naming
 * the place, for a change of what the base lacks, and for one that changes nothing. The form of the
 * result is not checked.
 */
status_t family_text_inherit(struct family_text *text, const struct yamldoc_node *root,
                             const struct family_text *base) FSDPD_MUST_USE;

/* Gives the nodes of a document that was parsed from the text the places of its lines. */
void family_text_place(const struct family_text *text, struct yamldoc_node *node);

/* Joins lines that end in a backslash with the next one, which loses its indentation. */
void family_join_lines(char *text);

#endif
