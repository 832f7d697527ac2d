/* What a pulled directory has beside its weights: the files of a tokenizer and the like, byte for
 * byte as a worker's host has them in the job's model.hf (hf/beside.h). */
#ifndef FSDPD_CLIENT_BESIDE_H
#define FSDPD_CLIENT_BESIDE_H

#include "directory.h"
#include "fsdpd/v1/control.pb-c.h"
#include "session.h"

/* Copies them; if the job's own directory has none, those of the job whose weights it began with,
 * and so on. Without any, or if they cannot be read, a note says so. Fails only for what cannot be
 * written. */
status_t beside_copy(struct session *session, const Fsdpd__V1__Job *job,
                     struct directory *directory) FSDPD_MUST_USE;

#endif
