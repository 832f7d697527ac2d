/* Inside train/: resuming from a checkpoint; train_session_capture, in session.h, is the
 * counterpart. */
#ifndef FSDPD_TRAIN_RESUME_H
#define FSDPD_TRAIN_RESUME_H

#include "train/run_state.h"

/*
 * Every rank calls this with a new executor. The ranks find the newest checkpoint that belongs to
 * the run, fits it, and has only intact files (each rank checks some of them), and each reads its
 * part. run->resumed is true if there was one; the hook `resumed` receives its name, and the
 * problems of newer ones. If there is none but the settings require one: DATA_LOSS, or
 * FAILED_PRECONDITION if none is damaged.
 */
status_t run_resume(struct run *run) FSDPD_MUST_USE;

/* Every rank calls this with a new executor: it gets the state of the checkpoint that the job's
 * source names, and the run its step. DATA_LOSS, FAILED_PRECONDITION: it cannot be used. */
status_t run_load_source(struct run *run) FSDPD_MUST_USE;

#endif
