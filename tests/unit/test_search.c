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
#include "config.h"
#include "planning/advice.h"
#include "planning/search.h"
#include "proto/message.h"
#include "spec/spec.h"
#include "tests/testing.h"
#include "worker/job_message.h"

enum { EVERYTHING = 1000000000 };
/* Sanitizers look for mistakes in memory, which are in the same code for every job and machine;
 * what the search finds does not depend on them. */
#ifdef FSDPD_SANITIZERS
enum { CASES_APART = 6 };
#else
enum { CASES_APART = 1 };
#endif

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

/* `settings`: of the job, with spaces between them; may be NULL. `memory` 0: the profile's. */
static void trial_init(struct trial *trial, const char *job_file, const char *settings,
                       const char *profile, int world, uint64_t memory)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", job_file), *rest = NULL;
    char *words = mem_printf("workers=%d %s", world, settings != NULL ? settings : "");
    struct spec_override overrides[4] = {{0}};
    int count = 0;
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        overrides[count++].text = word;
    must(spec_read_file(path, overrides, count, &trial->spec));
    free(words);
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

/* The settings that differ from the job's, a line each. */
static void describe(const struct trial *trial, struct point point, struct buf *out)
{
    Fsdpd__V1__Chosen *chosen = space_chosen(trial->space, point, false);
    struct spec_settings with;
    spec_print_changes(trial->spec, spec_settings(trial->spec, chosen, &with), out);
    message_free(chosen);
}

/* Only ends what would never end: enumerations take minutes, and more on a busy machine. */
TESTS_BELOW(.timeout = 7200);

TEST(search_finds_what_enumeration_finds)
{
    static const struct {
        const char *job, *settings;
        size_t machines; /* how many of the list, as larger models take longer to enumerate */
    } jobs[] = {
        {"examples/mnist/job.yaml", "train.batch_size=12", 3},
        {"examples/mnist/job.yaml", "train.batch_size=6", 8},
        {"examples/mnist/job.yaml", "train.batch_size=4", 12},
        {"examples/mnist/job.yaml", "train.batch_size=1 train.accumulation_steps=3", 12},
        {"examples/mnist/job.yaml", "train.batch_size=5 precision.param_dtype=bf16", 6},
        {"examples/shakespeare/job.yaml", "train.batch_size=1", 2},
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
    int pairs = 0, cases = 0, owns = 0;
    double worst = 0;
    for (size_t j = 0; j < COUNT_OF(jobs); j++) {
        for (size_t m = 0; m < jobs[j].machines; m++) {
            if (pairs++ % CASES_APART != 0) continue;
            struct trial trial;
            struct search_result all, some;
            const char *profile = machines[m].profile != NULL ? machines[m].profile : SLOW_NETWORK;
            trial_init(&trial, jobs[j].job, jobs[j].settings, profile, machines[m].world, 0);
            must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &some));
            ck_assert_int_gt(some.count, 0);
            trial.advisor.memory_bytes = (uint64_t)(machines[m].memory * (double)some.best[0].peak);
            must(search_run(&trial.advisor, trial.space, EVERYTHING, &all));
            must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &some));
            ck_assert_msg((all.count > 0) == (some.count > 0), "%s on %s: %d and %d", jobs[j].job,
                          profile, all.count, some.count);
            if (all.count > 0) {
                double ratio = some.best[0].seconds / all.best[0].seconds;
                struct buf found = {0}, best = {0};
                describe(&trial, some.best[0].point, &found);
                describe(&trial, all.best[0].point, &best);
                ck_assert_msg(ratio <= 1.03,
                              "%s, %s over %d: %g s after %" PRIu64
                              " points:\n%sbut %g s after %" PRIu64 ":\n%s",
                              jobs[j].job, profile, machines[m].world, some.best[0].seconds,
                              some.evaluated, buf_text(&found), all.best[0].seconds, all.evaluated,
                              buf_text(&best));
                buf_deinit(&found);
                buf_deinit(&best);
                ck_assert_uint_le(some.best[0].peak, trial.advisor.memory_bytes);
                if (ratio > worst) worst = ratio;
                owns += all.best[0].point.at[DIMENSION_OWN] != 0;
                cases++;
            }
            trial_deinit(&trial);
        }
    }
    printf("%d cases, the worst %.3f of the fastest; %d times units have their own settings\n",
           cases, worst, owns);
    ck_assert_int_ge(cases, 30 / CASES_APART);
    ck_assert_int_gt(owns, 0);
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

