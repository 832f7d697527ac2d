/*
 * Messages between the processes of a group over Gloo's TCP transport: the C++ layer below
 * comm_gloo.c. A buffer is memory exchanged with one peer; transfers of one buffer in one direction
 * finish in the order in which they were started. Internal to daemon/runtime; plain C and C++.
 *
 * One thread at a time sends, receives and waits; gloo_link_quit may be called from any.
 */
#ifndef FSDPD_RUNTIME_GLOO_LINK_H
#define FSDPD_RUNTIME_GLOO_LINK_H

#include "runtime/rendezvous.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gloo_link;
struct gloo_buffer;

/* Connects every rank with every other, through the store; see comm_gloo_new. */
status_t gloo_link_new(int rank, int world, const char *address, const char *group,
                       const struct rendezvous *store, int64_t join_ms,
                       struct gloo_link **link) FSDPD_MUST_USE;
void gloo_link_free(struct gloo_link *link); /* accepts NULL */

status_t gloo_buffer_new(struct gloo_link *link, int peer, void *memory, size_t bytes,
                         struct gloo_buffer **buffer) FSDPD_MUST_USE;
/* Unfinished transfers are abandoned; the memory is not accessed any more. Accepts NULL. */
void gloo_buffer_free(struct gloo_buffer *buffer);

/* Start a transfer. A message is received by the transfer with the sender's tag. */
status_t gloo_send(struct gloo_buffer *buffer, uint64_t tag, size_t offset,
                   size_t bytes) FSDPD_MUST_USE;
status_t gloo_receive(struct gloo_buffer *buffer, uint64_t tag, size_t offset,
                      size_t bytes) FSDPD_MUST_USE;

/* Wait for the next transfer of this buffer to finish. UNAVAILABLE names a lost peer;
 * DEADLINE_EXCEEDED when `deadline_ns` (clock_monotonic_ns) has passed. */
status_t gloo_wait_sent(struct gloo_buffer *buffer, int64_t deadline_ns) FSDPD_MUST_USE;
status_t gloo_wait_received(struct gloo_buffer *buffer, int64_t deadline_ns) FSDPD_MUST_USE;

/* Closes the connections: current and future waits fail with ABORTED, peers see a lost peer. */
void gloo_link_quit(struct gloo_link *link);

#ifdef __cplusplus
}
#endif

#endif
