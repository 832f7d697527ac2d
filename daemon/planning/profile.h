/*
 * Profiles: the capabilities of a device and of the links between devices, to evaluate plans for
 * machines that are not here (docs/profiles.md). Some are built in; others are YAML files.
 *
 * "cpu" is this host's processor: the library that would run its ops prepares them, so scratch
 * memory is exact. For any other profile it counts as 0.
 */
#ifndef FSDPD_PLANNING_PROFILE_H
#define FSDPD_PLANNING_PROFILE_H

#include "base/buf.h"
#include "planning/plan_estimate.h"

struct device;

enum { PROFILE_FILE_MAX = 1 << 20, PROFILE_WORLD_MAX = 4096 };

struct profile {
    char name[48];
    bool here; /* this host's processor */
    int world; /* ranks; 0: the job's number */
    /* Like the rates, before efficiency. With `here` it is for one thread and serves as the
     * yardstick: this host's processor reports neither its clock under load nor its vector
     * units. */
    double peak_flops_f32, peak_flops_bf16;
    uint64_t memory_bytes;   /* of a device; 0: what this host has available */
    struct plan_rates rates; /* attained by ops, efficiency included; with `here`: of one thread */
    struct plan_tables *tables; /* owned; those of `rates`; NULL: none */
};

/* Only needed for a profile from a file or a text. */
void profile_deinit(struct profile *profile);

/*
 * `text` is a built-in profile's name ("h200"), optionally with a number of ranks ("h200x8"), or a
 * file (any text with a "/" or a "."); then profile_deinit it. INVALID_ARGUMENT suggests the
 * nearest name, or gives file, line and key.
 */
status_t profile_find(const char *text, struct profile *profile) FSDPD_MUST_USE;

/* The built-in profile for a device model ("NVIDIA A100-SXM4-80GB"); false if there is none. */
bool profile_of_model(const char *model, struct profile *profile);

/* The profile for a device of this process: the processor's own, or the one of its model, which is
 * returned in `model`. NOT_FOUND if the model is unknown, or the device's error. In calibrate.c. */
status_t profile_of_device(const struct device *device, struct profile *profile, char *model,
                           size_t size) FSDPD_MUST_USE;

/* profile_find from memory; `file` is for messages. The text may be hostile. */
status_t profile_parse(const char *text, size_t length, const char *file,
                       struct profile *profile) FSDPD_MUST_USE;

/* The profile as a file that profile_parse reads. */
void profile_print(const struct profile *profile, struct buf *out);

/* The names of the built-in ones; NULL after the last. */
const char *profile_name(int index);

#endif
