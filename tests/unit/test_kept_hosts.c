/* On which hosts the ranks' copies and parities are, for every division of up to nine ranks among
 * hosts. */
#include <stdlib.h>

#include "redundancy/kept.h"
#include "tests/testing.h"

enum { WORLD_MAX = 9 };

/* Division `number` of the ranks: a bit says whether the next rank is on the next host. Returns the
 * number of hosts, and the most ranks of one. */
static int divide(int world, int number, uint64_t *hosts, int *largest)
{
    int count[WORLD_MAX] = {0}, host = 0;
    *largest = 0;
    for (int r = 0; r < world; r++) {
        if (r > 0 && (number >> (r - 1) & 1)) host++;
        hosts[r] = (uint64_t)host;
        if (++count[host] > *largest) *largest = count[host];
    }
    return host + 1;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

LOOP_TEST(mirrors_are_on_other_hosts, 2, WORLD_MAX + 1)
{
    uint64_t hosts[WORLD_MAX];
    for (int number = 0; number < 1 << (_i - 1); number++) {
        int largest, apart = 0;
        divide(_i, number, hosts, &largest);
        int distance = kept_choose_distance(hosts, _i);
        ck_assert_int_ge(distance, 1);
        ck_assert_int_lt(distance, _i);
        for (int r = 0; r < _i; r++) apart += hosts[r] != hosts[(r + distance) % _i];
        /* Each rank has one copy: those of a host with most ranks have the others' hosts. */
        ck_assert_int_eq(apart, least(_i, 2 * (_i - largest)));
    }
}

LOOP_TEST(members_of_a_parity_group_are_on_different_hosts, 2, WORLD_MAX + 1)
{
    uint64_t hosts[WORLD_MAX];
    for (int number = 0; number < 1 << (_i - 1); number++)
        for (int groups = 1; groups <= _i / 2; groups++) {
            int largest, count = divide(_i, number, hosts, &largest);
            if (largest > groups) continue;
            int members[WORLD_MAX][WORLD_MAX] = {0};
            for (int r = 0; r < _i; r++) ck_assert_int_eq(++members[r % groups][hosts[r]], 1);
            ck_assert_int_ge(count, _i / groups);
        }
}

TEST(one_host)
{
    const uint64_t hosts[4] = {7, 7, 7, 7};
    ck_assert_int_eq(kept_choose_distance(hosts, 4), 1);
}
