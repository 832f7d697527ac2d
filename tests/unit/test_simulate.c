/* Simulated clusters: what no disturbance changes, that ranks which are simulated once are like
 * those simulated one by one, and what slow ranks and links cost. */
#include "planning/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "planning/search.h"
#include "setup/session.h"
#include "spec/spec.h"
#include "tests/testing.h"
#include "worker/job_message.h"

static void must(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

/* The plan's own estimate of a step. */
static double estimate(const struct train_job *job, const struct profile *profile)
{
    struct device *device;
    struct train_session *session;
    struct unit_set *units;
    struct plan *plan;
    struct plan_estimate step;
    must(device_open("null", 1, &device));
    must(train_session_new_unplanned(job, device, &session));
    must(train_session_sketch(session, job, &units, &plan));
    search_estimate(plan, &profile->rates, &step);
    plan_free(plan);
    units_free(units);
    train_session_free(session);
    device_close(device);
    return step.step_seconds;
}

/* `planned` may be NULL. */
static status_t simulate_on(const struct profile *profile, const char *strategy,
                            const struct cluster *cluster, struct simulated *simulated,
                            double *planned)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", "examples/shakespeare/job.yaml");
    char *workers = mem_printf("workers=%d", cluster->hosts * cluster->devices > 4096
                                                 ? 4096
                                                 : cluster->hosts * cluster->devices);
    char *of = mem_printf("fsdp.strategy=%s", strategy);
    const struct spec_override overrides[] = {{.text = workers},
                                              {.text = of},
                                              {.text = "fsdp.shard_size=4"}};
    int count = strcmp(strategy, "hybrid_shard") == 0 ? 3 : 2;
    Fsdpd__V1__JobSpec *spec = NULL;
    struct job_settings settings;
    must(spec_read_file(path, overrides, count, &spec));
    must(job_settings_init_without_data(&settings, spec, "test", NULL));
    if (planned != NULL) *planned = estimate(&settings.job, profile);
    status_t status = planning_simulate(&settings.job, profile, cluster, simulated);
    job_settings_deinit(&settings);
    spec_free(spec);
    free(of);
    free(workers);
    free(path);
    return status;
}

static status_t simulate(const char *strategy, const struct cluster *cluster,
                         struct simulated *simulated)
{
    struct profile profile;
    must(profile_find("h100", &profile));
    return simulate_on(&profile, strategy, cluster, simulated, NULL);
}

static double seconds(const char *strategy, const struct cluster *cluster)
{
    struct simulated simulated;
    must(simulate(strategy, cluster, &simulated));
    return simulated.step.step_seconds;
}

static const char *const STRATEGIES[] = {"full_shard", "no_shard", "hybrid_shard"};

#define NEAR(a, b) ck_assert_double_eq_tol(a, b, 1e-5 * (b))

/* Speeds that differ by nothing that counts make every rank a kind of its own. */
LOOP_TEST(equal_ranks_are_as_if_each_were_simulated, 0, COUNT_OF(STRATEGIES))
{
    struct cluster few = {.hosts = 4,
                          .devices = 4,
                          .ranks = {{5, 0.5}, {14, 0.8}},
                          .rank_count = 2};
    struct cluster all = {.hosts = 4, .devices = 4, .rank_count = 16};
    for (int r = 0; r < 16; r++) all.ranks[r] = (struct cluster_slow){r, 1 - 1e-8 * (r + 1)};
    all.ranks[5].speed = 0.5;
    all.ranks[14].speed = 0.8;
    struct simulated one, other;
    must(simulate(STRATEGIES[_i], &few, &one));
    must(simulate(STRATEGIES[_i], &all, &other));
    ck_assert_int_eq(other.kinds, 16);
    ck_assert_int_lt(one.kinds, 16);
    NEAR(one.step.step_seconds, other.step.step_seconds);
    NEAR(one.undisturbed, other.undisturbed);
}

LOOP_TEST(a_slow_rank_holds_the_others_up, 0, COUNT_OF(STRATEGIES))
{
    struct cluster cluster = {.hosts = 2, .devices = 4};
    struct simulated simulated;
    double healthy = seconds(STRATEGIES[_i], &cluster);
    cluster.ranks[cluster.rank_count++] = (struct cluster_slow){3, 0.25};
    must(simulate(STRATEGIES[_i], &cluster, &simulated));
    NEAR(simulated.undisturbed, healthy);
    ck_assert_double_gt(simulated.step.step_seconds, healthy * 1.1);
    ck_assert_double_lt(simulated.step.step_seconds, healthy * 4);
    /* the others wait for it in their collectives */
    ck_assert_double_gt(simulated.step.exposed_seconds, 0);
}

/* Measured on a host with two processors, which the lanes of its ranks share. */
static const char MEASURED[] =
    "memory: 16e9\nflops: {f32: 1e11}\nmemory_bandwidth: 1e10\nlink: {bandwidth: 1e9}\n"
    "tables:\n  threads: 1\n  processors: 2\n"
    "  f32:\n    all_gather: [[2, 2, 1e6, 4e-3]]\n    step: [[1, 100, 0, 3e-4], [4, 100, 0, 2e-3]]\n";

LOOP_TEST(a_healthy_host_takes_what_the_plan_says, 0, COUNT_OF(STRATEGIES))
{
    const struct cluster cluster = {.hosts = 1, .devices = 8};
    struct simulated simulated;
    struct profile profile;
    double planned;
    must(profile_parse(MEASURED, strlen(MEASURED), "p.yaml", &profile));
    must(simulate_on(&profile, STRATEGIES[_i], &cluster, &simulated, &planned));
    NEAR(simulated.step.step_seconds, planned);
    profile_deinit(&profile);
}

TEST(a_slow_link_counts_only_between_hosts)
{
    struct cluster one = {.hosts = 1, .devices = 8, .links = {{0, 0.1}}, .link_count = 1};
    struct cluster two = {.hosts = 2, .devices = 4, .links = {{1, 0.1}}, .link_count = 1};
    struct simulated inside, between;
    must(simulate("full_shard", &one, &inside));
    must(simulate("full_shard", &two, &between));
    NEAR(inside.step.step_seconds, inside.undisturbed);
    ck_assert_double_gt(between.step.step_seconds, between.undisturbed * 1.05);
}

TEST(the_largest_cluster_is_simulated)
{
    const struct cluster cluster = {.hosts = 8192,
                                    .devices = 8,
                                    .ranks = {{17, 0.8}},
                                    .rank_count = 1};
    struct simulated simulated;
    must(simulate("hybrid_shard", &cluster, &simulated));
    ck_assert_double_gt(simulated.step.step_seconds, simulated.undisturbed);
    ck_assert_double_gt(simulated.mfu, 0);
    ck_assert_double_lt(simulated.mfu, 1);
}

TEST(places_outside_of_the_cluster_are_refused)
{
    struct cluster cluster = {.hosts = 2, .devices = 2, .ranks = {{4, 0.5}}, .rank_count = 1};
    struct simulated simulated;
    status_t status = simulate("full_shard", &cluster, &simulated);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "the ranks are 0 to 3"));
    status_free(status);
    cluster = (struct cluster){.hosts = 2, .devices = 2, .links = {{2, 0.5}}, .link_count = 1};
    status = simulate("full_shard", &cluster, &simulated);
    ck_assert_ptr_nonnull(strstr(status_message(status), "the hosts are 0 to 1"));
    status_free(status);
}
