/*
 * The model files that tests of model files share, and what they do with them. Run from anywhere:
 * $srcdir says where the examples are. Needs Check.
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

/* Calls itself "net.yaml". */
struct model *parse(const char *text);
void assert_refused(const char *text, size_t length, const char *message);

/* `text` with the first `old` replaced; the caller frees. */
char *replace(const char *text, const char *old, const char *new);

#endif
