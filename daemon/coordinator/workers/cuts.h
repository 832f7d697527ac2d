/*
 * Cuts: pairs of hosts, or of workers of one host, that could not be connected when a job tried that
 * last. They are remembered until they are seen to connect: in another job's group, or by a probe, for
 * which one worker listens and the other connects. Probes are made while a job could use the pair, at
 * growing intervals, longer for a pair that was cut again and again. Nothing of this is in the store.
 */
#ifndef FSDPD_COORDINATOR_CUTS_H
#define FSDPD_COORDINATOR_CUTS_H

#include "base/buf.h"
#include "coordinator/workers/workers.h"

/* When the pair is probed next, in ms from now, after that many failed probes in a row, and that many
 * times in the last hour that it was cut. Pure. */
int cuts_pause_ms(int probes, int times);

/* The first worker could not connect to the second. False: this was known. */
bool cuts_add(struct worker *from, struct worker *to);

/* They have been connected. */
void cuts_mend(const struct worker *worker, const struct worker *other);

bool cuts_between(const struct worker *worker, const struct worker *other);

/* Calls `found` for each pair that is cut. */
void cuts_each(const struct coordinator *c,
               void (*found)(void *user, const char *from, const char *to), void *user);

/* Appends "node1 and node3 cannot reach each other; ..." */
void cuts_describe(const struct coordinator *c, struct buf *out);

/* What the worker, or its host, cannot reach, as names that are valid until the next change; returns
 * their number. names: (c->cut_count). */
int cuts_of(const struct worker *worker, char **names);

/* Makes the probes that are due. */
void cuts_tick(struct coordinator *c);
void cuts_report(struct worker *worker, const Fsdpd__V1__ProbeReport *report);

void cuts_free(struct coordinator *c);

#endif
