/* Short names and small helpers for the API's messages, which protobuf-c spells out in full. */
#ifndef FSDPD_COORDINATOR_MESSAGE_H
#define FSDPD_COORDINATOR_MESSAGE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdpd/v1/control.pb-c.h"
#include "fsdpd/v1/worker.pb-c.h"
#include "proto/message.h"

typedef Fsdpd__V1__Job job_message;
typedef Fsdpd__V1__JobSpec job_spec;
typedef Fsdpd__V1__JobEvent job_event;

enum job_state {
    JOB_QUEUED = FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED,
    JOB_STARTING = FSDPD__V1__JOB_STATE__JOB_STATE_STARTING,
    JOB_RUNNING = FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING,
    JOB_PAUSED = FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED,
    JOB_SUCCEEDED = FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED,
    JOB_FAILED = FSDPD__V1__JOB_STATE__JOB_STATE_FAILED,
    JOB_CANCELLED = FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED,
};

/* "RUNNING" */
const char *job_state_name(int state);

/* SUCCEEDED, FAILED or CANCELLED. */
static inline bool job_state_is_over(int state)
{
    return state == JOB_SUCCEEDED || state == JOB_FAILED || state == JOB_CANCELLED;
}

/* Whether two messages of one type are equal, field by field. */
bool message_equal(const void *a, const void *b);

/* Replaces a string field (heap memory, or protobuf-c's empty string) with a copy of `text`. */
void message_set_text(char **field, const char *text);

#endif
