/* The TCP connections of this process, as the kernel sees them: for a peer that does not answer. */
#ifndef FSDPD_BASE_CONNECTIONS_H
#define FSDPD_BASE_CONNECTIONS_H

#include <stdint.h>

enum { CONNECTIONS_MAX = 512, CONNECTION_TEXT = 64 };

struct connection {
    char local[CONNECTION_TEXT], peer[CONNECTION_TEXT]; /* "10.0.0.1:4711", "[::1]:80" */
    uint64_t unsent_bytes;                              /* that the peer has not confirmed */
    unsigned retransmissions;                           /* or probes, in a row */
};

/* Those that are open, or being opened; at most CONNECTIONS_MAX. The caller frees them. */
int connections_look(struct connection **connections);

#endif
