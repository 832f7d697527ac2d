/* The metrics of a task, as text. */
#ifndef FSDPD_PRINT_SCORES_H
#define FSDPD_PRINT_SCORES_H

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"

/* A mean: "0.2341", "93.10%"; "-" if nothing counts. `text`: for it, returned. */
const char *scores_loss(double loss, char text[static 32]);
const char *scores_share(double share, char text[static 32]);

/* Appends ", accuracy 93.10%, F1 0.9120", for those that there are; `scores` may be NULL. */
void scores_add(const Fsdpd__V1__Scores *scores, struct buf *out);

/* Appends ", F1 0.9120" if there is one, after an accuracy that another field has; `scores` may be
 * NULL. */
void scores_add_f1(const Fsdpd__V1__Scores *scores, struct buf *out);

#endif
