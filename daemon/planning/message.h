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

/* A strategy, and a policy of a job of `world` ranks with every default filled in; free it with
 * message_free. */
Fsdpd__V1__Strategy plan_message_strategy(enum strategy strategy);
Fsdpd__V1__WrapSpec *plan_message_wrap(const struct wrap_policy *policy, int world);

/* Copies; NULL if there are none. */
char **plan_message_texts(const char *const *texts, int count);

double plan_message_round(double seconds);

void plan_message_add_note(Fsdpd__V1__Plan *plan, const char *format, ...) FSDPD_PRINTF(2, 3);
void plan_message_add_advice(Fsdpd__V1__Plan *plan, const char *format, ...) FSDPD_PRINTF(2, 3);

#endif
