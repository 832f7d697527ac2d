/* Threads (base/threads.h) as messages. */
#ifndef FSDPD_PROTO_THREADS_H
#define FSDPD_PROTO_THREADS_H

#include "base/threads.h"
#include "fsdpd/v1/control.pb-c.h"

/* Fills in rank->threads, in malloc'ed memory; frees the list. */
void threads_to_message(struct thread_list *list, Fsdpd__V1__RankDiagnosis *rank);

/* "running", "asleep": a state of proc(5). A constant. */
const char *thread_state_name(char state);

#endif
