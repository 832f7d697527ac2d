/* Steps of a whole cluster; see cluster.h. Pure functions; any thread. */
#include "planning/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* How a collective divides the world: groups of `size` neighbours, or with `strided` of ranks whose
 * distance is world / size. */
struct partition {
    int size;
    bool strided;
};

struct member {
    uint64_t colour; /* equal for ranks that cannot differ, as far as is known */
    int kind;
};

struct kind {
    int rank; /* the first of its ranks */
    int count;
    double speed;
    double lane_end[LANE_COUNT];
    double *seconds, *end; /* by instruction; a collective's seconds include the wait for others */
    double ready;
};

struct simulation {
    const struct cluster *cluster;
    const struct plan *plan;
    const struct plan_program *program;
    int world;
    struct member *members;
    struct kind *kinds;
    int kind_count;
    struct partition *partitions;
    int partition_count, partition_capacity;
    /* by kind, partition and kind: whether some group of the first has the second */
    bool *meets;
    struct plan_timing **timings; /* by slow link, and last of links as they should be */
};

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* ---- Groups ---- */

static struct partition partition_of(const struct simulation *sim,
                                     const struct plan_instruction *it)
{
    const struct unit_set *units = sim->plan->units;
    int size = sim->world, shard = it->unit >= 0 ? units->units[it->unit].shard_world : sim->world;
    switch (it->group) {
    case GROUP_WORLD: break;
    case GROUP_SHARD: size = shard; break;
    case GROUP_REPLICA: return (struct partition){sim->world / shard, true};
    case GROUP_RESHARD: size = plan_reshard_world(sim->plan, it->unit); break;
    }
    return (struct partition){size, false};
}

static int find_partition(struct simulation *sim, const struct plan_instruction *it)
{
    struct partition wanted = partition_of(sim, it);
    int i = 0;
    for (; i < sim->partition_count; i++)
        if (sim->partitions[i].size == wanted.size && sim->partitions[i].strided == wanted.strided)
            return i;
    MEM_GROW(sim->partitions, sim->partition_count, sim->partition_capacity);
    sim->partitions[sim->partition_count++] = wanted;
    return i;
}

static int group_of(const struct simulation *sim, struct partition partition, int rank)
{
    return partition.strided ? rank % (sim->world / partition.size) : rank / partition.size;
}

/* ---- Kinds of ranks ---- */

static void colour_first(struct simulation *sim)
{
    const struct cluster *cluster = sim->cluster;
    for (int i = 0; i < cluster->rank_count; i++)
        sim->members[cluster->ranks[i].index].colour =
            mix(1, (uint64_t)(cluster->ranks[i].speed * 1e9));
    for (int i = 0; i < cluster->link_count; i++)
        for (int d = 0; d < cluster->devices; d++) {
            struct member *member = &sim->members[cluster->links[i].index * cluster->devices + d];
            member->colour = mix(mix(member->colour, 2), (uint64_t)(cluster->links[i].speed * 1e9));
        }
}

static int by_colour(const void *a, const void *b)
{
    const struct member *x = *(const struct member *const *)a,
                        *y = *(const struct member *const *)b;
    return (x->colour > y->colour) - (x->colour < y->colour);
}

/* Numbers the colours; returns how many there are. */
static int number_colours(struct simulation *sim, struct member **sorted)
{
    int kinds = 0;
    for (int r = 0; r < sim->world; r++) sorted[r] = &sim->members[r];
    qsort(sorted, (size_t)sim->world, sizeof *sorted, by_colour);
    for (int r = 0; r < sim->world; r++) {
        if (r > 0 && sorted[r]->colour != sorted[r - 1]->colour) kinds++;
        sorted[r]->kind = kinds;
    }
    return kinds + 1;
}

