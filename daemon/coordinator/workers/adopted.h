/*
 * Local workers that outlived the coordinator that started them. A file in the runtime directory
 * lists them. A pidfd reports their end, as SIGCHLD does for a child, but without the exit status.
 */
#ifndef FSDPD_COORDINATOR_ADOPTED_H
#define FSDPD_COORDINATOR_ADOPTED_H

#include "coordinator/core/internal.h"

/* A process, identified by its id and its start time (clock ticks since boot): ids are reused. */
struct process_record {
    char *id; /* "<host>/cpu:0" */
    int64_t pid, started;
};

/* The process's start time; 0 if no process has this id. */
int64_t process_started(int64_t pid);

/* Replaces the list of running local workers. */
status_t records_write(const struct coordinator *c, const struct process_record *records,
                       int count) FSDPD_MUST_USE;

/* The list; the caller frees it. If it cannot be read, fsdpd must not start: it would start workers
 * beside those that still run. */
status_t records_read(const struct coordinator *c, char **list) FSDPD_MUST_USE;
/* Calls `visit` for each process in the list that still runs. */
void records_each(const char *list, void (*visit)(void *user, const struct process_record *record),
                  void *user);

struct adopted;

/* `ended` is called once when the process has ended; the owner then calls adopted_free. NULL if the
 * process cannot be watched because it has ended already. */
struct adopted *adopted_new(struct coordinator *c, int64_t pid, void (*ended)(void *user),
                            void *user);
int64_t adopted_pid(const struct adopted *adopted);
void adopted_kill(const struct adopted *adopted, int number);

/* `closed` is called when the loop has released the handle. */
void adopted_free(struct adopted *adopted, void (*closed)(struct coordinator *c));

#endif
