/*
 * Local workers that outlived the coordinator which started them. Who they are stands in a file of
 * the runtime directory; that they live is watched through a pidfd, which tells of their end as
 * SIGCHLD does of a child's, without the exit status.
 */
#ifndef FSDPD_COORDINATOR_ADOPTED_H
#define FSDPD_COORDINATOR_ADOPTED_H

#include "coordinator/internal.h"

/* A process, by its id and when it started (clock ticks since boot): ids are used again. */
struct process_record {
    char *id; /* "<host>/cpu:0" */
    int64_t pid, started;
};

/* When the process started; 0 if there is none of this id. */
int64_t process_started(int64_t pid);

/* Replaces the list of local workers that run. */
status_t records_write(const struct coordinator *c, const struct process_record *records,
                       int count) FSDPD_MUST_USE;

/* Calls `visit` with those of the list whose process still runs. */
void records_read(const struct coordinator *c,
                  void (*visit)(void *user, const struct process_record *record), void *user);

struct adopted;

/* `ended` is called once when the process has ended; then the owner calls adopted_free. NULL if it
 * cannot be watched: it has ended already. */
struct adopted *adopted_new(struct coordinator *c, int64_t pid, void (*ended)(void *user),
                            void *user);
int64_t adopted_pid(const struct adopted *adopted);
void adopted_kill(const struct adopted *adopted, int number);

/* `closed` is called when the loop has let go of it. */
void adopted_free(struct adopted *adopted, void (*closed)(struct coordinator *c));

#endif
