/*
 * What a directory of transformers has beside its weights and its config.json, and what a trained
 * model's directory has as well: the files of a tokenizer, of a processor of images, templates, and
 * how to generate. Pure; any thread.
 */
#ifndef FSDPD_HF_BESIDE_H
#define FSDPD_HF_BESIDE_H

#include <stdbool.h>

/* Other templates of a chat, by name; the only directory. */
#define HF_TEMPLATES "additional_chat_templates"

enum { HF_BESIDE_MAX = 64 << 20, HF_TEMPLATES_MAX = 64 }; /* bytes of a file; files */

/* Ending with NULL, without those in HF_TEMPLATES. */
extern const char *const hf_beside_names[];

/* Whether a file of this name belongs to them: one of the list, or HF_TEMPLATES "/NAME.jinja". Such
 * a name leads to no other directory. */
bool hf_is_beside(const char *name);

#endif
