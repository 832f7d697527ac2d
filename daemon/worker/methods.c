/* The coordinator's methods; see methods.h. */
#include "worker/methods.h"

#include "fsdpd/v1/worker.pb-c.h"

const struct rpc_method worker_method_attach = {
    "/fsdpd.v1.WorkerLink/Attach",
    RPC_BIDIRECTIONAL,
    &fsdpd__v1__worker_message__descriptor,
    &fsdpd__v1__coordinator_message__descriptor,
};

const struct rpc_method worker_method_store_set = {
    "/fsdpd.v1.WorkerLink/StoreSet",
    RPC_UNARY,
    &fsdpd__v1__store_set_request__descriptor,
    &fsdpd__v1__store_set_response__descriptor,
};

const struct rpc_method worker_method_store_get = {
    "/fsdpd.v1.WorkerLink/StoreGet",
    RPC_UNARY,
    &fsdpd__v1__store_get_request__descriptor,
    &fsdpd__v1__store_get_response__descriptor,
};

const struct rpc_method worker_method_upload_state = {
    "/fsdpd.v1.WorkerLink/UploadState",
    RPC_CLIENT_STREAM,
    &fsdpd__v1__upload_state_request__descriptor,
    &fsdpd__v1__upload_state_response__descriptor,
};
