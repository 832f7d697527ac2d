/* Inside rpc/: messages as gRPC byte buffers, and outgoing queues of them. */
#ifndef FSDPD_RPC_MESSAGE_H
#define FSDPD_RPC_MESSAGE_H

#include <grpc/grpc.h>

#include "rpc/rpc.h"

grpc_byte_buffer *rpc_message_pack(const ProtobufCMessage *message);

/*
 * NULL if the bytes are not a valid message: they do not decode, a string is not UTF-8, or the
 * decoded form would be unreasonably large. Free with protobuf_c_message_free_unpacked.
 */
ProtobufCMessage *rpc_message_unpack(const ProtobufCMessageDescriptor *descriptor,
                                     grpc_byte_buffer *buffer);

/* The same for a response of this type, or for the message that it consists of (rpc_method in
 * rpc/rpc.h). To pack a message of another type gives NULL. */
grpc_byte_buffer *rpc_response_pack(const ProtobufCMessageDescriptor *response,
                                    const ProtobufCMessage *message);
ProtobufCMessage *rpc_response_unpack(const ProtobufCMessageDescriptor *response,
                                      grpc_byte_buffer *buffer);

/* Outgoing messages, in order. A zeroed struct is empty. */
struct rpc_outbox {
    struct rpc_outbox_item *first, *last;
    int count;
};

/* Takes ownership of the buffer. */
void rpc_outbox_push(struct rpc_outbox *outbox, grpc_byte_buffer *buffer);
/* The caller owns the buffer; NULL if the outbox is empty. */
grpc_byte_buffer *rpc_outbox_pop(struct rpc_outbox *outbox);
void rpc_outbox_clear(struct rpc_outbox *outbox);

#endif
