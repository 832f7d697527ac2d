/*
 * Model files that several tests share, and helpers for them. Run from anywhere: $srcdir is the
 * place of the examples. Needs Check.
 */
#ifndef FSDPD_TESTS_MODEL_FILES_H
#define FSDPD_TESTS_MODEL_FILES_H

#include "base/buf.h"
#include "model/model.h"

/* The tutorial's file; a checked fixture. */
extern struct buf mnist;
void load_mnist(void);
void unload_mnist(void);

/* Blocks in lists in blocks. */
extern const char residual[];

/* Parses the text under the name "net.yaml". */
struct model *parse(const char *text);
void assert_refused(const char *text, size_t length, const char *message);

/* `text` with the first `old` replaced; the caller frees. */
char *replace(const char *text, const char *old, const char *new);

#endif