/* Ranks whose groups differ get different colours. A group's is the sum over its ranks. */
static void refine(struct simulation *sim)
{
    uint64_t *groups = mem_alloc_array((size_t)sim->world, sizeof *groups);
    uint64_t *next = mem_alloc_array((size_t)sim->world, sizeof *next);
    for (int r = 0; r < sim->world; r++) next[r] = sim->members[r].colour;
    for (int p = 0; p < sim->partition_count; p++) {
        memset(groups, 0, (size_t)sim->world * sizeof *groups);
        for (int r = 0; r < sim->world; r++)
            groups[group_of(sim, sim->partitions[p], r)] += mix(3, sim->members[r].colour);
        for (int r = 0; r < sim->world; r++)
            next[r] = mix(next[r], groups[group_of(sim, sim->partitions[p], r)]);
    }
    for (int r = 0; r < sim->world; r++) sim->members[r].colour = next[r];
    free(groups);
    free(next);
}

static double speed_of(const struct cluster *cluster, int rank)
{
    double speed = 1;
    for (int i = 0; i < cluster->rank_count; i++)
        if (cluster->ranks[i].index == rank) speed = cluster->ranks[i].speed;
    return speed;
}

static void find_kinds(struct simulation *sim)
{
    struct member **sorted = mem_alloc_array((size_t)sim->world, sizeof *sorted);
    sim->members = mem_alloc_array((size_t)sim->world, sizeof *sim->members);
    colour_first(sim);
    for (int before = 0; before != sim->kind_count || before == 0;) {
        before = sim->kind_count;
        refine(sim);
        sim->kind_count = number_colours(sim, sorted);
    }
    sim->kinds = mem_alloc_array((size_t)sim->kind_count, sizeof *sim->kinds);
    size_t count = (size_t)sim->program->instruction_count + 1;
    for (int r = 0; r < sim->world; r++) {
        struct kind *kind = &sim->kinds[sim->members[r].kind];
        if (kind->count++ > 0) continue;
        kind->rank = r;
        kind->speed = speed_of(sim->cluster, r);
        kind->seconds = mem_alloc_array(count, sizeof *kind->seconds);
        kind->end = mem_alloc_array(count, sizeof *kind->end);
    }
    free(sorted);
}

static bool *meeting(const struct simulation *sim, int kind, int partition)
{
    return sim->meets + ((size_t)kind * (size_t)sim->partition_count + (size_t)partition) *
                            (size_t)sim->kind_count;
}

/* A kind's first rank stands for all: their groups have the same kinds. */
static void find_meetings(struct simulation *sim)
{
    sim->meets = mem_alloc_array((size_t)sim->kind_count * (size_t)sim->partition_count *
                                     (size_t)sim->kind_count,
                                 sizeof *sim->meets);
    for (int p = 0; p < sim->partition_count; p++)
        for (int k = 0; k < sim->kind_count; k++) {
            struct partition partition = sim->partitions[p];
            int group = group_of(sim, partition, sim->kinds[k].rank);
            int step = partition.strided ? sim->world / partition.size : 1;
            int rank = partition.strided ? group : group * partition.size;
            for (int i = 0; i < partition.size; i++, rank += step)
                meeting(sim, k, p)[sim->members[rank].kind] = true;
        }
}

/* ---- Time ---- */

static double ready_time(const struct kind *kind, const struct plan_instruction *it)
{
    double ready = kind->lane_end[it->lane];
    for (int w = 0; w < it->wait_count; w++)
        if (kind->end[it->waits[w]] > ready) ready = kind->end[it->waits[w]];
    return ready;
}

static bool is_on_host(const struct simulation *sim, const struct kind *kind, int host)
{
    return kind->rank / sim->cluster->devices == host;
}

/* With the slowest link of the hosts that take part. */
static double collective_seconds(const struct simulation *sim, const bool *present, int i)
{
    const struct cluster *cluster = sim->cluster;
    double seconds = sim->timings[cluster->link_count][i].seconds;
    for (int link = 0; link < cluster->link_count; link++)
        for (int k = 0; k < sim->kind_count; k++)
            if (present[k] && is_on_host(sim, &sim->kinds[k], cluster->links[link].index) &&
                sim->timings[link][i].seconds > seconds)
                seconds = sim->timings[link][i].seconds;
    return seconds;
}

