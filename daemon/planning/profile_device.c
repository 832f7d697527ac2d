/* The profile for a device of this process; see profile.h. */
#include <stdio.h>

#include "planning/profile.h"
#include "runtime/device.h"

status_t profile_of_device(const struct device *device, struct profile *profile, char *model,
                           size_t size)
{
    snprintf(model, size, "%s", "");
    if (device_is_host(device)) return profile_find("cpu", profile);
    TRY(device_model(device, model, size));
    if (profile_of_model(model, profile)) return NULL;
    return status_new(STATUS_NOT_FOUND, "there is no profile of %s (%s)", device_name(device),
                      model);
}
