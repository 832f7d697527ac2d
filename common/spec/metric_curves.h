/*
 * The curves that a page draws of the reports of steps, and which reports stay of them where there
 * is no room for all: the extremes of every curve. Pure.
 */
#ifndef FSDPD_SPEC_METRIC_CURVES_H
#define FSDPD_SPEC_METRIC_CURVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdpd/v1/control.pb-c.h"

/* Where there is room for few extremes, those of the first ones stay. */
enum metric_curve {
    CURVE_LOSS,
    CURVE_GRADIENT_NORM,
    CURVE_RATE,      /* tokens per second; of data without tokens, samples */
    CURVE_STEP_TIME, /* seconds */
    CURVE_EXPOSED,   /* of it communication while nothing computed */
    CURVE_LEARNING_RATE,
    CURVES
};

/* Its value in a report; false: it is absent. */
bool metric_curve(const Fsdpd__V1__Metrics *metrics, enum metric_curve curve, double *value);

/* Reports, in their order. */
struct metric_reports {
    struct metric_point {
        uint64_t number, step;
        double values[CURVES]; /* NAN: absent */
        bool stays;
        bool stayed; /* in stretches of half the length; while they are chosen */
    } * points;
    size_t count, capacity;
};

/* `number` is above that of the report before. */
void metric_reports_add(struct metric_reports *all, uint64_t number,
                        const Fsdpd__V1__Metrics *metrics);

/*
 * Chooses `keep` (at least 16) of more reports, sets `stays` of each, and returns how many stay.
 * The first and the latest quarter of `keep` stay, and of the others in each stretch of numbers,
 * whose length is a power of two: those with the least and the largest value of each curve, and the
 * first whose loss is not finite. A stretch ends where a job went back to an earlier step, so that
 * no report that was made again takes the place of one that is shown. If there is room for more,
 * they are extremes of stretches of half the length; if there is too little, the last curves'
 * extremes go.
 */
size_t metric_reports_thin(struct metric_reports *all, size_t keep);

void metric_reports_deinit(struct metric_reports *all);

#endif
