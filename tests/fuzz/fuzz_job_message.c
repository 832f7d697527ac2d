/* JobSpec as it comes over the network: decoded as the server does it, completed, validated. */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>

#include "rpc/message.h"
#include "spec_round_trip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)data, size);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    ProtobufCMessage *message = rpc_message_unpack(&fsdpd__v1__job_spec__descriptor, buffer);
    grpc_byte_buffer_destroy(buffer);
    if (message == NULL) return 0;
    Fsdpd__V1__JobSpec *spec = (Fsdpd__V1__JobSpec *)(void *)message;
    spec_complete(spec);
    status_t status = spec_validate(spec);
    if (status == NULL) fuzz_check_round_trip(spec);
    else fuzz_expect_user_error(status);
    protobuf_c_message_free_unpacked(message, NULL);
    return 0;
}
