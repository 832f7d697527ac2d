/*
 * The signals of a process. The main loop's thread handles them, so other threads block them all
 * while they start, except for the one that asks a thread for its stack (stacks.h). Also for C++.
 */
#ifndef FSDPD_BASE_SIGNALS_H
#define FSDPD_BASE_SIGNALS_H

#include <pthread.h>
#include <signal.h>

/* Ignored by default, and used by no library: sent by mistake, it does nothing. */
#define SIGNAL_STACK SIGURG

/* Threads that start from now on inherit the mask; restore `before` afterwards. */
static inline void signals_block(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGNAL_STACK);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

static inline void signals_restore(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

#endif
