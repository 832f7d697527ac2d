/* Inside hf/: JSON files of Python programs, as jansson's values. */
#ifndef FSDPD_HF_JSON_H
#define FSDPD_HF_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "base/status.h"

/*
 * An object of at most `most` bytes, for the caller to release. INVALID_ARGUMENT, "FILE:LINE: ...",
 * if it is none, or has a key twice. NaN, Infinity and numbers that neither an int64 nor a double
 * holds are "foreign" values: texts to jansson, and the same words and digits again when written.
 */
status_t hf_json_load(const char *text, size_t length, size_t most, const char *file,
                      json_t **root) FSDPD_MUST_USE;
bool hf_json_is_foreign(const json_t *value);

/* The text of a value, as json_dumps with these flags, for the caller to free. */
char *hf_json_write(const json_t *value, size_t flags);

/* The object `name` of a file, or the file itself if it has none; NULL: likewise. */
json_t *hf_json_inside(json_t *root, const char *name);

#endif
