/*
 * Memory of the stub of the CUDA runtime. The device's is poisoned with NaNs when it is allocated,
 * ends at a guard page, and is accessible only to the device's own work: a host that reads it
 * crashes. Pinned memory of the host is counted.
 */
#include "memory_stub.h"
#include "cuda_stub.h"
#include "stub_streams.h"

#include <atomic>
#include <map>
#include <mutex>
#include <stdlib.h>
#include <string.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace
{

/* ---- memory of the device ---- */

enum { PAGE = 4096 };

struct device_memory {
    std::recursive_mutex lock;
    std::map<const char *, size_t> areas; /* by start; bytes without the guard */
    int working = 0;                      /* threads that work as the device */
};

device_memory &the_memory()
{
    static device_memory m;
    return m;
}

/* The area that contains an address; the end if it is the host's. */
std::map<const char *, size_t>::iterator find_area(const void *address)
{
    device_memory &m = the_memory();
    auto found = m.areas.upper_bound((const char *)address);
    if (found == m.areas.begin()) return m.areas.end();
    --found;
    return (size_t)((const char *)address - found->first) < found->second ? found : m.areas.end();
}

/* ---- pinned memory of the host ---- */

struct pinned_memory {
    std::mutex lock;
    uint64_t bytes = 0, peak = 0;
    std::map<const char *, size_t> areas;
};

pinned_memory &the_pinned()
{
    static pinned_memory p;
    return p;
}

} // namespace

/* ---- for the other stubs ---- */

void stub_as_device::change(int by)
{
    device_memory &m = the_memory();
    std::lock_guard<std::recursive_mutex> guard(m.lock);
    m.working += by;
    if (m.working != (by > 0 ? 1 : 0)) return;
    for (const auto &area : m.areas)
        mprotect((void *)area.first, area.second, by > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void *stub_take_memory(size_t bytes)
{
    device_memory &m = the_memory();
    size_t used = (bytes + 255) / 256 * 256, mapped = (used + PAGE - 1) / PAGE * PAGE;
    const bool idle = stub_is_idle();
    char *start = (char *)mmap(nullptr, mapped + PAGE, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | (idle ? MAP_NORESERVE : 0), -1, 0);
    if ((void *)start == MAP_FAILED) abort();
    if (!idle) memset(start, 0xff, mapped);
    std::lock_guard<std::recursive_mutex> guard(m.lock);
    mprotect(start + mapped, PAGE, PROT_NONE);
    if (m.working == 0) mprotect(start, mapped, PROT_NONE);
    m.areas[start] = mapped;
    return start + (mapped - used);
}

bool stub_is_of_device(const void *address)
{
    device_memory &m = the_memory();
    std::lock_guard<std::recursive_mutex> guard(m.lock);
    return find_area(address) != m.areas.end();
}

/* ---- memory that is counted ---- */

static std::atomic<uint64_t> counted_total{0}, outside{0}; /* 0: it is not */

static uint64_t allocated()
{
    device_memory &m = the_memory();
    std::lock_guard<std::recursive_mutex> guard(m.lock);
    uint64_t bytes = 0;
    for (const auto &area : m.areas) bytes += area.second;
    return bytes;
}

static bool has_room(uint64_t bytes)
{
    return counted_total == 0 || allocated() + outside + bytes <= counted_total;
}

void cuda_stub_memory(uint64_t bytes)
{
    counted_total = bytes;
}

bool stub_take_outside(int64_t bytes)
{
    if (bytes > 0 && !has_room((uint64_t)bytes)) return false;
    outside += (uint64_t)bytes;
    return true;
}

void stub_give_memory(void *memory)
{
    device_memory &m = the_memory();
    std::lock_guard<std::recursive_mutex> guard(m.lock);
    auto found = find_area(memory);
    if (found == m.areas.end()) abort(); /* was never allocated */
    munmap((void *)found->first, found->second + PAGE);
    m.areas.erase(found);
}

bool stub_is_pinned(const void *memory, size_t bytes)
{
    pinned_memory &p = the_pinned();
    std::lock_guard<std::mutex> guard(p.lock);
    const char *start = (const char *)memory;
    auto found = p.areas.upper_bound(start);
    if (found == p.areas.begin()) return false;
    --found;
    return (size_t)(start - found->first) + bytes <= found->second;
}

void stub_forget_pinned_peak()
{
    pinned_memory &p = the_pinned();
    std::lock_guard<std::mutex> guard(p.lock);
    p.peak = p.bytes;
}

uint64_t cuda_stub_pinned_peak(void)
{
    pinned_memory &p = the_pinned();
    std::lock_guard<std::mutex> guard(p.lock);
    return p.peak;
}

/* ---- CUDA ---- */

extern "C" {

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *total = stub_is_idle() ? (size_t)80 << 30 : (size_t)1 << 34;
    *available = *total - nccl_stub_taken();
    if (counted_total > 0) {
        uint64_t taken = allocated() + outside;
        *total = counted_total;
        *available = *total > taken ? *total - taken : 0;
    }
    return stub_result(0);
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    int error = stub_note_text("cudaMalloc", "");
    if (error == 0) error = stub_check_unsafe();
    if (error == 0 && !has_room(bytes)) error = cudaErrorMemoryAllocation;
    if (error != 0) return stub_result(error); /* not sticky, but kept until it is read */
    *memory = stub_take_memory(bytes);
    return stub_result(0);
}

cudaError_t cudaFree(void *memory)
{
    int error = stub_check_unsafe();
    if (error != 0) return stub_result(error);
    if (stub_is_nccl_memory(memory)) return stub_result(cudaErrorInvalidValue);
    if (memory != nullptr) stub_give_memory(memory);
    return stub_result(0);
}

static cudaError_t take_pinned(const char *call, void **memory, size_t bytes)
{
    int error = stub_note_text(call, "");
    if (error == 0) error = stub_check_unsafe();
    if (error != 0) return stub_result(error);
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    pinned_memory &p = the_pinned();
    std::lock_guard<std::mutex> guard(p.lock);
    p.areas[(const char *)*memory] = bytes;
    p.bytes += bytes;
    if (p.bytes > p.peak) p.peak = p.bytes;
    return stub_result(0);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return take_pinned("cudaMallocHost", memory, bytes);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    int policy = MPOL_DEFAULT;
    unsigned long nodes[16] = {0};
    syscall(SYS_get_mempolicy, &policy, nodes, sizeof nodes * 8, nullptr, 0);
    if (policy == MPOL_PREFERRED && nodes[0] == 1) stub_note_text("pages_on_node_0", "");
    return take_pinned("cudaHostAlloc", memory, bytes);
}

cudaError_t cudaFreeHost(void *memory)
{
    int error = stub_check_unsafe();
    if (error != 0) return stub_result(error);
    pinned_memory &p = the_pinned();
    std::lock_guard<std::mutex> guard(p.lock);
    auto found = p.areas.find((const char *)memory);
    if (found != p.areas.end()) {
        p.bytes -= found->second;
        p.areas.erase(found);
    }
    free(memory);
    return stub_result(0);
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    int error = stub_check_unsafe();
    if (error != 0) return stub_result(error);
    stub_as_device device;
    if (!stub_is_of_device(memory)) return stub_result(cudaErrorInvalidValue);
    if (!stub_is_idle()) memset(memory, value, bytes);
    return stub_result(0);
}

} /* extern "C" */
