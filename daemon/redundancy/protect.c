/* Redundancy in memory; see protect.h. */
#include "redundancy/protect.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/mem.h"
#include "redundancy/recover.h"

enum {
    PIECE = 1 << 20, /* elements that are sent at a time for parity */
    HOST_FLOATS = 4,
    PLACE_FLOATS = 16,
};

static uint64_t host_number(void)
{
    char name[HOST_NAME_SIZE];
    uint64_t number = 14695981039346656037u;
    for (const char *at = host_name(name); *at != '\0'; at++)
        number = (number ^ (unsigned char)*at) * 1099511628211u;
    return number;
}

static status_t find_hosts(struct protection *protection, int world, uint64_t *hosts)
{
    AUTO_FREE float *mine = mem_alloc_array(HOST_FLOATS, sizeof *mine);
    AUTO_FREE float *all = mem_alloc_array((size_t)world * HOST_FLOATS, sizeof *all);
    agreement_pack(host_number(), HOST_FLOATS, mine);
    status_t status =
        agreement_wait(&protection->ranks, comm_all_gather(protection->ranks.comm, protection->lane,
                                                           mine, all, HOST_FLOATS));
    for (int r = 0; r < world && status == NULL; r++)
        hosts[r] = agreement_unpack(all + r * HOST_FLOATS, HOST_FLOATS);
    return status;
}

/* ---- Shared memory ---- */

static void pack_place(const struct shared_memory *memory, float *packed)
{
    const struct shared_place place = shared_memory_place(memory);
    agreement_pack(place.process, 4, packed);
    agreement_pack(place.fd, 4, packed + 4);
    agreement_pack(place.bytes, 4, packed + 8);
    agreement_pack(place.number, 4, packed + 12);
}

static struct shared_place place_of(const struct protection *protection, int rank)
{
    const float *packed = protection->places + rank * PLACE_FLOATS;
    return (struct shared_place){.process = agreement_unpack(packed, 4),
                                 .fd = agreement_unpack(packed + 4, 4),
                                 .bytes = agreement_unpack(packed + 8, 4),
                                 .number = agreement_unpack(packed + 12, 4)};
}

static status_t exchange_places(struct protection *protection, const struct shared_memory *memory)
{
    pack_place(memory, protection->place);
    return comm_all_gather(protection->ranks.comm, protection->lane, protection->place,
                           protection->places, PLACE_FLOATS);
}

/* Whether this rank can map a little memory of every other one. */
static status_t try_all(const struct protection *protection)
{
    for (int r = 0; r < protection->shape.world; r++) {
        const struct shared_place place = place_of(protection, r);
        struct shared_memory mapped;
        TRY(shared_memory_map(&place, &mapped));
        shared_memory_free(&mapped);
    }
    return NULL;
}

/* The ranks share memory if all of them can; otherwise they send. */
static status_t try_sharing(struct protection *protection)
{
    struct shared_memory probe = {0};
    protection->place = mem_alloc_array(PLACE_FLOATS, sizeof *protection->place);
    protection->places =
        mem_alloc_array((size_t)protection->shape.world * PLACE_FLOATS, sizeof *protection->places);
    status_t refused = shared_memory_make(1, &probe);
    status_t status = agreement_wait(&protection->ranks, exchange_places(protection, &probe));
    if (status == NULL && refused == NULL) refused = try_all(protection);
    if (status == NULL) status = agreement_reach(&protection->ranks, &refused);
    protection->shares = status == NULL && refused == NULL;
    status_free(refused);
    shared_memory_free(&probe);
    return status;
}

static status_t is_gone(int rank, status_t why)
{
    if (why == NULL) return NULL;
    status_t status = status_new(STATUS_UNAVAILABLE, "lost rank %d: %s", rank, status_message(why));
    status_free(why);
    return status;
}

/* Keeps the shards of one other rank. */
static status_t map_copy(struct protection *protection, struct kept_generation *generation)
{
    const struct kept_shape *shape = &generation->shape;
    int from = shape->kind == REDUNDANCY_MIRROR
                   ? (shape->rank - shape->distance + shape->world) % shape->world
                   : kept_member_after(shape, shape->rank, 1);
    const struct shared_place place = place_of(protection, from);
    return is_gone(from, kept_map_backup(generation, &place));
}

/* Maps the shards of the member `distance` places before this rank; protect_close unmaps them. */
static status_t map_member(struct protection *protection, int distance,
                           struct shared_memory *member)
{
    int from = kept_member_after(&protection->shape, protection->shape.rank, -distance);
    const struct shared_place place = place_of(protection, from);
    if (member->memory != NULL && member->number == place.number) return NULL;
    shared_memory_free(member);
    return is_gone(from, shared_memory_map(&place, member));
}

