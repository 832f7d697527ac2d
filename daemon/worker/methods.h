/* The coordinator's methods that a worker calls. */
#ifndef FSDPD_WORKER_METHODS_H
#define FSDPD_WORKER_METHODS_H

#include "rpc/rpc.h"

extern const struct rpc_method worker_method_attach;
extern const struct rpc_method worker_method_store_set;
extern const struct rpc_method worker_method_store_get;
extern const struct rpc_method worker_method_upload_state;

#endif
