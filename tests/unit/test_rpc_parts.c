/* The pure parts of common/rpc: addresses, the index of descriptors, decoding of hostile bytes. */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "fsdpd/v1/control.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "proto/descriptors.h"
#include "rpc/address.h"
#include "rpc/descriptors.h"
#include "rpc/message.h"
#include "tests/testing.h"

/* ---- addresses ---- */

static const struct {
    const char *address, *normal, *target;
} good[] = {
    {"unix:/run/fsdpd.sock", "unix:/run/fsdpd.sock", "unix:/run/fsdpd.sock"},
    {"unix:///run/x", "unix:/run/x", "unix:/run/x"},
    {"unix:////run/x", "unix:/run/x", "unix:/run/x"},
    {"unix:/a b%c?#", "unix:/a b%c?#", "unix:/a%20b%25c%3F%23"},
    {"127.0.0.1:80", "127.0.0.1:80", "ipv4:127.0.0.1:80"},
    {"localhost:0", "localhost:0", "dns:///localhost:0"},
    {"gpu-7.example.org:65535", "gpu-7.example.org:65535", "dns:///gpu-7.example.org:65535"},
    {"[::1]:50051", "[::1]:50051", "ipv6:%5B::1%5D:50051"},
};

LOOP_TEST(addresses_good, 0, COUNT_OF(good))
{
    char *normal = NULL;
    status_t status = rpc_address_parse(good[_i].address, &normal);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(normal, good[_i].normal);
    char *target = rpc_address_target(normal);
    ck_assert_str_eq(target, good[_i].target);
    free(target);
    free(normal);
}

/* The address, and the required message. */
static const struct {
    const char *address, *part;
} bad[] = {
    {"", "host:port"},
    {"unix:", "no path"},
    {"unix://host/x", "absolute path"},
    {"/run/x", "unix:/run/x"},
    {"localhost", "host:port"},
    {":80", "0.0.0.0"},
    {"host:", "port"},
    {"host:http", "\"http\""},
    {"host:65536", "65535"},
    {"host:-1", "65535"},
    {"host:99999999999999999999", "65535"},
    {"::1:80", "brackets"},
    {"[::1:80", "[::1"},
    {"[nonsense]:80", "not a valid host"},
    {"[]:80", "not a valid host"},
    {"[:80", "not a valid host"},
    {"ho st:80", "not a valid host"},
    {"http://host:80", "host:port"},
};

LOOP_TEST(addresses_bad, 0, COUNT_OF(bad))
{
    char *normal = NULL;
    status_t status = rpc_address_parse(bad[_i].address, &normal);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), bad[_i].part) != NULL, "%s",
                  status_message(status));
    ck_assert_msg(strstr(status_message(status), bad[_i].address) != NULL, "%s",
                  status_message(status));
    ck_assert_ptr_null(normal);
    status_free(status);
}

TEST(addresses_relative_and_long)
{
    char *normal, *here = getcwd(NULL, 0);
    ck_assert_ptr_null(rpc_address_parse("unix:run/x", &normal));
    char *expected = mem_printf("unix:%s/run/x", here);
    ck_assert_str_eq(normal, expected);
    free(expected);
    free(normal);
    free(here);
    char path[6 + 108 + 1] = "unix:/";
    memset(path + 6, 'x', 106); /* 107 with the slash: the maximum */
    ck_assert_ptr_null(rpc_address_parse(path, &normal));
    free(normal);
    path[6 + 106] = 'x';
    status_t status = rpc_address_parse(path, &normal);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "107"));
    status_free(status);
}

TEST(addresses_split)
{
    char *host;
    int port;
    rpc_address_split("[::1]:5", &host, &port);
    ck_assert_str_eq(host, "::1");
    ck_assert_int_eq(port, 5);
    free(host);
    rpc_address_split("a.b:70", &host, &port);
    ck_assert_str_eq(host, "a.b");
    ck_assert_int_eq(port, 70);
    free(host);
}

/* ---- descriptors ---- */