/* On the lane, when all ranks have taken the generation. */
static status_t use_shared(void *argument)
{
    struct protection *protection = argument;
    struct kept_generation *generation = protection->sent;
    if (kept_is_copy(&generation->shape)) return map_copy(protection, generation);
    int parts = kept_group_size(&protection->shape) - 1;
    struct shared_memory *members =
        protection->members + parts * (int)(generation - protection->kept->generations);
    AUTO_FREE const float **shards = mem_alloc_array((size_t)parts, sizeof *shards);
    for (int part = 0; part < parts; part++) {
        TRY(map_member(protection, part + 1, &members[part]));
        shards[part] = members[part].memory;
    }
    kept_xor_parts(generation->backup.values, shards, parts, generation->primary.elements);
    return NULL;
}

/* ---- Sending ---- */

/* Parity: the ranks of this one's group, which are `groups` apart. */
static status_t make_group(struct protection *protection)
{
    const struct kept_shape *shape = &protection->shape;
    if (shape->kind != REDUNDANCY_PARITY) return NULL;
    int size = kept_group_size(shape);
    if (protection->shares)
        protection->members =
            mem_alloc_array(KEPT_GENERATIONS * (size_t)size, sizeof *protection->members);
    if (size < 2 || protection->shares) return NULL;
    protection->scratch = mem_alloc_array(PIECE, sizeof *protection->scratch);
    AUTO_FREE int *ranks = mem_alloc_array((size_t)size, sizeof *ranks);
    for (int i = 0; i < size; i++) ranks[i] = shape->rank % shape->groups + i * shape->groups;
    return comm_split(protection->ranks.comm, ranks, size, &protection->group);
}

status_t protect_open(struct run *run)
{
    struct protection *protection = &run->protection;
    const struct train_job *job = run->job;
    if (run->session->spare.kept == NULL) return NULL;
    protection->kept = run->session->spare.kept;
    protection->shape = train_job_kept_shape(job, run->session->rank);
    protection->ranks =
        (struct agreement){run->session->spare.comm, &protection->lane, run->ranks.timeout_ms};
    if (protection->ranks.comm == NULL) return NULL;
    /* A device of its own, so that nothing of it is counted as the training's. */
    TRY(device_open("cpu", 1, &protection->device));
    TRY(lane_open(protection->device, LANE_COMM, &protection->lane));
    AUTO_FREE uint64_t *hosts = mem_alloc_array((size_t)job->world, sizeof *hosts);
    status_t status = find_hosts(protection, job->world, hosts);
    if (status == NULL) protection->shape.distance = kept_choose_distance(hosts, job->world);
    bool sends =
        protection->shape.kind == REDUNDANCY_MIRROR || protection->shape.kind == REDUNDANCY_PARITY;
    if (status == NULL && sends && run->session->spare.shared) status = try_sharing(protection);
    if (status == NULL) status = make_group(protection);
    return status;
}

/* One piece that was received, to be added to the parity by the lane. */
struct parity_piece {
    float *to;
    const float *from;
    size_t count;
};

static status_t add_bits(void *argument)
{
    const struct parity_piece *piece = argument;
    kept_xor(piece->to, (const float *const[]){piece->to, piece->from}, 2, piece->count);
    return NULL;
}

/* Step `distance` round the ring: sends that part of this rank's shards to the member `distance`
 * places on, and XORs the part received from the one `distance` places before into the parity.
 * *piece moves on. */
static status_t add_parity(struct protection *protection, struct kept_generation *generation,
                           int distance, struct parity_piece **piece)
{
    size_t begin;
    int parts = comm_world(protection->group) - 1;
    size_t count = kept_part(generation->primary.elements, parts, distance - 1, &begin);
    for (size_t at = 0; at < count; at += PIECE, ++*piece) {
        size_t n = count - at < PIECE ? count - at : PIECE;
        **piece = (struct parity_piece){generation->backup.values + at, protection->scratch, n};
        TRY(comm_shift(protection->group, protection->lane, generation->primary.values + begin + at,
                       protection->scratch, n, distance));
        TRY(lane_call(protection->lane, add_bits, *piece));
    }
    return NULL;
}

/* Pieces of all parts, none of which is longer than the first. */
static size_t count_pieces(const struct protection *protection, size_t elements)
{
    size_t begin, parts = (size_t)comm_world(protection->group) - 1;
    size_t longest = kept_part(elements, (int)parts, 0, &begin);
    return parts * ((longest + PIECE - 1) / PIECE);
}

static status_t send_parity(struct protection *protection, struct kept_generation *generation)
{
    if (protection->group == NULL) return NULL;
    free(protection->pieces);
    struct parity_piece *piece = protection->pieces =
        mem_alloc_array(count_pieces(protection, generation->primary.elements) + 1,
                        sizeof *protection->pieces);
    TRY(lane_zero(protection->lane, generation->backup.values,
                  generation->backup.elements * sizeof *generation->backup.values));
    for (int d = 1; d < comm_world(protection->group); d++)
        TRY(add_parity(protection, generation, d, &piece));
    return NULL;
}

static status_t set_whole(void *argument)
{
    struct kept_piece *piece = argument;
    piece->whole = true;
    return NULL;
}

