/* The null device, for plans without a machine: it prefers layouts as CUDA does, and has neither
 * memory nor lanes. */
#include <stdlib.h>

#include "base/mem.h"
#include "runtime/device_table.h"

static void null_close(struct device *device)
{
    device_deinit(device);
    free(device);
}

static uint64_t null_memory_bytes(const struct device *device)
{
    (void)device;
    return (uint64_t)1 << 46;
}

static status_t null_prepare(struct device *device, const struct op_desc *desc, void **prepared,
                             uint64_t *workspace_bytes)
{
    (void)device;
    (void)desc;
    *prepared = NULL;
    *workspace_bytes = 0;
    return NULL;
}

static void null_unprepare(void *prepared)
{
    (void)prepared;
}

status_t device_null_open(struct device **device)
{
    static const struct device_table table = {
        .close = null_close,
        .memory_bytes = null_memory_bytes,
        .choose_layouts = graph_use_channels_last,
        .prepare = null_prepare,
        .unprepare = null_unprepare,
    };
    *device = mem_alloc(sizeof **device);
    device_init(*device, &table, "null", 1);
    return NULL;
}