/* The certificate of least memory: of all settings of a small network, none fits in less. */
LOOP_TEST(nothing_needs_less_than_the_least, 0, 3, .sanitized_every = 3)
{
    static const struct {
        const char *profile;
        int world;
    } machines[] = {{"h200", 2}, {"t4", 4}, {"cpu", 2}};
    struct trial trial;
    struct search_result result;
    trial_init(&trial, "examples/mnist/job.yaml", "train.batch_size=12", machines[_i].profile,
               machines[_i].world, 1000);
    must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &result));
    ck_assert_int_eq(result.count, 0);
    trial.advisor.memory_bytes = (uint64_t)((double)result.best[0].peak * 0.97);
    must(search_run(&trial.advisor, trial.space, EVERYTHING, &result));
    ck_assert_int_eq(result.count, 0);
    ck_assert_uint_gt(result.evaluated, result.points / 50);
    trial_deinit(&trial);
}

/* An elastic job keeps settings that every number of ranks can have, and the copies that it needs
 * for them. */
LOOP_TEST(elastic_jobs_stay_elastic, 0, 2)
{
    const bool replica = _i == 1;
    struct trial trial;
    struct search_result result;
    trial_init(&trial, "examples/mnist/job.yaml", NULL, SLOW_NETWORK, 8, 0);
    trial.settings.job.elastic = true;
    trial.settings.job.redundancy = replica ? REDUNDANCY_REPLICA : REDUNDANCY_NONE;
    space_free(trial.space);
    trial.space =
        space_new(&trial.settings.job, train_session_model(trial.base), &trial.profile.rates, true);
    must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &result));
    ck_assert_int_gt(result.count, 0);
    for (int i = 0; i < result.count; i++) {
        struct space_job with;
        space_apply(trial.space, result.best[i].point, &with);
        ck_assert_int_ne(with.job.plan.strategy, STRATEGY_HYBRID_SHARD);
        ck_assert_int_ne(with.job.plan.reshard, RESHARD_GROUP);
        if (replica) ck_assert_int_eq(with.job.plan.strategy, STRATEGY_NO_SHARD);
        for (int u = 0; u < with.job.wrap.unit_count; u++) {
            int ranks = with.job.wrap.units[u].shard_world;
            ck_assert(ranks <= 1 || (ranks == 8 && !replica));
        }
        space_job_deinit(&with);
    }
    trial_deinit(&trial);
}

/* All points train on the same samples per step. */
TEST(points_keep_the_batch)
{
    struct trial trial;
    trial_init(&trial, "examples/shakespeare/job.yaml", "train.accumulation_steps=4", "t4", 4, 0);
    uint64_t samples = 6 * 4;
    for (int i = 0; i < space_size(trial.space, DIMENSION_BATCH); i++) {
        struct space_job with;
        space_apply(trial.space, (struct point){.at = {[DIMENSION_BATCH] = i}}, &with);
        ck_assert_uint_eq((uint64_t)with.job.batch_size * with.job.accumulation_steps, samples);
        space_job_deinit(&with);
    }
    ck_assert_int_eq(space_size(trial.space, DIMENSION_BATCH),
                     15); /* 8 divisors, 7 of them twice */
    trial_deinit(&trial);
}

/* Blocks, and what is in none of them; not the head, which is tied to an embedding. */
TEST(embeddings_may_be_units_beside_blocks)
{
    static const char *const outside[] = {"transformer.wpe", "transformer.ln_f"};
    struct trial trial;
    int found = 0;
    trial_init(&trial, "examples/shakespeare/job.yaml", NULL, "h100", 4, 0);
    for (int i = 0; i < space_size(trial.space, DIMENSION_UNITS); i++) {
        const char *words = space_words(trial.space, DIMENSION_UNITS, i);
        if (strcmp(words, "units for embeddings and head, too") != 0) continue;
        struct space_job with;
        space_apply(trial.space, (struct point){.at = {[DIMENSION_UNITS] = i}}, &with);
        ck_assert_int_eq(with.job.wrap.unit_count, 4 + COUNT_OF(outside));
        for (size_t k = 0; k < COUNT_OF(outside); k++) {
            ck_assert_int_eq(with.job.wrap.units[4 + k].module_count, 1);
            ck_assert_str_eq(with.job.wrap.units[4 + k].modules[0], outside[k]);
        }
        space_job_deinit(&with);
        found++;
    }
    ck_assert_int_eq(found, 1);
    trial_deinit(&trial);
}

