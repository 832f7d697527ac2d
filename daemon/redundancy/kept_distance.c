/* Where mirrors are; see kept.h. */
#include "redundancy/kept.h"

int kept_choose_distance(const uint64_t *hosts, int world)
{
    int best = 1, most = -1;
    for (int d = 1; d < world; d++) {
        int apart = 0;
        for (int r = 0; r < world; r++) apart += hosts[r] != hosts[(r + d) % world];
        if (apart > most) best = d;
        if (apart > most) most = apart;
    }
    return best;
}

static bool suits(const bool *leaves, int world, int distance)
{
    for (int r = 0; r < world; r++)
        if (leaves[r] && leaves[(r + distance) % world]) return false;
    return true;
}

int kept_choose_distance_without(const bool *leaves, int world, int usual)
{
    if (suits(leaves, world, usual)) return usual;
    for (int d = 1; d < world; d++)
        if (suits(leaves, world, d)) return d;
    return 0;
}
