/* Memory that the stub of NCCL hands out and registers; see nccl_memory_stub.cc. */
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

/* Held by whatever uses the memory: work on its way, and graphs. */
typedef std::shared_ptr<stub_registration> stub_registered;

/* Where a collective's memory lies in what is registered: -1 if that is not compared. */
struct stub_place {
    long in = -1, out = -1;
    size_t in_bytes = 0, out_bytes = 0; /* of the registered memory */
    bool operator==(const stub_place &other) const
    {
        return in == other.in && out == other.out && in_bytes == other.in_bytes &&
               out_bytes == other.out_bytes;
    }
};

/* What ranks tell each other when they enqueue: by its number among such calls. */
struct stub_talk {
    int count = 0;
    stub_place place;
};
typedef std::map<uint64_t, stub_talk> stub_talks;

/* A communicator's. */
struct stub_registrations {
    std::vector<stub_registered> all;
    uint64_t talks = 0; /* calls so far that took the peers */
    bool talking = false;

    /* That has all these bytes; or null. */
    stub_registered find(const void *memory, size_t bytes) const;
};

enum { STUB_COMPARES_IN = 1, STUB_COMPARES_OUT = 2 };

/* Of a collective that is enqueued: both of its buffers are registered, or not, which is written
 * down where anything is. Whether peers are needed for it; `compares`: what NCCL looks at. Its
 * caller has the group's lock. */
bool stub_talk_begins(stub_registrations *mine, stub_talks *talks, int compares, const void *in,
                      size_t in_bytes, const void *out, size_t out_bytes);
/* Whether all have come to the last of them. */
bool stub_talk_is_over(const stub_registrations *mine, const stub_talks &talks, int world);

/* ncclCommRegister and ncclCommDeregister, of a communicator's. */
ncclResult_t stub_register(stub_registrations *mine, void *memory, size_t bytes, void **handle);
ncclResult_t stub_deregister(stub_registrations *mine, void *handle);

/* A communicator ends: nothing may be left, but by an abort. */
void stub_registrations_end(stub_registrations *mine, bool aborted);

#endif
