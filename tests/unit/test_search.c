/*
 * The search for settings against the enumeration of all of them: on small models, worlds, links
 * and memories the search's default work must find a step within 3 % of the fastest, and what it
 * names must be what its plan says.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "planning/search.h"
#include "spec/spec.h"
#include "tests/testing.h"
#include "worker/job_message.h"

enum { EVERYTHING = 1000000000 };

static const char *const SLOW_NETWORK = "world: 8\n"
                                        "memory: 16e9\n"
                                        "flops: {f32: 8e12, bf16: 60e12}\n"
                                        "memory_bandwidth: 320e9\n"
                                        "op_latency: 5e-6\n"
                                        "devices_per_host: 2\n"
                                        "link: {bandwidth: 30e9, latency: 1e-5}\n"
                                        "network: {bandwidth: 1e9, latency: 5e-5}\n"
                                        "host_link: {bandwidth: 12e9, latency: 1e-5}\n"
                                        "host_memory_bandwidth: 20e9\n";

/* A search with the advisor that it needs. */
struct trial {
    Fsdpd__V1__JobSpec *spec;
    struct job_settings settings;
    struct profile profile;
    struct device *device;
    struct advisor advisor;
    struct train_session *base;
    struct space *space;
};

static void must(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

/* `memory` 0: the profile's. */
static void trial_init(struct trial *trial, const char *job_file, const char *override,
                       const char *profile, int world, uint64_t memory)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", job_file);
    char *workers = mem_printf("workers=%d", world);
    const struct spec_override overrides[] = {{.text = workers}, {.text = override}};
    must(spec_read_file(path, overrides, override != NULL ? 2 : 1, &trial->spec));
    free(workers);
    free(path);
    if (strchr(profile, ':') == NULL) must(profile_find(profile, &trial->profile));
    else must(profile_parse(profile, strlen(profile), "profile.yaml", &trial->profile));
    must(job_settings_init_without_data(&trial->settings, trial->spec, "test", NULL));
    must(device_open("null", 1, &trial->device));
    trial->advisor =
        (struct advisor){.job = &trial->settings.job,
                         .device = trial->device,
                         .profile = &trial->profile,
                         .memory_bytes = memory > 0 ? memory : trial->profile.memory_bytes,
                         .host_workers = 1};
    must(train_session_new_unplanned(&trial->settings.job, trial->device, &trial->base));
    trial->space = space_new(&trial->settings.job, train_session_model(trial->base),
                             &trial->profile.rates, true);
}

static void trial_deinit(struct trial *trial)
{
    space_free(trial->space);
    train_session_free(trial->base);
    device_close(trial->device);
    job_settings_deinit(&trial->settings);
    spec_free(trial->spec);
}

TESTS_BELOW(.timeout = 300);

TEST(search_finds_what_enumeration_finds)
{
    static const struct {
        const char *job, *override;
        size_t machines; /* how many of the list, as larger models take longer to enumerate */
    } jobs[] = {
        {"examples/mnist/job.yaml", NULL, 12},
        {"examples/mnist/job.yaml", "train.batch_size=12", 12},
        {"examples/mnist/job.yaml", "train.accumulation_steps=2", 12},
        {"examples/mnist/job.yaml", "precision.param_dtype=bf16", 12},
        {"examples/shakespeare/job.yaml", NULL, 2},
    };
    static const struct {
        const char *profile;
        int world;
        double memory; /* of what the fastest plan without a limit needs */
    } machines[] = {
        {"h200", 2, 2},    {"h200", 8, 0.7}, {"t4", 4, 2},     {"t4", 8, 0.6},
        {"a100", 16, 1.5}, {"a100", 6, 0.4}, {NULL, 8, 2},     {NULL, 8, 0.7},
        {NULL, 4, 0.8},    {NULL, 16, 2},    {"h200", 4, 0.9}, {"t4", 2, 0.8},
    };
    int cases = 0;
    double worst = 0;
    for (size_t j = 0; j < COUNT_OF(jobs); j++) {
        for (size_t m = 0; m < jobs[j].machines; m++) {
            struct trial trial;
            struct search_result all, some;
            const char *profile = machines[m].profile != NULL ? machines[m].profile : SLOW_NETWORK;
            trial_init(&trial, jobs[j].job, jobs[j].override, profile, machines[m].world, 0);
            must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &some));
            ck_assert_int_gt(some.count, 0);
            trial.advisor.memory_bytes = (uint64_t)(machines[m].memory * (double)some.best[0].peak);
            must(search_run(&trial.advisor, trial.space, EVERYTHING, &all));
            must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &some));
            ck_assert_msg((all.count > 0) == (some.count > 0), "%s on %s: %d and %d", jobs[j].job,
                          profile, all.count, some.count);
            if (all.count > 0) {
                double ratio = some.best[0].seconds / all.best[0].seconds;
                ck_assert_msg(ratio <= 1.03,
                              "%s, %s over %d: %g s after %" PRIu64
                              " points, but %g s after %" PRIu64,
                              jobs[j].job, profile, machines[m].world, some.best[0].seconds,
                              some.evaluated, all.best[0].seconds, all.evaluated);
                ck_assert_uint_le(some.best[0].peak, trial.advisor.memory_bytes);
                if (ratio > worst) worst = ratio;
                cases++;
            }
            trial_deinit(&trial);
        }
    }
    printf("%d cases, the worst %.3f of the fastest\n", cases, worst);
    ck_assert_int_ge(cases, 30);
}

