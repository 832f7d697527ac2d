/* What a device is, with the libraries that compute on it; see backend.h. */
#include <stdlib.h>

#include "base/buf.h"
#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "kernels/kernels.h"
#include "runtime/backend.h"
#include "runtime/device.h"

static void describe_cpu(int threads, struct buf *out)
{
    char *processor = host_processor(), version[64];
    kernel_cpu_version(version, sizeof version);
    buf_printf(out, "%s, %d thread%s each, %s", processor, threads, threads == 1 ? "" : "s",
               version);
    free(processor);
}

static status_t describe_module(const struct device *device, struct buf *out)
{
    const struct backend_table *table;
    AUTO_FREE struct backend_report *report = mem_alloc(sizeof *report);
    char model[128];
    status_t status = device_model(device, model, sizeof model);
    if (status == NULL) status = backend_load(&table);
    if (status == NULL) {
        report->part_count = 0;
        table->versions(report);
        buf_add_text(out, model);
        for (int i = 0; i < report->part_count; i++)
            buf_printf(out, ", %s %s", report->parts[i].name, report->parts[i].version);
    }
    return status;
}

void backend_log_faults(const struct device *device)
{
    const struct backend_table *table;
    AUTO_FREE struct backend_report *report = mem_alloc(sizeof *report);
    status_t status = device_is_host(device) ? NULL : backend_load(&table);
    if (status == NULL && !device_is_host(device)) table->versions(report);
    for (int i = 0; i < report->fault_count; i++)
        log_event(LOG_WARNING, "known_fault", "what=\"%s\"", report->faults[i]);
    status_free(status);
}

status_t backend_describe(const struct device *device, int threads, char **text)
{
    AUTO(buf_deinit) struct buf out = {0};
    status_t status = NULL;
    if (device_is_host(device)) describe_cpu(threads > 0 ? threads : 1, &out);
    else status = describe_module(device, &out);
    if (status == NULL) *text = mem_printf("%s, %s", buf_text(&out), PACKAGE_STRING);
    return status;
}
