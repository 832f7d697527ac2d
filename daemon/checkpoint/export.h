/*
 * A checkpoint's parameters as the bytes of a state_dict: the same file that a pull of the running
 * job gave at that step, in the model's order, read piece by piece from the files of the ranks.
 * Needs neither the model nor a device. What is kept is the manifest and the file's header. Blocks
 * on the disk.
 */
#ifndef FSDPD_CHECKPOINT_EXPORT_H
#define FSDPD_CHECKPOINT_EXPORT_H

#include "checkpoint/saved.h"

enum { EXPORT_MANIFEST_MAX = 16 << 20 }; /* bytes; for saved_open: a manifest in memory is larger */

struct export;

/* Takes `saved` over, also if it fails. `average`: of the parameters, where there is one, in their
 * place; FAILED_PRECONDITION if the checkpoint has none (train.ema). */
status_t export_new(struct saved *saved, bool average, struct export **export) FSDPD_MUST_USE;
void export_free(struct export *export); /* accepts NULL */

uint64_t export_bytes(const struct export *export); /* of the whole file */
const struct manifest *export_manifest(const struct export *export);

/* Compares the sums of all files with the manifest, about `bytes` of them at a time; *done: that
 * was the end. DATA_LOSS names the file that is damaged. */
status_t export_verify(struct export *export, uint64_t bytes, bool *done) FSDPD_MUST_USE;

/* Compares the reports with their sum; see saved_read_reports. */
status_t export_check_reports(const struct export *export) FSDPD_MUST_USE;

/* The next bytes, as many as fit; *count 0: the end. `size` is a multiple of 8. DATA_LOSS if a file
 * has changed since it was compared. */
status_t export_read(struct export *export, void *bytes, size_t size, size_t *count) FSDPD_MUST_USE;

#endif