/* All ranks have what they keep for others once any of them has passed the barrier. */
static status_t enqueue(struct protection *protection, struct kept_generation *generation)
{
    if (protection->shares) {
        TRY(exchange_places(protection, &generation->primary.shared));
        TRY(lane_call(protection->lane, use_shared, protection));
    } else if (protection->shape.kind == REDUNDANCY_MIRROR)
        TRY(comm_shift(protection->ranks.comm, protection->lane, generation->primary.values,
                       generation->backup.values, generation->primary.elements,
                       protection->shape.distance));
    else TRY(send_parity(protection, generation));
    TRY(lane_call(protection->lane, set_whole, &generation->backup));
    return comm_barrier(protection->ranks.comm, protection->lane);
}

static status_t sending_failed(const struct protection *protection, status_t status)
{
    return status_wrap(status, "sending redundancy of step %llu",
                       (unsigned long long)protection->sent->manifest.progress.step);
}

/* Takes a generation and begins to send it. */
static status_t make_generation(struct run *run)
{
    struct protection *protection = &run->protection;
    MUST(protection->sent == NULL); /* what was sent before has arrived */
    const struct saved_progress progress = run_progress(run);
    const struct capture_job job = {.run = protection->kept->run,
                                    .job = run->job->id,
                                    .attempt = run->session->spare.attempt};
    TRY(kept_take(protection->kept, run->executor, &job, &progress, &protection->shape,
                  protection->shares, &protection->sent));
    if (protection->ranks.comm == NULL) return set_whole(&protection->sent->backup);
    return sending_failed(protection, enqueue(protection, protection->sent));
}

status_t protect_finish(struct run *run)
{
    struct protection *protection = &run->protection;
    if (protection->sent == NULL) return NULL;
    int64_t began = clock_monotonic_ns();
    session_at(run->session, "waits until its redundancy has been sent");
    status_t status = NULL;
    if (protection->ranks.comm != NULL)
        status = sending_failed(protection, agreement_wait(&protection->ranks, NULL));
    if (status == NULL)
        protection->kept->last = (int)(protection->sent - protection->kept->generations);
    protection->sent = NULL;
    protection->ns += clock_monotonic_ns() - began;
    return status;
}

void protect_close(struct run *run)
{
    struct protection *protection = &run->protection;
    /* A closed lane drops what is queued, for which peers that end as well may wait. */
    status_free(protect_finish(run));
    lane_close(protection->lane);
    comm_free(protection->group);
    device_close(protection->device);
    free(protection->pieces);
    free(protection->scratch);
    free(protection->place);
    free(protection->places);
    for (int i = 0;
         protection->members != NULL && i < KEPT_GENERATIONS * kept_group_size(&protection->shape);
         i++)
        shared_memory_free(&protection->members[i]);
    free(protection->members);
    *protection = (struct protection){0};
}

status_t protect(struct run *run)
{
    struct protection *protection = &run->protection;
    if (protection->kept == NULL) return NULL;
    TRY(protect_finish(run));
    TRY(executor_settle(run->executor));
    session_at(run->session, "copies its state to memory");
    int64_t began = clock_monotonic_ns();
    TRY(make_generation(run));
    int64_t ns = clock_monotonic_ns() - began;
    protection->ns += ns;
    run->interval.ns += ns;
    run->epoch.ns += ns;
    run->whole.ns += ns;
    return NULL;
}

status_t protect_begin(struct run *run)
{
    if (run->protection.kept == NULL) return NULL;
    kept_drop_before(run->protection.kept, run->session->spare.attempt);
    TRY(protect(run));
    return protect_finish(run);
}

/* Whether the last generation is of this attempt's current step. */
static bool is_kept(const struct run *run)
{
    const struct kept *kept = run->protection.kept;
    const struct kept_generation *last = &kept->generations[kept->last];
    return last->attempt == run->session->spare.attempt && last->primary.whole &&
           kept_has_backup(last) && last->manifest.progress.step == run->step &&
           last->shape.distance == run->protection.shape.distance;
}

status_t protect_hand_over(struct run *run, const bool *leaves, status_t *refused)
{
    struct protection *protection = &run->protection;
    *refused = NULL;
    if (protection->kept == NULL) {
        *refused = status_new(STATUS_FAILED_PRECONDITION, "elastic.redundancy is none");
        return NULL;
    }
    TRY(protect_finish(run));
    session_at(run->session, "hands its state over");
    int usual = protection->shape.distance, other = 0;
    if (protection->shape.kind == REDUNDANCY_MIRROR)
        other = kept_choose_distance_without(leaves, run->job->world, usual);
    if (other > 0) protection->shape.distance = other;
    status_t status = is_kept(run) ? NULL : make_generation(run);
    protection->shape.distance = usual; /* for this one only */
    TRY(status);
    TRY(protect_finish(run));
    *refused =
        recover_check_without(&protection->kept->generations[protection->kept->last], leaves);
    return NULL;
}