static void run_collective(struct simulation *sim, int i, int partition)
{
    for (int k = 0; k < sim->kind_count; k++) {
        struct kind *kind = &sim->kinds[k];
        const bool *present = meeting(sim, k, partition);
        double begin = kind->ready;
        for (int other = 0; other < sim->kind_count; other++)
            if (present[other] && sim->kinds[other].ready > begin) begin = sim->kinds[other].ready;
        kind->end[i] = begin + collective_seconds(sim, present, i);
    }
}

static void run_instruction(struct simulation *sim, int i)
{
    const struct plan_instruction *it = &sim->program->instructions[i];
    double seconds = sim->timings[sim->cluster->link_count][i].seconds;
    for (int k = 0; k < sim->kind_count; k++) {
        struct kind *kind = &sim->kinds[k];
        kind->ready = ready_time(kind, it);
        kind->end[i] = kind->ready + seconds / kind->speed;
    }
    if (it->lane == LANE_COMM) run_collective(sim, i, find_partition(sim, it));
    for (int k = 0; k < sim->kind_count; k++) {
        struct kind *kind = &sim->kinds[k];
        kind->seconds[i] = kind->end[i] - kind->ready;
        kind->lane_end[it->lane] = kind->end[i];
    }
}

/* The durations of a rank that waits for no other. */
static struct plan_timing *estimate(const struct simulation *sim, const struct plan_rates *rates,
                                    double speed, double *flops)
{
    struct plan_rates slower = *rates;
    struct plan_estimate alone;
    struct plan_timing *timings =
        mem_alloc_array((size_t)sim->program->instruction_count + 1, sizeof *timings);
    slower.between.bandwidth *= speed;
    *flops = plan_estimate_instructions(sim->plan, sim->program, &slower, timings);
    plan_simulate_lanes(sim->plan, sim->program, &slower, timings, &alone);
    return timings;
}

static void describe(const struct simulation *sim, const struct plan_rates *rates,
                     struct plan_estimate *result)
{
    const struct kind *largest = &sim->kinds[0];
    for (int k = 1; k < sim->kind_count; k++)
        if (sim->kinds[k].count > largest->count) largest = &sim->kinds[k];
    struct plan_timing *timings = sim->timings[sim->cluster->link_count];
    for (int i = 0; i < sim->program->instruction_count; i++)
        timings[i].seconds = largest->seconds[i];
    plan_simulate(sim->program, timings, result);
    result->step_seconds += plan_step_overhead(sim->plan, sim->program, rates);
}

void cluster_simulate(const struct cluster *cluster, const struct plan *plan,
                      const struct plan_program *program, const struct plan_rates *rates,
                      struct plan_estimate *result, int *kinds)
{
    struct simulation sim = {.cluster = cluster,
                             .plan = plan,
                             .program = program,
                             .world = plan->options.world};
    struct plan_rates here = *rates;
    double flops = 0;
    here.devices_per_host = cluster->devices;
    sim.timings = mem_alloc_array((size_t)cluster->link_count + 1, sizeof *sim.timings);
    for (int i = 0; i <= cluster->link_count; i++)
        sim.timings[i] =
            estimate(&sim, &here, i < cluster->link_count ? cluster->links[i].speed : 1, &flops);
    for (int i = 0; i < program->instruction_count; i++)
        if (program->instructions[i].lane == LANE_COMM)
            find_partition(&sim, &program->instructions[i]);
    find_kinds(&sim);
    find_meetings(&sim);
    for (int i = 0; i < program->instruction_count; i++) run_instruction(&sim, i);
    describe(&sim, &here, result);
    result->flops = flops;
    *kinds = sim.kind_count;
    for (int i = 0; i <= cluster->link_count; i++) free(sim.timings[i]);
    for (int k = 0; k < sim.kind_count; k++) {
        free(sim.kinds[k].seconds);
        free(sim.kinds[k].end);
    }
    free(sim.timings);
    free(sim.partitions);
    free(sim.kinds);
    free(sim.members);
    free(sim.meets);
}