/* The first quarter of the units is sharded as the option says, the others like the job's. */
TEST(some_units_have_a_strategy)
{
    static const struct {
        const char *words;
        int ranks;
    } options[] = {{"no_shard", 1}, {"full_shard", 4}, {"hybrid_shard over 2 ranks", 2}};
    struct trial trial;
    size_t found = 0;
    trial_init(&trial, "examples/shakespeare/job.yaml", NULL, "h100", 4, 0);
    for (int i = 0; i < space_size(trial.space, DIMENSION_OWN); i++)
        for (size_t k = 0; k < COUNT_OF(options); k++) {
            if (strcmp(space_words(trial.space, DIMENSION_OWN, i), options[k].words) != 0) continue;
            struct space_job with;
            space_apply(trial.space, (struct point){.at = {[DIMENSION_OWN] = i}}, &with);
            ck_assert_int_eq(with.job.wrap.unit_count, 4);
            for (int u = 0; u < 4; u++)
                ck_assert_int_eq(with.job.wrap.units[u].shard_world, u < 1 ? options[k].ranks : 0);
            space_job_deinit(&with);
            found++;
        }
    ck_assert_uint_eq(found, COUNT_OF(options));
    trial_deinit(&trial);
}

/* Where memory is too small for the fastest settings of all units, some units have them. */
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
    trial_init(&trial, "examples/shakespeare/job.yaml", NULL, slow, 4, 0);
    must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &result));
    ck_assert_int_gt(result.count, 0);
    struct buf words = {0};
    for (int i = 0; i < result.count; i++) {
        if (result.best[i].point.at[DIMENSION_OWN] > 0)
            space_describe_own(trial.space, result.best[i].point, &words);
        ck_assert_uint_le(result.best[i].peak, trial.advisor.memory_bytes);
    }
    ck_assert_msg(strstr(buf_text(&words), " units gathered until backward") != NULL, "'%s'",
                  buf_text(&words));
    buf_deinit(&words);
    trial_deinit(&trial);
}

/* The job of the file that says what counts with this choice. */
static void read_settings(const struct trial *trial, const Fsdpd__V1__Chosen *choice,
                          Fsdpd__V1__JobSpec **spec, struct job_settings *settings)
{
    struct spec_settings with;
    struct buf yaml = {0}, changes = {0};
    Fsdpd__V1__JobFile sent = FSDPD__V1__JOB_FILE__INIT;
    Fsdpd__V1__JobFile__FilesEntry model = FSDPD__V1__JOB_FILE__FILES_ENTRY__INIT;
    Fsdpd__V1__JobFile__FilesEntry *files = &model;
    const Fsdpd__V1__JobSpec *counts = spec_settings(trial->spec, choice, &with);
    spec_to_yaml(counts, &yaml);
    model.key = trial->spec->model->file_name;
    model.value = trial->spec->model->text;
    sent.text = (char *)buf_text(&yaml);
    sent.name = (char *)"job.yaml";
    sent.files = &files;
    sent.n_files = 1;
    must(spec_read_sent(&sent, spec));
    spec_print_changes(counts, *spec, &changes);
    ck_assert_str_eq(buf_text(&changes), "");
    must(job_settings_init_without_data(settings, *spec, "test", NULL));
    buf_deinit(&yaml);
}

static uint64_t hash_of(const struct trial *trial, const struct train_job *job)
{
    struct train_session *session;
    must(train_session_new(job, trial->device, 0, true, &session));
    uint64_t hash = train_session_plan(session)->hash;
    train_session_free(session);
    return hash;
}

/* A file with the point's settings has the plan that the search has judged: all units' own
 * settings, over all strategies and policies. */
TEST(a_chosen_point_is_that_point)
{
    struct trial trial;
    int plans = 0;
    trial_init(&trial, "examples/shakespeare/job.yaml", NULL, "h100", 4, 0);
    const int sizes[] = {space_size(trial.space, DIMENSION_UNITS),
                         space_size(trial.space, DIMENSION_SHARDING),
                         space_size(trial.space, DIMENSION_OWN),
                         space_size(trial.space, DIMENSION_SHARE)};
    ck_assert_int_eq(sizes[2], 7); /* none, 2 strategies, groups of 2, kept, offloaded, the rest */
    for (int i = 0; i < sizes[0] * sizes[1] * sizes[2] * sizes[3]; i++) {
        struct point point = {.at = {[DIMENSION_UNITS] = i % sizes[0],
                                     [DIMENSION_SHARDING] = i / sizes[0] % sizes[1],
                                     [DIMENSION_OWN] = i / sizes[0] / sizes[1] % sizes[2],
                                     [DIMENSION_SHARE] = i / sizes[0] / sizes[1] / sizes[2]}};
        struct point canonical = space_canonical(trial.space, point);
        if (memcmp(&canonical, &point, sizeof point) != 0) continue;
        struct space_job with;
        Fsdpd__V1__JobSpec *spec;
        struct job_settings settings;
        space_apply(trial.space, point, &with);
        Fsdpd__V1__Chosen *choice = space_chosen(trial.space, point, false);
        read_settings(&trial, choice, &spec, &settings);
        uint64_t read = hash_of(&trial, &settings.job), applied = hash_of(&trial, &with.job);
        ck_assert_msg(read == applied, "point %d has the plan %" PRIx64 ", its file %" PRIx64, i,
                      applied, read);
        plans++;
        message_free(choice);
        space_job_deinit(&with);
        job_settings_deinit(&settings);
        spec_free(spec);
    }
    printf("%d plans\n", plans);
    ck_assert_int_gt(plans, 200);
    trial_deinit(&trial);
}

