/* Memory that the stub of NCCL allocates and registers; see nccl_memory_stub.cc. */
#ifndef FSDPD_TESTS_NCCL_MEMORY_STUB_H
#define FSDPD_TESTS_NCCL_MEMORY_STUB_H

#include <nccl.h>

#include <map>
#include <memory>
#include <vector>

struct stub_registration {
    const char *start;
    size_t bytes;
};

/* Held by every user of the memory: pending work, and graphs. */
typedef std::shared_ptr<stub_registration> stub_registered;

/* The place of a collective's memory in the registered memory: -1 if it is not compared. */
struct stub_place {
    long in = -1, out = -1;
    size_t in_bytes = 0, out_bytes = 0; /* of the registered memory */
    bool operator==(const stub_place &other) const
    {
        return in == other.in && out == other.out && in_bytes == other.in_bytes &&
               out_bytes == other.out_bytes;
    }
};

/* The ranks' exchange when they enqueue: by its number among such calls. */
struct stub_exchange {
    int count = 0;
    stub_place place;
};
typedef std::map<uint64_t, stub_exchange> stub_needs_peers;

/* A communicator's. */
struct stub_registrations {
    std::vector<stub_registered> all;
    uint64_t exchanges = 0; /* calls so far that needed the peers */
    bool talking = false;

    /* The registration that covers all these bytes; or null. */
    stub_registered find(const void *memory, size_t bytes) const;
};

enum { STUB_COMPARES_IN = 1, STUB_COMPARES_OUT = 2 };

/* Begins a collective's enqueueing: both of its buffers are registered, or neither, which is
 * recorded if any memory is. Returns whether it needs peers; `compares`: what NCCL compares. The
 * caller holds the group's lock. */
bool stub_exchange_begins(stub_registrations *mine, stub_needs_peers *exchanges, int compares,
                          const void *in, size_t in_bytes, const void *out, size_t out_bytes);
/* Whether all ranks have reached the last of them. */
bool stub_exchange_is_over(const stub_registrations *mine, const stub_needs_peers &exchanges,
                           int world);

/* ncclCommRegister and ncclCommDeregister, and those of windows, for a communicator's registrations.
 * A window is all of an allocation. */
ncclResult_t stub_register(stub_registrations *mine, void *memory, size_t bytes, void **handle,
                           bool window);
ncclResult_t stub_deregister(stub_registrations *mine, void *handle);

/* A communicator ends: no registration may be left, except after an abort. */
void stub_registrations_end(stub_registrations *mine, bool aborted);

#endif
