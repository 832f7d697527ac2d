/*
 * Documents packed into rows: best fit, longest first (Ding et al., "Fewer truncations improve
 * language modeling", 2024). Each document goes whole into the row that it fills best, the last
 * used of several; documents of equal length come in an order that depends on the seed. Made once,
 * from the lengths alone, so all ranks have the same rows. Takes 4 bytes per document and per row.
 */
#ifndef FSDPD_DATA_PACKING_H
#define FSDPD_DATA_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { PACKING_DOCUMENTS_MAX = 1 << 26 };

struct packing {
    int64_t rows;
    uint32_t *documents; /* row by row; in a row as they were placed */
    uint32_t *first;     /* (rows + 1): where a row's documents begin in `documents` */
};

/*
 * Packs documents of lengths[i] tokens, at most `capacity` each, into rows of `capacity`. Documents
 * of length 0 are left out. Without `shuffle`, documents of equal length come in their order.
 * INVALID_ARGUMENT for more than PACKING_DOCUMENTS_MAX documents, or if all are empty;
 * RESOURCE_EXHAUSTED without memory.
 */
status_t packing_make(const uint32_t *lengths, int64_t count, int64_t capacity, bool shuffle,
                      uint64_t seed, struct packing *packing) FSDPD_MUST_USE;
void packing_free(struct packing *packing); /* accepts a zeroed one */

#endif
