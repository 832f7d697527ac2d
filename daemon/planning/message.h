/* A session's plan as the API's message, with estimates for a profile. */
#ifndef FSDPD_PLANNING_MESSAGE_H
#define FSDPD_PLANNING_MESSAGE_H

#include "fsdpd/v1/control.pb-c.h"
#include "planning/profile.h"
#include "setup/session.h"

struct plan_message_options {
    const struct profile *profile; /* what times are estimated for */
    uint64_t memory_bytes;         /* of the device */
    bool schedule, dump;
};

/* Free it with fsdpd__v1__plan__free_unpacked. Times are rounded to four digits: they are
 * estimates, and all compilers produce the same text. */
Fsdpd__V1__Plan *plan_message_new(const struct train_session *session,
                                  const struct plan_message_options *options);

double plan_message_round(double seconds);

void plan_message_add_note(Fsdpd__V1__Plan *plan, const char *format, ...) FSDPD_PRINTF(2, 3);
void plan_message_add_advice(Fsdpd__V1__Plan *plan, const char *format, ...) FSDPD_PRINTF(2, 3);

#endif
