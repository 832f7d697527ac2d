/*
 * Profiles: what a device can do and how devices are linked, so that plans can be judged for
 * machines that are not here (docs/profiles.md). Some are built in; others are YAML files.
 *
 * "cpu" is this host's processor: its ops are prepared by the library that would run them, so
 * scratch memory is exact. For any other profile it counts as 0.
 */
#ifndef FSDPD_PLANNING_PROFILE_H
#define FSDPD_PLANNING_PROFILE_H

#include "fsdp/plan_estimate.h"

struct device;

enum { PROFILE_FILE_MAX = 1 << 16, PROFILE_WORLD_MAX = 4096 };

struct profile {
    char name[48];
    bool here;                              /* this host's processor */
    int world;                              /* ranks; 0: the job says */
    /* As the rates, before efficiency is taken off. `here`: of one thread, and a yardstick: this
     * host's processor does not tell its clock under load, nor its units of each width. */
    double peak_flops_f32, peak_flops_bf16;
    uint64_t memory_bytes;                  /* of a device; 0: what this host has available */
    struct plan_rates rates; /* what ops reach, efficiency included; `here`: of one thread */
};

/*
 * `text` is a built-in profile's name ("h200"), that with a number of ranks ("h200x8"), or a file
 * (whatever has a "/" or a "."). INVALID_ARGUMENT names the nearest one, or file, line and key.
 */
status_t profile_find(const char *text, struct profile *profile) FSDPD_MUST_USE;

/* The built-in one of a device of that model ("NVIDIA A100-SXM4-80GB"); false if none is. */
bool profile_of_model(const char *model, struct profile *profile);

/* That of a device of this process: the processor's own, else by its model, which is then written
 * to `model`. NOT_FOUND if nothing is known of it, or the device's error. */
status_t profile_of_device(const struct device *device, struct profile *profile, char *model,
                           size_t size) FSDPD_MUST_USE;

/* The same as profile_find from memory; `file` is for messages. The text may be hostile. */
status_t profile_parse(const char *text, size_t length, const char *file,
                       struct profile *profile) FSDPD_MUST_USE;

/* The names of the built-in ones; NULL after the last. */
const char *profile_name(int index);

#endif
