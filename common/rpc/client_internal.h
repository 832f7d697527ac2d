/*
 * Inside rpc/: the structs of channels and of the calls on them. Everything belongs to the loop's
 * thread.
 */
#ifndef FSDPD_RPC_CLIENT_INTERNAL_H
#define FSDPD_RPC_CLIENT_INTERNAL_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "rpc/client.h"
#include "rpc/runtime.h"

/* Identifies a file's version, to detect that it has changed. */
struct rpc_file_mark {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

struct rpc_channel {
    struct rpc_runtime *runtime;
    grpc_channel *channel;
    char *address; /* normalised, for messages */
    bool uses_tls;
    char *tls_ca, *tls_certificate, *tls_key; /* the files */
    const char *const *tls_names;             /* their names in messages */
    struct rpc_file_mark tls_marks[3];        /* versions of the files when they were read */
    struct rpc_client_call *calls;
    bool closing;
    struct rpc_tag closed_tag;
    void (*closed)(void *user);
    void *closed_user;
};

/* The common part of unary calls and streams; the first member of both. */
struct rpc_client_call {
    struct rpc_channel *channel;
    struct rpc_client_call *next, **link;
    const struct rpc_method *method;
    grpc_call *call;
    int64_t deadline_ms;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
    const char *error_string;
};

void rpc_client_call_init(struct rpc_client_call *call, struct rpc_channel *channel,
                          const struct rpc_method *method, int64_t deadline_ms);
void rpc_client_call_deinit(struct rpc_client_call *call);

/* The operations that every call starts and ends with. */
grpc_op rpc_client_call_open(bool wait_for_ready);
grpc_op rpc_client_call_initial(struct rpc_client_call *call);
grpc_op rpc_client_call_trailing(struct rpc_client_call *call);

/* The final status of the server (or gRPC); NULL for OK. */
status_t rpc_client_call_status(const struct rpc_client_call *call);

#endif
