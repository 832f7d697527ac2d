/*
 * The cpu as a device: anonymous memory maps, so that touched pages can be counted; ops prepared by
 * libkernels, the fast library first and the reference for ops that it refuses. Its lanes are
 * threads (lane_cpu.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "runtime/arena_pool.h"
#include "runtime/device_table.h"

/* Memory of at least that size is in huge pages where the system allows it, as the first touch of
 * each small page is a fault, of which large arenas have millions. */
enum { HUGE_BYTES = 128 << 20 };

static void cpu_close(struct device *device)
{
    device_deinit(device);
    free(device);
}

static uint64_t cpu_memory_bytes(const struct device *device)
{
    (void)device;
    return host_memory_available() + arena_pool_bytes();
}

static uint64_t page_round(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static status_t cpu_map(struct device *device, uint64_t bytes, void **memory)
{
    char wanted[32], present[32];
    *memory = arena_pool_take(page_round(bytes));
    if (*memory != NULL) return NULL;
    uint64_t available = host_memory_available();
    void *mapped = MAP_FAILED;
    if (bytes <= available)
        mapped = mmap(NULL, page_round(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
    if (mapped == MAP_FAILED && bytes <= available)
        return status_from_errno(errno, "device %s: cannot allocate %s; the host has %s available",
                                 device->name, text_format_bytes(bytes, wanted),
                                 text_format_bytes(available, present));
    if (mapped == MAP_FAILED)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "device %s: cannot allocate %s; the host has %s available", device->name,
                          text_format_bytes(bytes, wanted), text_format_bytes(available, present));
    if (bytes >= HUGE_BYTES) {
        madvise(mapped, page_round(bytes), MADV_HUGEPAGE); /* only advice */
        if (device->touches) arena_touch_begin(mapped, page_round(bytes));
    }
    *memory = mapped;
    return NULL;
}

static void cpu_unmap(struct device *device, void *memory, uint64_t bytes)
{
    uint64_t size = page_round(bytes);
    if (device->touches) arena_touch_end(memory);
    if (!device->reuses || !arena_pool_give(memory, size)) munmap(memory, size);
}

static uint64_t cpu_touched(struct device *device, void *memory, uint64_t bytes)
{
    (void)device;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    size_t pages = page_round(bytes) / page;
    unsigned char *resident = mem_alloc(pages);
    uint64_t touched = 0;
    if (mincore(memory, pages * page, resident) == 0)
        for (size_t i = 0; i < pages; i++) touched += resident[i] & 1;
    free(resident);
    return touched * page < bytes ? touched * page : bytes;
}

static status_t cpu_prepare(struct device *device, const struct op_desc *desc, void **prepared,
                            uint64_t *workspace_bytes)
{
    struct kernel *kernel = NULL;
    kernels_set_threads(device->threads);
    status_t status = kernel_new(KERNELS_CPU, desc, &kernel);
    if (status_code(status) == STATUS_UNIMPLEMENTED) {
        status_free(status);
        status = kernel_new(KERNELS_REFERENCE, desc, &kernel);
    }
    if (status != NULL) return status;
    *prepared = kernel;
    *workspace_bytes = kernel_workspace_bytes(kernel);
    return NULL;
}

static void cpu_unprepare(void *prepared)
{
    kernel_free(prepared);
}

status_t device_cpu_open(int threads, struct device **device)
{
    static const struct device_table table = {
        .close = cpu_close,
        .memory_bytes = cpu_memory_bytes,
        .map = cpu_map,
        .unmap = cpu_unmap,
        .touched = cpu_touched,
        .choose_layouts = graph_use_channels_last,
        .prepare = cpu_prepare,
        .unprepare = cpu_unprepare,
        .lane_open = lane_cpu_open,
        .lane_close = lane_cpu_close,
        .event_new = lane_cpu_event_new,
        .event_free = lane_cpu_event_free,
        .record = lane_cpu_record,
        .wait_event = lane_cpu_wait_event,
        .call = lane_cpu_call,
        .copy = lane_cpu_copy,
        .launch = lane_cpu_launch,
        .optimize = lane_cpu_optimize,
        .round = lane_cpu_round,
        .stamp = lane_cpu_stamp,
        .zero = lane_cpu_zero,
        .add = lane_cpu_add,
        .norm = lane_cpu_norm,
        .gate = lane_cpu_gate,
        .wait = lane_cpu_wait,
        .look = lane_cpu_look,
        .busy_ns = lane_cpu_busy_ns,
    };
    struct device *result = mem_alloc(sizeof *result);
    device_init(result, &table, "cpu", threads);
    *device = result;
    return NULL;
}
