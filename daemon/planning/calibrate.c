/*
 * Groups of ranks, one after the other, and the profile of what they measured; see calibrate.h. A
 * rank that fails aborts the others' collectives, so every thread ends.
 */
#include "planning/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/mem.h"
#include "planning/calibrate_internal.h"
#include "runtime/backend.h"

static const int64_t TIMEOUT_MS = 60000;

/* ---- Ranks ---- */

static void fail(struct calibrate_group *group, status_t status)
{
    pthread_mutex_lock(&group->lock);
    bool first = group->failure == NULL;
    if (first) group->failure = status;
    for (int r = 0; first && r < group->world; r++)
        if (group->comms[r] != NULL) comm_abort(group->comms[r], status_message(status));
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    if (first) local_store_close(group->store, status_message(status));
    else status_free(status);
}

/* Rank 0 waits until all have read its last decision, the others for a new one. After a failure
 * the answer is no. */
bool calibrate_agree(struct calibrate_rank *rank, bool go)
{
    struct calibrate_group *group = rank->group;
    pthread_mutex_lock(&group->lock);
    if (rank->rank == 0) {
        group->go = go;
        group->taken = 0;
        group->decided++;
        pthread_cond_broadcast(&group->changed);
        while (group->failure == NULL && group->taken < group->world - 1)
            pthread_cond_wait(&group->changed, &group->lock);
    } else {
        int before = rank->decisions++;
        while (group->failure == NULL && group->decided == before)
            pthread_cond_wait(&group->changed, &group->lock);
        group->taken++;
        pthread_cond_broadcast(&group->changed);
    }
    bool answer = group->go && group->failure == NULL;
    pthread_mutex_unlock(&group->lock);
    return answer;
}

status_t calibrate_check(const struct calibrate_rank *rank, double *left)
{
    const struct calibrate_group *group = rank->group;
    const struct calibrate_options *options = group->options;
    *left = (double)(group->deadline_ns - clock_monotonic_ns()) * 1e-9;
    if (options->stops != NULL && options->stops(options->user))
        return status_new(STATUS_CANCELLED, "calibration stopped");
    return NULL;
}

void calibrate_add(struct calibrate_rank *rank, int row, bool half,
                   const struct plan_sample *sample)
{
    struct calibrate_group *group = rank->group;
    struct calibrate_found found = {row, half, *sample};
    double share = (double)group->processors / (group->world * group->options->threads);
    /* As if each rank had its processors: the simulation of shared lanes adds what it lacks. */
    if (group->processors > 0 && share < 1) found.sample.seconds *= share;
    if (found.sample.seconds < 1e-9) found.sample.seconds = 1e-9;
    MEM_GROW(group->found, group->found_count, group->found_capacity);
    group->found[group->found_count++] = found;
}

/* "cuda:2" is the device of the first rank, "cuda:3" that of the second. */
static status_t open_device(struct calibrate_rank *rank)
{
    const struct calibrate_options *options = rank->group->options;
    const char *colon = strchr(options->device, ':');
    if (colon == NULL) return device_open(options->device, options->threads, &rank->device);
    char *name = mem_printf("%.*s:%d", (int)(colon - options->device), options->device,
                            atoi(colon + 1) + rank->rank);
    status_t status = device_open(name, options->threads, &rank->device);
    free(name);
    return status;
}

