/*
 * NCCL's memory and its registration, for tests, with the rules of its documentation. Registered
 * memory comes from ncclMemAlloc and is freed by ncclMemFree, after its deregistration; that
 * happens before the communicator ends and after the last use of the memory, including graphs. If a
 * collective's memory is registered, its ranks exchange data when they enqueue it, also during a
 * capture: then all of them must enqueue it, with the memory at the same place. A breach of a rule
 * ends the test.
 */
#include "nccl_memory_stub.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <thread>

#include "cuda_stub.h"
#include "stub_streams.h"

namespace
{

enum { GRANULARITY = 2 << 20 };

struct area {
    size_t bytes;
    int registrations = 0; /* by any communicator */
};

struct all_areas {
    std::mutex lock;
    std::map<const char *, area> areas;
    uint64_t taken = 0;
    int version = 0;
};

all_areas &everything()
{
    static all_areas a;
    return a;
}

uint64_t round_up(size_t bytes)
{
    return (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
}

[[noreturn]] void die(const char *why)
{
    fprintf(stderr, "nccl_stub: %s\n", why);
    abort();
}

void end(const stub_registered &registration)
{
    all_areas &all = everything();
    std::lock_guard<std::mutex> guard(all.lock);
    all.areas[registration->start].registrations--;
}

} // namespace

stub_registered stub_registrations::find(const void *memory, size_t bytes) const
{
    const char *start = (const char *)memory;
    for (const stub_registered &r : all)
        if (start >= r->start && (size_t)(start - r->start) + bytes <= r->bytes) return r;
    return nullptr;
}

bool stub_exchange_begins(stub_registrations *mine, stub_needs_peers *exchanges, int compares,
                          const void *in, size_t in_bytes, const void *out, size_t out_bytes)
{
    if (mine->all.empty()) return false;
    stub_registered from = mine->find(in, in_bytes), to = mine->find(out, out_bytes);
    stub_note_text(from != nullptr && to != nullptr ? "registered" : "unregistered", "");
    stub_place place;
    if (compares & STUB_COMPARES_IN) {
        if (from == nullptr) return false;
        place.in = (const char *)in - from->start;
        place.in_bytes = from->bytes;
    }
    if (compares & STUB_COMPARES_OUT) {
        if (to == nullptr) return false;
        place.out = (const char *)out - to->start;
        place.out_bytes = to->bytes;
    }
    if (compares == 0) return false;
    stub_exchange &exchange = (*exchanges)[mine->exchanges++];
    if (exchange.count++ == 0) exchange.place = place;
    else if (!(exchange.place == place)) die("ranks' registered buffers lie at different places");
    mine->talking = true;
    return true;
}

bool stub_exchange_is_over(const stub_registrations *mine, const stub_needs_peers &exchanges,
                           int world)
{
    return exchanges.at(mine->exchanges - 1).count == world;
}

void stub_registrations_end(stub_registrations *mine, bool aborted)
{
    if (!aborted && !mine->all.empty()) die("a communicator ends with registered memory");
    for (const stub_registered &registration : mine->all) end(registration);
    mine->all.clear();
}

bool stub_is_nccl_memory(const void *memory)
{
    all_areas &all = everything();
    std::lock_guard<std::mutex> guard(all.lock);
    return all.areas.count((const char *)memory) > 0;
}

extern "C" {

void nccl_stub_version(int version)
{
    everything().version = version;
}

uint64_t nccl_stub_taken(void)
{
    all_areas &all = everything();
    std::lock_guard<std::mutex> guard(all.lock);
    return all.taken;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = everything().version > 0 ? everything().version : NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    int error = stub_note_text("ncclMemAlloc", "");
    if (error == 0 && stub_check_unsafe() != 0) error = ncclUnhandledCudaError;
    if (error != 0) return (ncclResult_t)error;
    *memory = stub_take_memory(bytes);
    all_areas &all = everything();
    std::lock_guard<std::mutex> guard(all.lock);
    all.areas[(const char *)*memory] = area{bytes};
    all.taken += round_up(bytes);
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory)
{
    stub_note_text("ncclMemFree", "");
    all_areas &all = everything();
    std::lock_guard<std::mutex> guard(all.lock);
    auto found = all.areas.find((const char *)memory);
    if (found == all.areas.end()) die("ncclMemFree of what ncclMemAlloc did not give");
    if (found->second.registrations != 0) die("ncclMemFree of registered memory");
    all.taken -= round_up(found->second.bytes);
    all.areas.erase(found);
    stub_give_memory(memory);
    return ncclSuccess;
}

} /* extern "C" */

static std::atomic<bool> hangs{false};

void nccl_stub_hang_registering(void)
{
    hangs = true;
}

ncclResult_t stub_register(stub_registrations *mine, void *memory, size_t bytes, void **handle,
                           bool window)
{
    int error = stub_note_text(window ? "ncclCommWindowRegister" : "ncclCommRegister", "");
    if (error != 0) return (ncclResult_t)error;
    while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    all_areas &all = everything();
    std::lock_guard<std::mutex> guard(all.lock);
    auto found = all.areas.find((const char *)memory);
    if (found == all.areas.end() || found->second.bytes < bytes) return ncclInvalidArgument;
    if (window && (found->second.bytes != bytes || mine->find(memory, 1) != nullptr))
        die("an allocation is one window, or nccl#2198 corrupts it");
    found->second.registrations++;
    mine->all.push_back(
        std::make_shared<stub_registration>(stub_registration{(const char *)memory, bytes}));
    *handle = mine->all.back().get();
    return ncclSuccess;
}

ncclResult_t stub_deregister(stub_registrations *mine, void *handle)
{
    int error = stub_note_text("ncclCommDeregister", "");
    for (auto at = mine->all.begin(); at != mine->all.end(); ++at) {
        if (at->get() != handle) continue;
        if (at->use_count() > 1) die("memory is deregistered that work or a graph still uses");
        end(*at);
        mine->all.erase(at);
        return (ncclResult_t)error;
    }
    die("ncclCommDeregister of an unknown handle");
}
