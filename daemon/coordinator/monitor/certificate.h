/*
 * The end of the server's certificate, which is announced thirty days ahead: in the log once a day, in
 * the version that clients ask for, in /readyz and in a metric. An expired one is refused at start and
 * at a reload, but it may expire while fsdpd serves; then peers over TCP refuse it.
 */
#ifndef FSDPD_COORDINATOR_CERTIFICATE_H
#define FSDPD_COORDINATOR_CERTIFICATE_H

#include "base/buf.h"
#include "coordinator/core/internal.h"

/* Another certificate is used, which ends then (Unix time in seconds). */
void certificate_set(struct coordinator *c, int64_t end);

void certificate_tick(struct coordinator *c);

bool certificate_has_expired(const struct coordinator *c);

/* Describes an end that has come or that is near; otherwise adds nothing. */
void certificate_describe(const struct coordinator *c, struct buf *out);

#endif