static status_t join(struct calibrate_rank *rank)
{
    struct calibrate_group *group = rank->group;
    struct rendezvous store = local_store_view(group->store);
    TRY(open_device(rank));
    if (group->world == 1) return NULL;
    TRY(backend_join(rank->device, rank->rank, group->world, "127.0.0.1", "calibrate", &store,
                     TIMEOUT_MS, false, true, NULL, &rank->comm));
    pthread_mutex_lock(&group->lock);
    group->comms[rank->rank] = rank->comm;
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

/* Where ranks share processors, ops are those of fewer ranks, slowed down. */
static bool measures_steps(const struct calibrate_group *group)
{
    return group->processors == 0 || group->world * group->options->threads <= group->processors;
}

static void *run_rank(void *argument)
{
    struct calibrate_rank *rank = argument;
    struct calibrate_group *group = rank->group;
    status_t status = join(rank);
    if (status == NULL) status = calibrate_links(rank);
    if (status == NULL && measures_steps(group)) status = calibrate_steps(rank);
    if (status != NULL) fail(group, status);
    return NULL;
}

static void leave(struct calibrate_rank *rank)
{
    pthread_mutex_lock(&rank->group->lock);
    rank->group->comms[rank->rank] = NULL;
    pthread_mutex_unlock(&rank->group->lock);
    comm_free(rank->comm);
    device_close(rank->device);
}

static status_t run_group(struct calibrate_group *group)
{
    struct calibrate_rank ranks[CALIBRATE_WORKERS_MAX];
    pthread_t threads[CALIBRATE_WORKERS_MAX];
    int started = 0;
    group->store = local_store_new();
    pthread_mutex_init(&group->lock, NULL);
    condition_init(&group->changed);
    for (; started < group->world; started++) {
        ranks[started] = (struct calibrate_rank){.group = group, .rank = started};
        if (pthread_create(&threads[started], NULL, run_rank, &ranks[started]) == 0) continue;
        fail(group, status_new(STATUS_RESOURCE_EXHAUSTED, "cannot start a thread"));
        break;
    }
    for (int r = 0; r < started; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < started; r++) leave(&ranks[r]);
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->lock);
    local_store_free(group->store);
    return group->failure;
}

/* ---- The profile ---- */

static int compare_numbers(double a, double b)
{
    return (a > b) - (a < b);
}

static int by_work(const void *a, const void *b)
{
    const struct calibrate_found *x = a, *y = b;
    int order = compare_numbers(x->row * 2 + x->half, y->row * 2 + y->half);
    if (order == 0) order = compare_numbers(x->sample.ranks, y->sample.ranks);
    if (order == 0) order = compare_numbers(x->sample.amount, y->sample.amount);
    if (order == 0) order = compare_numbers(x->sample.bytes, y->sample.bytes);
    return order;
}

static int by_seconds(const void *a, const void *b)
{
    const struct calibrate_found *x = a, *y = b;
    return compare_numbers(x->sample.seconds, y->sample.seconds);
}

/* The median of each piece of work. */
static void merge(struct calibrate_found *found, int count, struct plan_tables *tables)
{
    qsort(found, (size_t)count, sizeof *found, by_work);
    for (int first = 0, next; first < count; first = next) {
        for (next = first + 1; next < count && by_work(&found[first], &found[next]) == 0;) next++;
        qsort(found + first, (size_t)(next - first), sizeof *found, by_seconds);
        const struct calibrate_found *middle = &found[(first + next) / 2];
        struct plan_table *table = &tables->rows[middle->row][middle->half];
        if (table->count < PLAN_SAMPLES_MAX) plan_table_add(table, &middle->sample);
    }
}

static double median_bandwidth(const struct plan_tables *tables)
{
    double rates[PLAN_SAMPLES_MAX];
    int count = 0;
    for (int row = 0; row < PLAN_ROW_INSTRUCTION; row++) {
        const struct plan_table *table = &tables->rows[row][0];
        for (int i = 0; i < table->count && count < PLAN_SAMPLES_MAX; i++) {
            const struct plan_sample *sample = &table->samples[i];
            if (sample->amount > 0 || sample->bytes < 1e5) continue;
            double rate = sample->bytes / sample->seconds;
            int at = count++;
            for (; at > 0 && rates[at - 1] > rate; at--) rates[at] = rates[at - 1];
            rates[at] = rate;
        }
    }
    return count > 0 ? rates[count / 2] : 0;
}

static double fastest_product(const struct plan_tables *tables, int half)
{
    double fastest = 0;
    const struct plan_table *table = &tables->rows[OP_LINEAR][half];
    for (int i = 0; i < table->count; i++)
        fastest = fmax(fastest, table->samples[i].amount / table->samples[i].seconds);
    return fastest;
}

