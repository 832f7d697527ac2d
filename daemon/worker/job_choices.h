/* Maps the choices of jobs to training's enums. */
#ifndef FSDPD_WORKER_JOB_CHOICES_H
#define FSDPD_WORKER_JOB_CHOICES_H

#include "fsdpd/v1/control.pb-c.h"

/* One value of an enum of a job's message with more than two. */
struct job_choice {
    const ProtobufCEnumDescriptor *type;
    int given, value; /* of the message's enum, and of training's */
};

/* All of them; the last one has no type. */
extern const struct job_choice job_choices[];

/* Training's value. Only for one that common/spec has checked. */
int job_choice(const ProtobufCEnumDescriptor *type, int given);

#endif
