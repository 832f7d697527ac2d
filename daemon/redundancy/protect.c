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

static status_t find_hosts(struct protection *own, int world, uint64_t *hosts)
{
    AUTO_FREE float *mine = mem_alloc_array(HOST_FLOATS, sizeof *mine);
    AUTO_FREE float *all = mem_alloc_array((size_t)world * HOST_FLOATS, sizeof *all);
    agreement_pack(host_number(), HOST_FLOATS, mine);
    status_t status = agreement_wait(&own->ranks, comm_all_gather(own->ranks.comm, own->lane, mine,
                                                                  all, HOST_FLOATS));
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

static struct shared_place place_of(const struct protection *own, int rank)
{
    const float *packed = own->places + rank * PLACE_FLOATS;
    return (struct shared_place){.process = agreement_unpack(packed, 4),
                                 .fd = agreement_unpack(packed + 4, 4),
                                 .bytes = agreement_unpack(packed + 8, 4),
                                 .number = agreement_unpack(packed + 12, 4)};
}

static status_t exchange_places(struct protection *own, const struct shared_memory *memory)
{
    pack_place(memory, own->place);
    return comm_all_gather(own->ranks.comm, own->lane, own->place, own->places, PLACE_FLOATS);
}

/* Whether this rank can map a little memory of every other one. */
static status_t try_all(const struct protection *own)
{
    for (int r = 0; r < own->shape.world; r++) {
        const struct shared_place place = place_of(own, r);
        struct shared_memory mapped;
        TRY(shared_memory_map(&place, &mapped));
        shared_memory_free(&mapped);
    }
    return NULL;
}

/* The ranks share memory if all of them can; otherwise they send. */
static status_t try_sharing(struct protection *own)
{
    struct shared_memory probe = {0};
    own->place = mem_alloc_array(PLACE_FLOATS, sizeof *own->place);
    own->places = mem_alloc_array((size_t)own->shape.world * PLACE_FLOATS, sizeof *own->places);
    status_t refused = shared_memory_make(1, &probe);
    status_t status = agreement_wait(&own->ranks, exchange_places(own, &probe));
    if (status == NULL && refused == NULL) refused = try_all(own);
    if (status == NULL) status = agreement_reach(&own->ranks, &refused);
    own->shares = status == NULL && refused == NULL;
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
static status_t map_copy(struct protection *own, struct kept_generation *generation)
{
    const struct kept_shape *shape = &generation->shape;
    int from = shape->kind == REDUNDANCY_MIRROR
                   ? (shape->rank - shape->distance + shape->world) % shape->world
                   : kept_member_after(shape, shape->rank, 1);
    const struct shared_place place = place_of(own, from);
    return is_gone(from, kept_map_other(generation, &place));
}

/* The shards of the member that far before; they stay mapped. */
static status_t map_member(struct protection *own, int distance, struct shared_memory *member)
{
    int from = kept_member_after(&own->shape, own->shape.rank, -distance);
    const struct shared_place place = place_of(own, from);
    if (member->memory != NULL && member->number == place.number) return NULL;
    shared_memory_free(member);
    return is_gone(from, shared_memory_map(&place, member));
}

/* One pass over the parts of the members' shards. The later of them may be shorter. */
static void add_members(struct kept_generation *generation, const struct shared_memory *members,
                        int parts)
{
    AUTO_FREE const float **from = mem_alloc_array((size_t)parts, sizeof *from);
    size_t begin, done = 0;
    for (int left = parts; left > 0; left--) {
        size_t end = kept_part(generation->own.elements, parts, left - 1, &begin);
        for (int part = 0; part < left; part++) {
            kept_part(generation->own.elements, parts, part, &begin);
            from[part] = (const float *)members[part].memory + begin + done;
        }
        kept_xor(generation->other.values + done, from, left, end - done);
        done = end;
    }
}

/* On the lane, when all ranks have taken the generation. */
static status_t use_shared(void *argument)
{
    struct protection *own = argument;
    struct kept_generation *generation = own->sent;
    if (kept_is_copy(&generation->shape)) return map_copy(own, generation);
    int parts = kept_group_size(&own->shape) - 1;
    struct shared_memory *members =
        own->members + parts * (int)(generation - own->kept->generations);
    for (int part = 0; part < parts; part++) TRY(map_member(own, part + 1, &members[part]));
    add_members(generation, members, parts);
    return NULL;
}

/* ---- Sending ---- */

/* Parity: the ranks of this one's group, which are `groups` apart. */
static status_t make_group(struct protection *own)
{
    const struct kept_shape *shape = &own->shape;
    if (shape->kind != REDUNDANCY_PARITY) return NULL;
    int size = kept_group_size(shape);
    if (own->shares)
        own->members = mem_alloc_array(KEPT_GENERATIONS * (size_t)size, sizeof *own->members);
    if (size < 2 || own->shares) return NULL;
    own->scratch = mem_alloc_array(PIECE, sizeof *own->scratch);
    AUTO_FREE int *ranks = mem_alloc_array((size_t)size, sizeof *ranks);
    for (int i = 0; i < size; i++) ranks[i] = shape->rank % shape->groups + i * shape->groups;
    return comm_split(own->ranks.comm, ranks, size, &own->group);
}

status_t protect_open(struct run *run)
{
    struct protection *own = &run->protection;
    const struct train_job *job = run->job;
    if (run->session->spare.kept == NULL) return NULL;
    own->kept = run->session->spare.kept;
    own->shape = train_job_kept_shape(job, run->session->rank);
    own->ranks = (struct agreement){run->session->spare.comm, &own->lane, run->ranks.timeout_ms};
    if (own->ranks.comm == NULL) return NULL;
    /* A device of its own, so that nothing of it is counted as the training's. */
    TRY(device_open("cpu", 1, &own->device));
    TRY(lane_open(own->device, LANE_COMM, &own->lane));
    AUTO_FREE uint64_t *hosts = mem_alloc_array((size_t)job->world, sizeof *hosts);
    status_t status = find_hosts(own, job->world, hosts);
    if (status == NULL) own->shape.distance = kept_choose_distance(hosts, job->world);
    bool sends = own->shape.kind == REDUNDANCY_MIRROR || own->shape.kind == REDUNDANCY_PARITY;
    if (status == NULL && sends && run->session->spare.shared) status = try_sharing(own);
    if (status == NULL) status = make_group(own);
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

/* Sends part `distance - 1` of the shards to the member that far on, and adds that of the one that
 * far before to the parity. *piece moves on. */
static status_t add_parity(struct protection *own, struct kept_generation *generation, int distance,
                           struct parity_piece **piece)
{
    size_t begin;
    int parts = comm_world(own->group) - 1;
    size_t count = kept_part(generation->own.elements, parts, distance - 1, &begin);
    for (size_t at = 0; at < count; at += PIECE, ++*piece) {
        size_t n = count - at < PIECE ? count - at : PIECE;
        **piece = (struct parity_piece){generation->other.values + at, own->scratch, n};
        TRY(comm_shift(own->group, own->lane, generation->own.values + begin + at, own->scratch, n,
                       distance));
        TRY(lane_call(own->lane, add_bits, *piece));
    }
    return NULL;
}

/* Pieces of all parts, none of which is longer than the first. */
static size_t count_pieces(const struct protection *own, size_t elements)
{
    size_t begin, parts = (size_t)comm_world(own->group) - 1;
    size_t longest = kept_part(elements, (int)parts, 0, &begin);
    return parts * ((longest + PIECE - 1) / PIECE);
}

static status_t send_parity(struct protection *own, struct kept_generation *generation)
{
    if (own->group == NULL) return NULL;
    free(own->pieces);
    struct parity_piece *piece = own->pieces =
        mem_alloc_array(count_pieces(own, generation->own.elements) + 1, sizeof *own->pieces);
    TRY(lane_zero(own->lane, generation->other.values,
                  generation->other.elements * sizeof *generation->other.values));
    for (int d = 1; d < comm_world(own->group); d++) TRY(add_parity(own, generation, d, &piece));
    return NULL;
}

static status_t set_whole(void *argument)
{
    struct kept_piece *piece = argument;
    piece->whole = true;
    return NULL;
}

/* All ranks have what they keep for others once any of them has passed the barrier. */
static status_t enqueue(struct protection *own, struct kept_generation *generation)
{
    if (own->shares) {
        TRY(exchange_places(own, &generation->own.shared));
        TRY(lane_call(own->lane, use_shared, own));
    } else if (own->shape.kind == REDUNDANCY_MIRROR)
        TRY(comm_shift(own->ranks.comm, own->lane, generation->own.values, generation->other.values,
                       generation->own.elements, own->shape.distance));
    else TRY(send_parity(own, generation));
    TRY(lane_call(own->lane, set_whole, &generation->other));
    return comm_barrier(own->ranks.comm, own->lane);
}

static status_t sending_failed(const struct protection *own, status_t status)
{
    return status_wrap(status, "sending redundancy of step %llu",
                       (unsigned long long)own->sent->manifest.progress.step);
}

/* Takes a generation and begins to send it. */
static status_t make_generation(struct run *run)
{
    struct protection *own = &run->protection;
    const struct saved_progress progress = run_progress(run);
    const struct capture_job job = {.run = own->kept->run,
                                    .job = run->job->id,
                                    .attempt = run->session->spare.attempt};
    TRY(kept_take(own->kept, run->executor, &job, &progress, &own->shape, own->shares, &own->sent));
    if (own->ranks.comm == NULL) return set_whole(&own->sent->other);
    return sending_failed(own, enqueue(own, own->sent));
}

status_t protect_finish(struct run *run)
{
    struct protection *own = &run->protection;
    if (own->sent == NULL) return NULL;
    int64_t began = clock_monotonic_ns();
    session_at(run->session, "waits until its redundancy has been sent");
    status_t status = NULL;
    if (own->ranks.comm != NULL) status = sending_failed(own, agreement_wait(&own->ranks, NULL));
    if (status == NULL) own->kept->last = (int)(own->sent - own->kept->generations);
    own->sent = NULL;
    own->ns += clock_monotonic_ns() - began;
    return status;
}

void protect_close(struct run *run)
{
    struct protection *own = &run->protection;
    /* A closed lane drops what is queued, for which peers that end as well may wait. */
    status_free(protect_finish(run));
    lane_close(own->lane);
    comm_free(own->group);
    device_close(own->device);
    free(own->pieces);
    free(own->scratch);
    free(own->place);
    free(own->places);
    for (int i = 0; own->members != NULL && i < KEPT_GENERATIONS * kept_group_size(&own->shape);
         i++)
        shared_memory_free(&own->members[i]);
    free(own->members);
    *own = (struct protection){0};
}

status_t protect(struct run *run)
{
    struct protection *own = &run->protection;
    if (own->kept == NULL) return NULL;
    TRY(protect_finish(run));
    TRY(executor_settle(run->executor));
    session_at(run->session, "copies its state to memory");
    int64_t began = clock_monotonic_ns();
    TRY(make_generation(run));
    int64_t ns = clock_monotonic_ns() - began;
    own->ns += ns;
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
    return last->attempt == run->session->spare.attempt && last->own.whole &&
           kept_has_other(last) && last->manifest.progress.step == run->step &&
           last->shape.distance == run->protection.shape.distance;
}

status_t protect_hand_over(struct run *run, const bool *leaves, status_t *refused)
{
    struct protection *own = &run->protection;
    *refused = NULL;
    if (own->kept == NULL) {
        *refused = status_new(STATUS_FAILED_PRECONDITION, "elastic.redundancy is none");
        return NULL;
    }
    TRY(protect_finish(run));
    session_at(run->session, "hands its state over");
    int usual = own->shape.distance, other = 0;
    if (own->shape.kind == REDUNDANCY_MIRROR)
        other = kept_choose_distance_without(leaves, run->job->world, usual);
    if (other > 0) own->shape.distance = other;
    status_t status = is_kept(run) ? NULL : make_generation(run);
    own->shape.distance = usual; /* for this one only */
    TRY(status);
    TRY(protect_finish(run));
    *refused = recover_check_without(&own->kept->generations[own->kept->last], leaves);
    return NULL;
}