static double shortest_op(const struct plan_tables *tables)
{
    double shortest = 1;
    for (int row = 0; row < PLAN_ROW_INSTRUCTION; row++)
        for (int i = 0; i < tables->rows[row][0].count; i++)
            shortest = fmin(shortest, tables->rows[row][0].samples[i].seconds);
    return shortest;
}

/* From the smallest and the largest sample. */
static void fit_link(const struct plan_table *table, struct plan_link *link)
{
    if (table->count == 0) return;
    const struct plan_sample *small = &table->samples[0], *large = small;
    for (int i = 0; i < table->count; i++) {
        if (table->samples[i].bytes < small->bytes) small = &table->samples[i];
        if (table->samples[i].bytes > large->bytes) large = &table->samples[i];
    }
    link->latency = small->seconds / fmax(small->amount - 1, 1);
    link->bandwidth = fmax(large->bytes / large->seconds, 1e3);
}

static void fit_rates(const struct plan_tables *tables, struct plan_rates *rates)
{
    double f32 = fastest_product(tables, 0), bf16 = fastest_product(tables, 1);
    double bandwidth = median_bandwidth(tables);
    const struct plan_table *collectives =
        tables->rows[PLAN_ROW_INSTRUCTION + INSTRUCTION_ALL_GATHER];
    if (f32 > 0) rates->flops_f32 = f32;
    if (bf16 > 0) rates->flops_bf16 = bf16;
    if (bandwidth > 0) rates->memory_bandwidth = bandwidth;
    rates->op_seconds = shortest_op(tables);
    fit_link(&collectives[0], &rates->inside);
    fit_link(&tables->rows[PLAN_ROW_INSTRUCTION + INSTRUCTION_UPLOAD][0], &rates->batch);
}

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

/* What is known of the device without measuring. */
static status_t describe(const struct calibrate_options *options, struct profile *profile)
{
    struct device *device = NULL;
    char model[128];
    TRY(device_open(options->device, options->threads, &device));
    status_t status = profile_of_device(device, profile, model, sizeof model);
    if (status_code(status) == STATUS_NOT_FOUND) {
        status_free(status);
        status = profile_find("a100", profile);
    }
    if (status == NULL && !profile->here) profile->memory_bytes = device_memory_bytes(device);
    snprintf(profile->name, sizeof profile->name, "%.40s", profile->here ? "cpu" : model);
    device_close(device);
    return status;
}

static int processors_of(const struct profile *profile)
{
    return profile->here ? host_processors() : 0;
}

/* The number of workers of the next group; 0: there is none. */
static int next_world(int world, int workers)
{
    if (world == workers) return 0;
    return world * 2 < workers ? world * 2 : workers;
}

/* A group that trains needs most of the time. */
enum { STEPS_SHARE = 3, LINKS_SHARE = 1 };

static int time_share(const struct calibrate_group *group)
{
    return measures_steps(group) ? STEPS_SHARE : LINKS_SHARE;
}

static int sum_of_shares(struct calibrate_group group)
{
    int sum = 0, workers = group.options->workers;
    for (group.world = 1; group.world > 0; group.world = next_world(group.world, workers))
        sum += time_share(&group);
    return sum;
}

status_t calibrate(const struct calibrate_options *options, struct profile *profile)
{
    TRY(describe(options, profile));
    struct calibrate_group group = {.options = options, .processors = processors_of(profile)};
    int64_t now = clock_monotonic_ns(), all = (int64_t)(options->seconds * 1e9);
    int shares = sum_of_shares(group), passed = 0;
    status_t status = NULL;
    for (int world = 1; status == NULL && world > 0; world = next_world(world, options->workers)) {
        group.world = world;
        passed += time_share(&group);
        group.deadline_ns = now + all / shares * passed;
        group.decided = 0;
        status = run_group(&group);
    }
    if (status == NULL) {
        struct plan_tables *tables = mem_alloc(sizeof *tables);
        tables->threads = options->threads;
        tables->processors = group.processors;
        merge(group.found, group.found_count, tables);
        fit_rates(tables, &profile->rates);
        profile->tables = tables;
        profile->rates.tables = tables;
        plan_tables_prepare(tables, &profile->rates);
    }
    free(group.found);
    return status;
}