TEST(descriptors_of_the_api)
{
    struct descriptors *descriptors;
    ck_assert_ptr_null(descriptors_new(proto_descriptors, proto_descriptors_size, &descriptors));
    int file = descriptors_find_file(descriptors, "grpc/reflection/v1alpha/reflection.proto");
    ck_assert_int_ge(file, 0);
    static const struct {
        const char *name;
        enum descriptors_kind kind;
    } symbols[] = {
        {"grpc.reflection.v1alpha.ServerReflection", DESCRIPTORS_SERVICE},
        {"grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", DESCRIPTORS_MEMBER},
        {"grpc.reflection.v1alpha.ErrorResponse", DESCRIPTORS_MESSAGE},
        {"grpc.reflection.v1alpha.ErrorResponse.error_code", DESCRIPTORS_MEMBER},
        {"grpc.reflection.v1alpha.ServerReflectionRequest.message_request", DESCRIPTORS_MEMBER},
    };
    for (size_t i = 0; i < COUNT_OF(symbols); i++) {
        const struct descriptors_symbol *symbol =
            descriptors_find_symbol(descriptors, symbols[i].name);
        ck_assert_msg(symbol != NULL, "%s", symbols[i].name);
        ck_assert_int_eq(symbol->kind, symbols[i].kind);
        ck_assert_int_eq(symbol->file, file);
    }
    const struct descriptors_symbol *nested =
        descriptors_find_symbol(descriptors, "grpc.health.v1.HealthCheckResponse.ServingStatus");
    ck_assert_ptr_nonnull(nested);
    ck_assert_int_eq(nested->kind, DESCRIPTORS_ENUM);
    ck_assert_ptr_null(descriptors_find_symbol(descriptors, "grpc.health.v1"));
    ck_assert_ptr_null(descriptors_find_symbol(descriptors, ""));
    int *order = mem_alloc_array((size_t)descriptors_file_count(descriptors), sizeof *order);
    ck_assert_int_eq(descriptors_closure(descriptors, file, order), 1);
    ck_assert_int_eq(order[0], file);
    free(order);
    descriptors_free(descriptors);
}

TEST(descriptors_import_circles_end)
{
    /* Two files that import each other and one that is missing. */
    static const uint8_t bytes[] = {10,  9,  10, 1,  'a', 26,  1,  'b', 26, 1,
                                    'z', 10, 6,  10, 1,   'b', 26, 1,   'a'};
    struct descriptors *descriptors;
    ck_assert_ptr_null(descriptors_new(bytes, sizeof bytes, &descriptors));
    int order[2];
    ck_assert_int_eq(descriptors_closure(descriptors, 1, order), 2);
    ck_assert_int_eq(order[0], 1);
    ck_assert_int_eq(order[1], 0);
    descriptors_free(descriptors);
}

TEST(descriptors_cut_and_changed)
{
    /* The sanitizers detect reads beyond the end. */
    srand(7);
    int refused = 0;
    for (int round = 0; round < 400; round++) {
        size_t size = (size_t)rand() % proto_descriptors_size;
        uint8_t *bytes = mem_alloc(size);
        memcpy(bytes, proto_descriptors, size);
        for (int i = 0; i < round % 4 && size > 0; i++)
            bytes[(size_t)rand() % size] = (uint8_t)rand();
        struct descriptors *descriptors;
        status_t status = descriptors_new(bytes, size, &descriptors);
        if (status) refused++;
        else descriptors_free(descriptors);
        status_free(status);
        free(bytes);
    }
    ck_assert_int_gt(refused, 300);
}

static const int nestings[] = {65, 66, 100}; /* messages, each in the one before */

LOOP_TEST(descriptors_nested_too_deep, 0, COUNT_OF(nestings))
{
    size_t size = 0;
    uint8_t bytes[1024];
    uint8_t inner[1024];
    for (int depth = 0; depth < nestings[_i]; depth++) {
        memmove(inner, bytes, size);
        size_t at = 0;
        bytes[at++] = 10, bytes[at++] = 1, bytes[at++] = 'm';
        if (size) {
            bytes[at++] = 26;
            bytes[at++] = (uint8_t)(0x80 | (size & 0x7f));
            bytes[at++] = (uint8_t)(size >> 7);
            memcpy(bytes + at, inner, size);
        }
        size += at;
        ck_assert_uint_lt(size, sizeof bytes - 16);
    }
    uint8_t set[1200] = {0};
    size_t inside = size + 3, at = 0;
    set[at++] = 10, set[at++] = (uint8_t)(0x80 | (inside & 0x7f)),
    set[at++] = (uint8_t)(inside >> 7);
    set[at++] = 34, set[at++] = (uint8_t)(0x80 | (size & 0x7f)), set[at++] = (uint8_t)(size >> 7);
    memcpy(set + at, bytes, size);
    struct descriptors *descriptors;
    status_t status = descriptors_new(set, at + size, &descriptors);
    ck_assert_int_eq(status_code(status), nestings[_i] > 65 ? STATUS_INVALID_ARGUMENT : STATUS_OK);
    if (status == NULL) descriptors_free(descriptors);
    status_free(status);
}

