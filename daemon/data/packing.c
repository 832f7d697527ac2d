/* Packing; see packing.h. */
#include "data/packing.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "data/windows.h"

enum { NO_ROW = UINT32_MAX };

/* The rows that have room left, by their room: a stack of rows for each, and a tree of flags over
 * the stacks, whose leaves are `leaves` to 2 * `leaves` - 1. */
struct shelf {
    int64_t leaves;
    uint8_t *any;             /* whether a stack below this node has a row */
    uint32_t *top;            /* by room */
    uint32_t *below, *room;   /* by row */
    uint32_t *order, *placed; /* documents by length; the row of each */
};

static status_t no_memory(int64_t count)
{
    return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory to pack %" PRId64 " documents", count);
}

static status_t shelf_init(struct shelf *shelf, int64_t count, int64_t capacity)
{
    int64_t leaves = 1;
    while (leaves <= capacity) leaves *= 2;
    size_t documents = (size_t)count;
    *shelf = (struct shelf){.leaves = leaves,
                            .any = calloc(2 * (size_t)leaves, 1),
                            .top = malloc((size_t)leaves * sizeof(uint32_t)),
                            .below = malloc(documents * sizeof(uint32_t)),
                            .room = malloc(documents * sizeof(uint32_t)),
                            .order = malloc(documents * sizeof(uint32_t)),
                            .placed = malloc(documents * sizeof(uint32_t))};
    if (shelf->any == NULL || shelf->top == NULL || shelf->below == NULL || shelf->room == NULL ||
        shelf->order == NULL || shelf->placed == NULL)
        return no_memory(count);
    for (int64_t i = 0; i < leaves; i++) shelf->top[i] = NO_ROW;
    return NULL;
}

static void shelf_deinit(struct shelf *shelf)
{
    free(shelf->any);
    free(shelf->top);
    free(shelf->below);
    free(shelf->room);
    free(shelf->order);
    free(shelf->placed);
}

static void put_row(struct shelf *shelf, uint32_t row)
{
    uint32_t room = shelf->room[row];
    shelf->below[row] = shelf->top[room];
    shelf->top[room] = row;
    for (int64_t node = shelf->leaves + room; node > 0; node /= 2) shelf->any[node] = 1;
}

/* Takes a row out that has the least room of all that have `length`, or gives NO_ROW. */
static uint32_t take_row(struct shelf *shelf, uint32_t length)
{
    int64_t node = shelf->leaves + length;
    while (!shelf->any[node]) { /* the next subtree to the right */
        while (node % 2 == 1) node /= 2;
        if (node == 0) return NO_ROW;
        node++;
    }
    while (node < shelf->leaves) node = shelf->any[2 * node] ? 2 * node : 2 * node + 1;
    int64_t room = node - shelf->leaves;
    uint32_t row = shelf->top[room];
    shelf->top[room] = shelf->below[row];
    for (shelf->any[node] = shelf->top[room] != NO_ROW; node > 1; node /= 2)
        shelf->any[node / 2] = shelf->any[node] || shelf->any[node ^ 1];
    return row;
}

/* The documents by falling length; returns the number of those that are not empty. */
static status_t sort_documents(const uint32_t *lengths, int64_t count, int64_t capacity,
                               const struct windows *ties, uint32_t *order, int64_t *sorted)
{
    /* by length: of the longer ones */
    AUTO_FREE int64_t *end = calloc((size_t)capacity + 2, sizeof *end);
    if (end == NULL) return no_memory(count);
    for (int64_t d = 0; d < count; d++) end[lengths[d]]++;
    for (int64_t length = capacity; length >= 0; length--) end[length] += end[length + 1];
    *sorted = end[1];
    for (int64_t i = 0; i < count; i++) {
        int64_t document = windows_place(ties, i), length = lengths[document];
        if (length > 0) order[end[length + 1]++] = (uint32_t)document;
    }
    return NULL;
}

static int64_t place_documents(struct shelf *shelf, const uint32_t *lengths, int64_t sorted,
                               int64_t capacity)
{
    uint32_t rows = 0;
    for (int64_t i = 0; i < sorted; i++) {
        uint32_t length = lengths[shelf->order[i]], row = take_row(shelf, length);
        if (row == NO_ROW) {
            row = rows++;
            shelf->room[row] = (uint32_t)capacity;
        }
        shelf->room[row] -= length;
        shelf->placed[i] = row;
        put_row(shelf, row);
    }
    return rows;
}

/* Lists the documents row by row. */
static status_t list_rows(const struct shelf *shelf, int64_t sorted, struct packing *packing)
{
    packing->first = calloc((size_t)packing->rows + 2, sizeof *packing->first);
    packing->documents = malloc((size_t)sorted * sizeof *packing->documents);
    if (packing->first == NULL || packing->documents == NULL) return no_memory(sorted);
    uint32_t *next = packing->first + 1; /* of the row before, once it is full */
    for (int64_t i = 0; i < sorted; i++) next[shelf->placed[i] + 1]++;
    for (int64_t row = 0; row < packing->rows; row++) next[row + 1] += next[row];
    for (int64_t i = 0; i < sorted; i++)
        packing->documents[next[shelf->placed[i]]++] = shelf->order[i];
    return NULL;
}

static status_t pack(struct shelf *shelf, const uint32_t *lengths, int64_t count, int64_t capacity,
                     const struct windows *ties, struct packing *packing)
{
    int64_t sorted = 0;
    TRY(sort_documents(lengths, count, capacity, ties, shelf->order, &sorted));
    if (sorted == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "no document has more than one token");
    packing->rows = place_documents(shelf, lengths, sorted, capacity);
    return list_rows(shelf, sorted, packing);
}

status_t packing_make(const uint32_t *lengths, int64_t count, int64_t capacity, bool shuffle,
                      uint64_t seed, struct packing *packing)
{
    *packing = (struct packing){0};
    if (count > PACKING_DOCUMENTS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%" PRId64 " documents are too many to pack; expected at most %d", count,
                          PACKING_DOCUMENTS_MAX);
    struct windows ties; /* windows of one document: an order */
    TRY(windows_init(&ties, 0, count, 1, 0, shuffle, seed ^ 0x7061636bu));
    struct shelf shelf;
    status_t status = shelf_init(&shelf, count, capacity);
    if (status == NULL) status = pack(&shelf, lengths, count, capacity, &ties, packing);
    shelf_deinit(&shelf);
    if (status != NULL) packing_free(packing);
    return status;
}

void packing_free(struct packing *packing)
{
    free(packing->documents);
    free(packing->first);
    *packing = (struct packing){0};
}
