/* The driver's management library for tests: of a device with 16 GiB of which 5 are free; with
 * FSDPD_STUB_NVML=fails it cannot be initialised, with "whole" it describes a device with more. */
#include <stdlib.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory);

static int is_set(const char *value)
{
    const char *set = getenv("FSDPD_STUB_NVML");
    return set != NULL && strcmp(set, value) == 0;
}

int nvmlInit_v2(void)
{
    return is_set("fails") ? 9 : 0; /* the driver is not loaded */
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    static int only;
    *device = &only;
    return strcmp(bus, "0000:FF:1F.7") == 0 ? 0 : 6; /* not found */
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory)
{
    (void)device;
    memory[0] = (is_set("whole") ? 80ULL : 16ULL) << 30;
    memory[1] = 5ULL << 30;
    memory[2] = memory[0] - memory[1];
    return 0;
}
