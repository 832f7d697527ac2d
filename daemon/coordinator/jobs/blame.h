/*
 * Who is to blame for a job that hangs or is slow: a verdict of one sentence from what its ranks
 * say and what is known of those that say nothing. Pure: it reads and writes only the message.
 */
#ifndef FSDPD_COORDINATOR_BLAME_H
#define FSDPD_COORDINATOR_BLAME_H

#include "coordinator/store/message.h"

/* A rank that takes this many times as long as the median rank is called slow. */
#define BLAME_SLOWDOWN 1.5

/* Sets the verdict, the cause and the ranks to blame; everything else is there already. */
void blame(Fsdpd__V1__Diagnosis *diagnosis);

#endif
