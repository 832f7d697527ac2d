/* What a coordinator shows of itself, and looks after; each part is a file. */
#ifndef FSDPD_COORDINATOR_MONITOR_H
#define FSDPD_COORDINATOR_MONITOR_H

#include "base/buf.h"
#include "coordinator/core/internal.h"

/* ---- certificate.c ---- */

/*
 * The end of the server's certificate, which is announced thirty days ahead: in the log once a day, in
 * the version that clients ask for, in /readyz and in a metric. An expired one is refused at start and
 * at a reload, but it may expire while fsdpd serves; then peers over TCP refuse it.
 */

/* Another certificate is used, which ends then (Unix time in seconds). */
void certificate_set(struct coordinator *c, int64_t end);

void certificate_tick(struct coordinator *c);

bool certificate_has_expired(const struct coordinator *c);

/* Describes an end that has come or that is near; otherwise adds nothing. */
void certificate_describe(const struct coordinator *c, struct buf *out);

/* ---- get_metrics.c ---- */

/*
 * GetMetrics: a job's events about its training, from the store, each with its attempt. A call is a
 * cursor into the events; it reads as fast as its client does.
 */

/* The handler of GetMetrics; the service is the coordinator. */
void get_metrics_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* ---- metrics.c ---- */

/* The text of /metrics, which Prometheus reads. */

/* The exposition, in Prometheus' text format 0.0.4. */
void metrics_write(const struct coordinator *c, struct buf *out);

/* Whether the coordinator accepts work; if not, *why is the reason in a word or two. */
bool metrics_is_ready(const struct coordinator *c, const char **why);

/* ---- scrubber.c ---- */

/*
 * Scrubs in the background, every scrub.days, on a thread of its own. What it finds is in the log,
 * in the log of the job, in a metric, in /readyz and in the status that clients ask for. When it
 * ended, and what it found, is also in "scrub" in the state directory, for the next start.
 */

void scrubber_open(struct coordinator *c);
void scrubber_tick(struct coordinator *c);
void scrubber_close(struct coordinator *c); /* waits for the part that is being read */

/* Describes what the last one found; adds nothing if all was whole. */
void scrubber_describe(const struct coordinator *c, struct buf *out);

/* How much it found, and when the last one ended (Unix time in seconds); 0: none did. */
uint64_t scrubber_damaged(const struct coordinator *c);
int64_t scrubber_ended(const struct coordinator *c);

#endif