/* ---- decoding ---- */

static ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
                                size_t size)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, size);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    ProtobufCMessage *message = rpc_message_unpack(type, buffer);
    grpc_byte_buffer_destroy(buffer);
    return message;
}

static const struct {
    const char *text;
    bool valid;
} texts[] = {
    {"plain", true},         {"ü€😀", true},
    {"\xff", false},         {"\xc3", false},
    {"\xc0\x80", false},     {"\xe0\x80\x80", false},
    {"\xed\xa0\x80", false}, {"\xf4\x90\x80\x80", false},
    {"\xf0\x9f\x98", false}, {"\xf4\x8f\xbf\xbf", true},
    {"a\x80", false},        {"\xf8\x88\x80\x80\x80", false},
};

static void grpc_up(void)
{
    grpc_init();
}

static void grpc_down(void)
{
    grpc_shutdown_blocking();
}

TESTS_BELOW(.timeout = 60, .set_up = grpc_up, .tear_down = grpc_down);

LOOP_TEST(decoding_requires_utf8, 0, COUNT_OF(texts))
{
    size_t length = strlen(texts[_i].text);
    char bytes[64] = {10, (char)length};
    memcpy(bytes + 2, texts[_i].text, length);
    ProtobufCMessage *message =
        unpack(&grpc__health__v1__health_check_request__descriptor, bytes, length + 2);
    ck_assert_int_eq(message != NULL, texts[_i].valid);
    if (message) protobuf_c_message_free_unpacked(message, NULL);
}

TEST(decoding_looks_into_nested_and_chosen_fields)
{
    /* ServerReflectionResponse.original_request.list_services = "\xff" */
    static const char nested[] = {18, 3, 58, 1, (char)0xff};
    ck_assert_ptr_null(unpack(&grpc__reflection__v1alpha__server_reflection_response__descriptor,
                              nested, sizeof nested));
    /* ListServiceResponse with two services, the second named "\xff" */
    static const char repeated[] = {10, 3, 10, 1, 'a', 10, 3, 10, 1, (char)0xff};
    ck_assert_ptr_null(unpack(&grpc__reflection__v1alpha__list_service_response__descriptor,
                              repeated, sizeof repeated));
    ProtobufCMessage *message =
        unpack(&grpc__reflection__v1alpha__list_service_response__descriptor, repeated, 5);
    ck_assert_ptr_nonnull(message);
    protobuf_c_message_free_unpacked(message, NULL);
    /* Bytes may be anything: FileDescriptorResponse. */
    message =
        unpack(&grpc__reflection__v1alpha__file_descriptor_response__descriptor, "\x0a\x01\xff", 3);
    ck_assert_ptr_nonnull(message);
    protobuf_c_message_free_unpacked(message, NULL);
    /* An empty message has no bytes at all. */
    message = unpack(&grpc__health__v1__health_check_request__descriptor, "", 0);
    ck_assert_ptr_nonnull(message);
    protobuf_c_message_free_unpacked(message, NULL);
}

TEST(decoding_has_a_memory_budget)
{
    /* Millions of empty services: two bytes each on the wire, dozens in memory. */
    size_t size = RPC_MESSAGE_MAX;
    char *bytes = mem_alloc(size);
    for (size_t i = 0; i < size; i += 2) bytes[i] = 10;
    ck_assert_ptr_null(
        unpack(&grpc__reflection__v1alpha__list_service_response__descriptor, bytes, size));
    ProtobufCMessage *message =
        unpack(&grpc__reflection__v1alpha__list_service_response__descriptor, bytes, size / 64);
    ck_assert_ptr_nonnull(message);
    protobuf_c_message_free_unpacked(message, NULL);
    free(bytes);
}

