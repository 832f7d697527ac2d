/*
 * A checkpoint that is read: opened by its directory, checked, and read by parameter and range of
 * elements, wherever these lie. How many ranks wrote it, with which units, does not matter. Files
 * are read in pieces, never mapped. Nothing is used that was not proved: the first pass over a file
 * compares its sum with the manifest's and keeps the sums of its blocks, and every later read
 * compares the blocks that it reads with those (block_sums.h).
 */
#ifndef FSDPD_CHECKPOINT_SAVED_H
#define FSDPD_CHECKPOINT_SAVED_H

#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "fsdp/units.h"

struct model;
struct saved;

/* Reads the manifest of the checkpoint `name`, of at most `limit` bytes (MANIFEST_MAX for written
 * ones). A damaged one, or a name that does not match the manifest's step, is DATA_LOSS; one by
 * another version of fsdpd is FAILED_PRECONDITION. Independent of `folder` once open. */
status_t saved_open(const struct folder *folder, const char *name, size_t limit,
                    struct saved **saved) FSDPD_MUST_USE;
void saved_free(struct saved *saved); /* accepts NULL */

const struct manifest *saved_manifest(const struct saved *saved);

/* FAILED_PRECONDITION names the run that it belongs to, if that is not `run`. */
status_t saved_check_run(const struct saved *saved, const char *run) FSDPD_MUST_USE;

/* Reads one rank's file whole and compares its size and its sum. DATA_LOSS if they differ. */
status_t saved_verify(struct saved *saved, int rank) FSDPD_MUST_USE;

/* The checksums of the blocks of one rank's file, `*count` of them: known after saved_verify; a
 * caller may also fill them in from one that verified. */
struct digest *saved_blocks(struct saved *saved, int rank, size_t *count);

/* Does so for all files, of which each call reads about `bytes` more: whole blocks, of one file;
 * *done: that was the end. */
status_t saved_verify_next(struct saved *saved, uint64_t bytes, bool *done) FSDPD_MUST_USE;

/* `count` words of a unit's flat parameter (slot -1) or of an optimizer slot, from word `offset` on
 * (fsdp/slots.h: elements, if they are f32); the manifest lists the contents. A file whose blocks
 * are not known yet is verified first. DATA_LOSS if a block has changed since. */
status_t saved_read_unit(struct saved *saved, int unit, int slot, int64_t offset, int64_t count,
                         float *values) FSDPD_MUST_USE;

/* Appends what capture_target's pack_reports had for it; nothing if there was nothing. DATA_LOSS if
 * it is damaged, which harms nothing else. */
status_t saved_read_reports(const struct saved *saved, struct buf *out) FSDPD_MUST_USE;

/* Checks that every parameter of the model that is not tied to another is in it with the right
 * size, and finds them. FAILED_PRECONDITION names one that is not. Frozen ones of another type than
 * f32 in these units are in none. */
status_t saved_match(struct saved *saved, const struct model *model,
                     const struct unit_set *units) FSDPD_MUST_USE;
bool saved_has(const struct saved *saved, int parameter);

/* Slots that are saved for a parameter, after saved_match. */
int saved_slots(const struct saved *saved, int parameter);

/* After saved_match: whether the parameter's values are in bf16. */
bool saved_is_rounded(const struct saved *saved, int parameter);

/* After saved_match: `count` words of a parameter (slot -1) or of an optimizer slot, from its word
 * `offset` on. */
status_t saved_read(struct saved *saved, int parameter, int slot, int64_t offset, int64_t count,
                    float *values) FSDPD_MUST_USE;

#endif
