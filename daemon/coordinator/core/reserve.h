/*
 * The store's reserve: a file in the state directory whose blocks are allocated. When SQLite
 * reports a full disk, a piece of it is given up, so that the end of running jobs can still be
 * recorded; new jobs are refused until the reserve is whole again.
 */
#ifndef FSDPD_COORDINATOR_RESERVE_H
#define FSDPD_COORDINATOR_RESERVE_H

#include "coordinator/core/internal.h"

enum { RESERVE_BYTES = 4 << 20 };

/* Bytes that can still be written on the file system of `path`; INFINITY if this is unknown. */
double disk_free(const char *path);

/* Creates the reserve, or logs why there is none yet. */
void reserve_open(struct coordinator *c);

/* Makes it whole again when there is space. */
void reserve_tick(struct coordinator *c);

/* Gives up a piece if `refusal`, an error of the store, reports a full disk. True: try again. */
bool reserve_give_up(struct coordinator *c, status_t refusal);

/* Whether only urgent changes may use the store: a part of the reserve is gone, and a part is
 * left. */
bool reserve_is_begun(const struct coordinator *c);

#endif
