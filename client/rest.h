/*
 * The tensors of a directory of weights that a job's model does not have, as the vision tower beside
 * a language model: a pull copies them, byte for byte, into a file of their own.
 */
#ifndef FSDPD_CLIENT_REST_H
#define FSDPD_CLIENT_REST_H

#include "base/status.h"
#include "hf/hf.h"
#include "hf/safetensors.h"
#include "rewrite.h"

struct rest;

/*
 * Reads the headers of the directory's files: of model.safetensors, or of those that
 * model.safetensors.index.json names. The tensors are those that the family knows to be another
 * model's. INVALID_ARGUMENT if there are none, or a file is not what it should be.
 */
status_t rest_open(const char *directory, const struct hf_family *family,
                   struct rest **rest) FSDPD_MUST_USE;
void rest_free(struct rest *rest); /* accepts NULL */

/* As they will be in the file, but for begin and end; owned by `rest`. */
struct safetensors_entry *rest_entries(const struct rest *rest, int *count);

/* Writes the file: begin, its bytes, end. */
status_t rest_write(const struct rest *rest, const struct rewrite_sink *sink, int number,
                    int count) FSDPD_MUST_USE;

#endif
