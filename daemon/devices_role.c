/* `fsdpd devices`; see roles.h. */
#include "roles.h"

#include <jansson.h>
#include <stdio.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/text.h"
#include "options.h"
#include "runtime/backend.h"
#include "runtime/device.h"

/* Describes the CPU in the same form as other devices. */
static void describe_cpu(struct backend_device *found)
{
    struct device *device = NULL;
    AUTO_FREE char *name = host_processor();
    snprintf(found->name, sizeof found->name, "cpu");
    snprintf(found->model, sizeof found->model, "%s", name);
    status_t status = device_open("cpu", 1, &device);
    if (status != NULL) {
        snprintf(found->problem, sizeof found->problem, "%s", status_message(status));
        status_free(status);
        return;
    }
    found->memory_free = device_memory_bytes(device);
    found->memory_total = host_memory_most();
    device_close(device);
}

static void print_device(const struct backend_device *device)
{
    char total[32], available[32];
    printf("%-8s %10s %10s  %s%s%s\n", device->name, text_format_bytes(device->memory_total, total),
           device->memory_free > 0 ? text_format_bytes(device->memory_free, available) : "unknown",
           device->model, device->problem[0] != '\0' ? ": " : "", device->problem);
}

static void print_table(const struct backend_device *cpu, const struct backend_report *report,
                        const char *problem)
{
    printf("%-8s %10s %10s  %s\n", "DEVICE", "MEMORY", "FREE", "WHAT");
    print_device(cpu);
    for (int i = 0; i < report->device_count; i++) print_device(&report->devices[i]);
    for (int i = 0; i < report->part_count; i++)
        printf("%s%s %s", i == 0 ? "\n" : ", ", report->parts[i].name, report->parts[i].version);
    if (report->part_count > 0) printf("\n");
    for (int i = 0; i < report->fault_count; i++)
        printf("%sKnown fault of %s.\n", i == 0 ? "\n" : "", report->faults[i]);
    if (problem != NULL) printf("\nNo cuda devices: %s.\n", problem);
}

static json_t *device_json(const struct backend_device *device)
{
    json_t *available =
        device->memory_free > 0 ? json_integer((json_int_t)device->memory_free) : json_null();
    return json_pack("{s:s, s:I, s:o, s:s, s:s}", "device", device->name, "memory_bytes",
                     (json_int_t)device->memory_total, "free_bytes", available, "model",
                     device->model, "problem", device->problem);
}

static void print_json(const struct backend_device *cpu, const struct backend_report *report,
                       const char *problem)
{
    json_t *devices = json_array(), *versions = json_object(), *faults = json_array();
    json_array_append_new(devices, device_json(cpu));
    for (int i = 0; i < report->device_count; i++)
        json_array_append_new(devices, device_json(&report->devices[i]));
    for (int i = 0; i < report->part_count; i++)
        json_object_set_new(versions, report->parts[i].name, json_string(report->parts[i].version));
    for (int i = 0; i < report->fault_count; i++)
        json_array_append_new(faults, json_string(report->faults[i]));
    json_t *all = json_pack("{s:o, s:o, s:o, s:s}", "devices", devices, "versions", versions,
                            "known_faults", faults, "cuda_problem", problem != NULL ? problem : "");
    AUTO_FREE char *text = json_dumps(all, JSON_INDENT(2));
    puts(text != NULL ? text : "{}");
    json_decref(all);
}

int devices_role_main(const struct options *options)
{
    static struct backend_report report;
    struct backend_device cpu = {0};
    const struct backend_table *backend = NULL;
    describe_cpu(&cpu);
    status_t status = backend_load(&backend);
    if (status == NULL) status = backend->report(&report);
    const char *problem = status != NULL ? status_message(status) : NULL;
    if (options->json) print_json(&cpu, &report, problem);
    else print_table(&cpu, &report, problem);
    status_free(status);
    return 0;
}
