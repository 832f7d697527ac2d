/*
 * Every figure of training, once: what a report of a step (metric_list.h), the end of an epoch, and
 * a validation measure. Views of figures read this table, so a row is all that a new figure needs
 * in them. Pure; its constants are never freed.
 */
#ifndef FSDPD_SPEC_METRIC_TABLE_H
#define FSDPD_SPEC_METRIC_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "fsdpd/v1/control.pb-c.h"

/* The events that may have a figure. */
enum metric_event { METRIC_STEP, METRIC_EPOCH, METRIC_VALIDATION, METRIC_EVENTS };

struct metric {
    const char *name; /* the column in CSV */
    const char *unit; /* "s", "1/s", "bytes"; NULL: a plain number */
    const char *help;
    /* By kind of event: where it is ("scores.f1"), and its name in TensorBoard; NULL: nowhere. */
    const char *fields[METRIC_EVENTS], *tags[METRIC_EVENTS];
    const char *latest[2]; /* where a job's latest figures have it: the first that is present */
    const char *gauge;     /* its name in /metrics, after "fsdpd_"; NULL: it is not there, */
    const char *kind;      /* and the value of its label `kind`, if several share the name */
    const char *line;      /* `fsdpctl show` has a line with this label, */
    const char *after;     /* which ends so, if the value is above 0 */
    bool largest;          /* a job has the largest of all reports, not the latest */
};
#define METRIC_SCALAR(tag) .tags[METRIC_STEP] = (tag)

extern const struct metric metric_table[];
size_t metric_count(void);

/* The value of a field, which may be one of a message in it ("scores.f1"); false: it is absent. */
bool metric_read(const ProtobufCMessage *message, const char *field, double *value);

/* METRIC_EVENTS for an event without figures. */
enum metric_event metric_kind(const Fsdpd__V1__JobEvent *event);
uint64_t metric_step(const Fsdpd__V1__JobEvent *event); /* training steps done; 0: it has none */
bool metric_of_event(const struct metric *metric, const Fsdpd__V1__JobEvent *event, double *value);
bool metric_of_job(const struct metric *metric, const Fsdpd__V1__Metrics *latest, double *value);

/* Sets a field. NAN makes a field that is `optional` absent. */
void metric_set(ProtobufCMessage *message, const char *field, double value);
/* The same, but present even if it is NAN: a mean over nothing. */
void metric_set_mean(ProtobufCMessage *message, const char *field, double value);

/* Completes a job's new latest figures: what no report of a step repeats is moved from the old
 * ones, and the largest values are the largest of both. */
void metric_merge(Fsdpd__V1__Metrics *latest, Fsdpd__V1__Metrics *old);

#endif