/* Between full_shard, which gathers them, and no_shard, which keeps what is trained as well. */
TEST(frozen_parameters_may_be_whole)
{
    uint64_t peaks[3];
    struct trial trial;
    trial_init(&trial, "examples/shakespeare/job.yaml", NULL, "h100", 4, 0);
    int without = space_size(trial.space, DIMENSION_SHARDING);
    trial_deinit(&trial);
    trial_init(&trial, "examples/shakespeare/job.yaml",
               "model.lora.rank=4 model.lora.targets=[all-linear]", "h100", 4, 0);
    ck_assert_int_eq(space_size(trial.space, DIMENSION_SHARDING), without + 1);
    static const char *const words[] = {"", "frozen parameters whole on every rank", "no_shard"};
    for (int i = 0; i < 3; i++) {
        struct point point = {.at = {0}};
        int *at = &point.at[DIMENSION_SHARDING];
        while (strcmp(space_words(trial.space, DIMENSION_SHARDING, *at), words[i]) != 0) ++*at;
        struct space_job with;
        struct unit_set *units;
        struct plan *plan;
        space_apply(trial.space, point, &with);
        ck_assert(with.job.keep_frozen == (i == 1));
        must(train_session_sketch(trial.base, &with.job, &units, &plan));
        int frozen = 0, trained = 0;
        for (int k = 0; k < plan->train.instruction_count; k++) {
            const struct plan_instruction *it = &plan->train.instructions[k];
            if (it->kind != INSTRUCTION_ALL_GATHER) continue;
            if (units->units[it->unit].frozen) frozen++;
            else trained++;
        }
        ck_assert((frozen > 0) == (i == 0));
        ck_assert((trained > 0) == (i < 2));
        peaks[i] = plan->peak_bytes;
        plan_free(plan);
        units_free(units);
        space_job_deinit(&with);
    }
    ck_assert_uint_lt(peaks[0], peaks[1]);
    ck_assert_uint_lt(peaks[1], peaks[2]);
    trial_deinit(&trial);
}

/* Each choice of a plan's message comes with the settings that make it: a file with them has a plan
 * of the memory that the choice names, and the first has the plan that was chosen. */
TEST(choices_come_with_their_settings)
{
    struct trial trial;
    struct chosen *chosen;
    trial_init(&trial, "examples/shakespeare/job.yaml", NULL, "t4", 4, 0);
    must(choose(&trial.advisor, &chosen));
    Fsdpd__V1__Plan *plan = mem_alloc(sizeof *plan);
    fsdpd__v1__plan__init(plan);
    chosen_add(chosen, plan);
    ck_assert_uint_gt(plan->n_choices, 1);
    for (size_t i = 0; i < plan->n_choices; i++) {
        const Fsdpd__V1__Chosen *choice = plan->choices[i];
        Fsdpd__V1__JobSpec *spec;
        struct job_settings settings;
        struct train_session *session;
        read_settings(&trial, choice, &spec, &settings);
        must(train_session_new(&settings.job, trial.device, 0, true, &session));
        ck_assert_uint_eq(train_session_plan(session)->peak_bytes, choice->peak_bytes);
        train_session_free(session);
        if (i == 0)
            ck_assert_uint_eq(hash_of(&trial, &settings.job),
                              hash_of(&trial, chosen_job(chosen)));
        job_settings_deinit(&settings);
        spec_free(spec);
    }
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    chosen_free(chosen);
    trial_deinit(&trial);
}

/* Work that the first descents leave is spent on others, from points drawn at random. */
TEST(more_work_tries_more_points)
{
    struct trial trial;
    struct search_result some, more;
    trial_init(&trial, "examples/mnist/job.yaml", "train.batch_size=48", "h200", 8, 0);
    must(search_run(&trial.advisor, trial.space, SEARCH_WORK, &some));
    must(search_run(&trial.advisor, trial.space, 2 * SEARCH_WORK, &more));
    ck_assert_uint_lt(more.evaluated, more.points);
    ck_assert_uint_gt(more.evaluated, some.evaluated);
    trial_deinit(&trial);
}