TEST(too_little_memory_names_the_least)
{
    struct trial trial;
    struct search_result result;
    trial_init(&trial, "examples/shakespeare/job.yaml", NULL, "h200", 4, 100000);
    must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &result));
    ck_assert_int_eq(result.count, 0);
    uint64_t least = result.best[0].peak;
    ck_assert_uint_gt(least, 100000);
    trial.advisor.memory_bytes = least;
    must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &result));
    ck_assert_int_gt(result.count, 0);
    ck_assert_uint_le(result.best[0].peak, least);
    trial_deinit(&trial);
}

/* All points train on the same samples per step. */
TEST(points_keep_the_batch)
{
    struct trial trial;
    trial_init(&trial, "examples/shakespeare/job.yaml", "train.accumulation_steps=4", "t4", 4, 0);
    uint64_t samples = 6 * 4;
    for (int i = 0; i < space_size(trial.space, DIMENSION_BATCH); i++) {
        struct train_job job;
        space_apply(trial.space, (struct point){.at = {[DIMENSION_BATCH] = i}}, &job);
        ck_assert_uint_eq((uint64_t)job.batch_size * job.accumulation_steps, samples);
    }
    ck_assert_int_eq(space_size(trial.space, DIMENSION_BATCH),
                     15); /* 8 divisors, 7 of them twice */
    trial_deinit(&trial);
}

/* Where memory is too small for units that all stay gathered, some do, or are offloaded. */
TEST(some_units_differ)
{
    static const char *const slow = "world: 4\n"
                                    "memory: 16e6\n"
                                    "flops: {f32: 8e12, bf16: 60e12}\n"
                                    "memory_bandwidth: 320e9\n"
                                    "op_latency: 5e-6\n"
                                    "devices_per_host: 1\n"
                                    "link: {bandwidth: 3e9, latency: 1e-5}\n"
                                    "network: {bandwidth: 1e9, latency: 5e-5}\n"
                                    "host_link: {bandwidth: 12e9, latency: 1e-5}\n"
                                    "host_memory_bandwidth: 20e9\n";
    struct trial trial;
    struct search_result result;
    int kept = 0, offloaded = 0;
    trial_init(&trial, "examples/shakespeare/job.yaml", NULL, slow, 4, 0);
    for (int i = 0; i < space_size(trial.space, DIMENSION_UNITS); i++) {
        struct train_job job;
        struct buf lines = {0};
        space_apply(trial.space, (struct point){.at = {[DIMENSION_UNITS] = i}}, &job);
        space_print_units(trial.space, i, &lines);
        int last = job.wrap.unit_count - 1;
        if (last >= 0 && job.wrap.units[last].reshard == RESHARD_NO) {
            kept++;
            ck_assert_int_eq(job.wrap.units[0].reshard, RESHARD_DEFAULT);
            ck_assert_ptr_nonnull(strstr(buf_text(&lines), "reshard_after_forward: false}]"));
        }
        if (last >= 0 && job.wrap.units[0].cpu_offload) {
            offloaded++;
            ck_assert(!job.wrap.units[last].cpu_offload);
            ck_assert_ptr_nonnull(strstr(buf_text(&lines), "=[{modules: [\""));
        }
        buf_deinit(&lines);
    }
    ck_assert_int_eq(kept, 3);
    ck_assert_int_eq(offloaded, 3);
    must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &result));
    ck_assert_int_gt(result.count, 0);
    ck_assert_str_eq(space_words(trial.space, DIMENSION_UNITS,
                                 result.best[0].point.at[DIMENSION_UNITS]),
                     "3 of 4 blocks gathered until backward");
    ck_assert_uint_le(result.best[0].peak, trial.advisor.memory_bytes);
    trial_deinit(&trial);
}
