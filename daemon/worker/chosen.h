/* A job with fsdp.auto as it is once its settings were chosen. Pure. */
#ifndef FSDPD_WORKER_CHOSEN_H
#define FSDPD_WORKER_CHOSEN_H

#include "fsdpd/v1/control.pb-c.h"
#include "spec/spec.h"

/* A copy of `spec` with the choice's settings and without fsdp.auto; free it with spec_free. */
status_t chosen_spec(const Fsdpd__V1__JobSpec *spec, const Fsdpd__V1__PlanChoice *choice,
                     Fsdpd__V1__JobSpec **chosen) FSDPD_MUST_USE;

/* Sets the wrap of a choice of units (Plan.tune) from its settings. Nothing without settings. */
status_t chosen_set_wrap(const Fsdpd__V1__JobSpec *spec,
                         Fsdpd__V1__PlanChoice *choice) FSDPD_MUST_USE;

#endif
