/*
 * The transformers of examples/ with sizes that tests can afford: odd vocabularies, windows and
 * widths. $srcdir is the place of the examples. For tests; needs Check.
 */
#ifndef FSDPD_TESTS_TINY_MODELS_H
#define FSDPD_TESTS_TINY_MODELS_H

#include "model/graph.h"

enum { TINY_GPT2, TINY_LLAMA, TINY_BERT, TINY_COUNT };

extern const char *const tiny_names[TINY_COUNT]; /* "gpt2", ... */

enum { TINY_VOCABULARY = 13, TINY_CONTEXT = 9, TINY_LAYERS = 2 };

/* The model file's text. The same memory every time; in one process. */
const char *tiny_model_text(int which);

struct model *tiny_model(int which);

/* Token `i` of a generated text, below the vocabulary; 0, BERT's padding, is one of them. */
int32_t tiny_token(uint64_t i);

#endif
