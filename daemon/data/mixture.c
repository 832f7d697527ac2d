/* Several sources of rows; see row_parts.h. */
#include "data/row_parts.h"

#include <stdlib.h>

#include "base/mem.h"

void mixture_init(struct mixture *mixture, const int64_t *weights, int count, bool shuffle,
                  uint64_t seed)
{
    *mixture = (struct mixture){.count = count,
                                .ends = mem_alloc_array((size_t)count, sizeof *mixture->ends)};
    int64_t end = 0;
    for (int s = 0; s < count; s++) mixture->ends[s] = end += weights[s];
    /* Windows of one token each form a permutation. Its seed differs from those of the sources. */
    status_free(windows_init(&mixture->order, 0, end, 1, 0, shuffle, seed ^ 0x6d6978u));
}

void mixture_deinit(struct mixture *mixture)
{
    free(mixture->ends);
    *mixture = (struct mixture){0};
}

void mixture_find(const struct mixture *mixture, int64_t row, int *source, int64_t *number)
{
    int64_t cycle = row / mixture->order.count, slot = windows_place(&mixture->order, row);
    int s = 0;
    while (slot >= mixture->ends[s]) s++;
    int64_t begin = s > 0 ? mixture->ends[s - 1] : 0;
    *source = s;
    *number = cycle * (mixture->ends[s] - begin) + slot - begin;
}
