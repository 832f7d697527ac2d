/* When a job with redundancy in memory continues, and whether what its workers keep is its whole
 * state: all small cases, against what docs/elastic.md says of each kind of redundancy. */
#include <stdlib.h>

#include "base/mem.h"
#include "coordinator/jobs/parts.h"
#include "tests/testing.h"

enum { HOLDERS_MAX = 4, WORLD_MAX = 6 };
enum { NOW = 1000, EARLIER = 999, LATER = 1001 };

/* Waits only while a worker is late, and then until the bound, or until those that are here
 * suffice. */
TEST(the_next_attempt_waits_for_everyone_who_is_late)
{
    for (int count = 0; count <= HOLDERS_MAX; count++) {
        int cases = 1;
        for (int i = 0; i < count; i++) cases *= 3;
        for (int number = 0; number < cases; number++) {
            enum part_holder holders[HOLDERS_MAX];
            int late = 0;
            for (int i = 0, rest = number; i < count; i++, rest /= 3) {
                holders[i] = (enum part_holder)(rest % 3);
                late += holders[i] == PART_LATE;
            }
            for (int whole = 0; whole <= 1; whole++) {
                ck_assert_int_eq(parts_begin(holders, count, whole, NOW, LATER, LATER), late == 0);
                ck_assert_int_eq(parts_begin(holders, count, whole, NOW, EARLIER, LATER),
                                 late == 0 || whole);
                ck_assert(parts_begin(holders, count, whole, NOW, LATER, EARLIER));
            }
        }
    }
}

struct group {
    Fsdpd__V1__KeptPart parts[WORLD_MAX];
    const Fsdpd__V1__KeptPart *left[WORLD_MAX];
    int count;
};

/* The parts of a generation of this shape without those of the ranks whose bits are in `lost`. */
static struct group *lose(const Fsdpd__V1__KeptPart *shape, unsigned lost)
{
    struct group *group = mem_alloc(sizeof *group);
    for (uint32_t r = 0; r < shape->world; r++) {
        group->parts[r] = *shape;
        group->parts[r].rank = r;
        if (!(lost >> r & 1)) group->left[group->count++] = &group->parts[r];
    }
    return group;
}

static Fsdpd__V1__KeptPart shape_of(Fsdpd__V1__Redundancy kind, int world)
{
    Fsdpd__V1__KeptPart shape = FSDPD__V1__KEPT_PART__INIT;
    shape.kind = kind;
    shape.world = (uint32_t)world;
    shape.attempt = shape.valid = 3;
    shape.step = 7;
    shape.own = shape.other = true;
    return shape;
}

static bool survives(const Fsdpd__V1__KeptPart *shape, unsigned lost)
{
    struct group *group = lose(shape, lost);
    bool whole = parts_are_whole(group->left, group->count, 3);
    free(group);
    return whole;
}

/* mirror: any number of workers, no two of which mirror each other. */
TEST(mirrors)
{
    for (int world = 1; world <= WORLD_MAX; world++)
        for (int distance = 1; distance < world || distance == 1; distance++)
            for (unsigned lost = 0; lost < 1u << world; lost++) {
                Fsdpd__V1__KeptPart shape =
                    shape_of(FSDPD__V1__REDUNDANCY__REDUNDANCY_MIRROR, world);
                shape.distance = (uint32_t)distance;
                bool expected = true;
                for (int r = 0; r < world; r++)
                    if (lost >> r & 1 && lost >> (r + distance) % world & 1) expected = false;
                ck_assert_msg(survives(&shape, lost) == expected, "world %d, distance %d, lost %x",
                              world, distance, lost);
            }
}

/* parity: one worker of each group, of at least two. */
TEST(parities)
{
    for (int world = 1; world <= WORLD_MAX; world++)
        for (int groups = 1; groups <= world; groups++)
            for (unsigned lost = 0; lost < 1u << world; lost++) {
                Fsdpd__V1__KeptPart shape =
                    shape_of(FSDPD__V1__REDUNDANCY__REDUNDANCY_PARITY, world);
                shape.groups = (uint32_t)groups;
                int of_group[WORLD_MAX] = {0}, size[WORLD_MAX] = {0};
                for (int r = 0; r < world; r++) {
                    of_group[r % groups] += lost >> r & 1;
                    size[r % groups]++;
                }
                bool expected = true;
                for (int g = 0; g < groups; g++)
                    if (of_group[g] > 1 || (of_group[g] == 1 && size[g] == 1)) expected = false;
                if (lost == (1u << world) - 1)
                    expected = false; /* nothing is there to say what it was */
                ck_assert_msg(survives(&shape, lost) == expected, "world %d, groups %d, lost %x",
                              world, groups, lost);
            }
}

/* replica: as long as each shard is on a worker that is left. */
TEST(replicas)
{
    for (int spread = 1; spread <= 3; spread++) {
        Fsdpd__V1__KeptPart shape = shape_of(FSDPD__V1__REDUNDANCY__REDUNDANCY_REPLICA, WORLD_MAX);
        shape.spread = (uint32_t)spread;
        shape.other = false;
        for (unsigned lost = 0; lost < 1u << WORLD_MAX; lost++) {
            unsigned shards = 0;
            for (int r = 0; r < WORLD_MAX; r++)
                if (!(lost >> r & 1)) shards |= 1u << r % spread;
            ck_assert_int_eq(survives(&shape, lost), shards == (1u << spread) - 1);
        }
    }
}

/* Parts of different steps, or older than the attempt that counts, do not add up. */
TEST(generations_are_not_mixed)
{
    Fsdpd__V1__KeptPart shape = shape_of(FSDPD__V1__REDUNDANCY__REDUNDANCY_MIRROR, 3);
    shape.distance = 1;
    struct group *group = lose(&shape, 1); /* ranks 1 and 2; rank 1 has the copy of rank 0 */
    ck_assert(parts_are_whole(group->left, group->count, 3));
    ck_assert(!parts_are_whole(group->left, group->count, 4));
    ck_assert(!parts_are_whole(group->left, group->count, 0));
    group->parts[2].step = 8;
    ck_assert(!parts_are_whole(group->left, group->count, 3));
    group->parts[2].step = 7;
    group->parts[1].other = false;
    ck_assert(!parts_are_whole(group->left, group->count, 3));
    free(group);
}
