/* Inside train/: going on from a checkpoint; train_session_capture, in session.h, is the other
 * half. */
#ifndef FSDPD_TRAIN_RESUME_H
#define FSDPD_TRAIN_RESUME_H

#include "train/run_state.h"

/*
 * Every rank calls this with a new executor. The ranks find the newest checkpoint of the run whose
 * files are all whole (each looks at some of them), and each reads what it keeps. run->resumed says
 * whether there was one; the hook `resumed` was called. DATA_LOSS if the settings say that there
 * must be one.
 */
status_t run_resume(struct run *run) FSDPD_MUST_USE;

#endif