TEST(decoding_random_bytes)
{
    srand(11);
    static const ProtobufCMessageDescriptor *const types[] = {
        &grpc__reflection__v1alpha__server_reflection_response__descriptor,
        &grpc__reflection__v1alpha__list_service_response__descriptor,
        &grpc__reflection__v1alpha__file_descriptor_response__descriptor,
    };
    int refused = 0;
    for (int round = 0; round < 3000; round++) {
        unsigned char bytes[48];
        size_t size = (size_t)rand() % sizeof bytes;
        for (size_t i = 0; i < size; i++)
            bytes[i] = rand() % 3 ? (unsigned char)(rand() % 40) : (unsigned char)rand();
        ProtobufCMessage *message = unpack(types[round % 3], bytes, size);
        if (message) protobuf_c_message_free_unpacked(message, NULL);
        else refused++;
    }
    ck_assert_int_gt(refused, 1000);
}

/* The caller frees it. */
static void *read_response(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *buffer)
{
    ProtobufCMessage *message = rpc_response_unpack(type, buffer);
    ck_assert_ptr_nonnull(message);
    grpc_byte_buffer_destroy(buffer);
    return message;
}

TEST(a_response_of_one_message_is_wrapped)
{
    const ProtobufCMessageDescriptor *type = &fsdpd__v1__get_job_response__descriptor;
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT, *read;
    Fsdpd__V1__GetJobResponse whole = FSDPD__V1__GET_JOB_RESPONSE__INIT;
    job.id = (char *)"mnist-1";
    whole.job = &job;
    /* The message or the response around it: the bytes are the same. */
    const ProtobufCMessage *const sent[] = {&job.base, &whole.base};
    for (int i = 0; i < 2; i++) {
        grpc_byte_buffer *buffer = rpc_response_pack(type, sent[i]);
        ck_assert_uint_eq(grpc_byte_buffer_length(buffer), 2 + 2 + strlen(job.id));
        read = read_response(type, buffer);
        ck_assert_ptr_eq(read->base.descriptor, &fsdpd__v1__job__descriptor);
        ck_assert_str_eq(read->id, "mnist-1");
        fsdpd__v1__job__free_unpacked(read, NULL);
    }
    whole.job = NULL;
    read = read_response(type, rpc_response_pack(type, &whole.base));
    ck_assert_str_eq(read->id, "");
    fsdpd__v1__job__free_unpacked(read, NULL);
    /* Others are left as they are. */
    Fsdpd__V1__ForgetJobResponse none = FSDPD__V1__FORGET_JOB_RESPONSE__INIT;
    Fsdpd__V1__GetVersionResponse version = FSDPD__V1__GET_VERSION_RESPONSE__INIT;
    const ProtobufCMessage *const others[] = {&none.base, &version.base};
    for (int i = 0; i < 2; i++) {
        type = others[i]->descriptor;
        ProtobufCMessage *same = read_response(type, rpc_response_pack(type, others[i]));
        ck_assert_ptr_eq(same->descriptor, type);
        protobuf_c_message_free_unpacked(same, NULL);
    }
}

TEST(a_message_of_another_type_is_not_packed)
{
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    Fsdpd__V1__Checkpoint checkpoint = FSDPD__V1__CHECKPOINT__INIT;
    /* A response around one message, around another, and one of several fields. */
    ck_assert_ptr_null(
        rpc_response_pack(&fsdpd__v1__get_job_response__descriptor, &checkpoint.base));
    ck_assert_ptr_null(
        rpc_response_pack(&fsdpd__v1__create_checkpoint_response__descriptor, &job.base));
    ck_assert_ptr_null(
        rpc_response_pack(&fsdpd__v1__get_version_response__descriptor, &job.base));
}

TEST(outbox_keeps_order)
{
    struct rpc_outbox outbox = {0};
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    static const char *const names[] = {"", "x", "xx"};
    for (int i = 0; i < 3; i++) {
        request.service = (char *)names[i];
        rpc_outbox_push(&outbox, rpc_message_pack(&request.base));
    }
    ck_assert_int_eq(outbox.count, 3);
    for (size_t i = 0; i < 2; i++) {
        grpc_byte_buffer *buffer = rpc_outbox_pop(&outbox);
        ck_assert_uint_eq(grpc_byte_buffer_length(buffer), i ? i + 2 : 0);
        grpc_byte_buffer_destroy(buffer);
    }
    rpc_outbox_push(&outbox, rpc_message_pack(&request.base));
    rpc_outbox_clear(&outbox);
    ck_assert_int_eq(outbox.count, 0);
    ck_assert_ptr_null(rpc_outbox_pop(&outbox));
}
