/* The Attach stream of a worker, and its calls to the rendezvous store. */
#ifndef FSDPD_COORDINATOR_ATTACH_H
#define FSDPD_COORDINATOR_ATTACH_H

#include "coordinator/internal.h"

void attach_start(struct coordinator *c, struct rpc_call *call);
void attach_message(struct coordinator *c, struct rpc_call *call,
                    const Fsdpd__V1__WorkerMessage *message);
void attach_closed(struct coordinator *c, struct rpc_call *call, bool cancelled);

#endif
