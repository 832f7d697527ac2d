/* Documents packed into rows: every document once, whole, in as few rows as best fit finds. */
#include <stdlib.h>
#include <string.h>

#include "data/packing.h"
#include "tests/testing.h"

enum { MOST = 20000 };

static uint32_t noise_state = 1;

static uint32_t noise(uint32_t below)
{
    noise_state = noise_state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)noise_state * below >> 32);
}

static struct packing make(const uint32_t *lengths, int64_t count, int64_t capacity, bool shuffle,
                           uint64_t seed)
{
    struct packing packing;
    status_t status = packing_make(lengths, count, capacity, shuffle, seed, &packing);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return packing;
}

static int64_t filled(const struct packing *packing, const uint32_t *lengths, int64_t row)
{
    int64_t sum = 0;
    for (uint32_t i = packing->first[row]; i < packing->first[row + 1]; i++)
        sum += lengths[packing->documents[i]];
    return sum;
}

/* Every document that is not empty is in one row, and no row is too full. */
static void check_rows(const struct packing *packing, const uint32_t *lengths, int64_t count,
                       int64_t capacity)
{
    static bool seen[MOST];
    memset(seen, 0, sizeof seen);
    ck_assert_uint_eq(packing->first[0], 0);
    for (int64_t row = 0; row < packing->rows; row++) {
        ck_assert_uint_lt(packing->first[row], packing->first[row + 1]);
        ck_assert_int_le(filled(packing, lengths, row), capacity);
        for (uint32_t i = packing->first[row]; i < packing->first[row + 1]; i++) {
            ck_assert_int_lt(packing->documents[i], count);
            ck_assert(!seen[packing->documents[i]]);
            seen[packing->documents[i]] = true;
        }
    }
    for (int64_t d = 0; d < count; d++) ck_assert_int_eq(seen[d], lengths[d] > 0);
}

/* Best fit as its definition has it, with a search of all rows; ties by number. */
static int64_t rows_of_definition(const uint32_t *lengths, int64_t count, int64_t capacity)
{
    static int64_t room[MOST];
    int64_t rows = 0;
    for (int64_t length = capacity; length > 0; length--)
        for (int64_t d = 0; d < count; d++) {
            if (lengths[d] != length) continue;
            int64_t best = -1;
            for (int64_t row = 0; row < rows; row++)
                if (room[row] >= length && (best < 0 || room[row] < room[best])) best = row;
            if (best < 0) room[best = rows++] = capacity;
            room[best] -= length;
        }
    return rows;
}

LOOP_TEST(best_fit, 0, 8)
{
    static uint32_t lengths[MOST];
    static const int64_t capacities[] = {1, 2, 7, 8, 63, 64, 100, 1000};
    int64_t capacity = capacities[_i], count = 400;
    noise_state = (uint32_t)_i + 1;
    for (int64_t d = 0; d < count; d++) lengths[d] = noise((uint32_t)capacity + 1);
    lengths[7] = (uint32_t)capacity;
    struct packing packing = make(lengths, count, capacity, false, 0);
    check_rows(&packing, lengths, count, capacity);
    ck_assert_int_eq(packing.rows, rows_of_definition(lengths, count, capacity));
    struct packing shuffled = make(lengths, count, capacity, true, 3);
    check_rows(&shuffled, lengths, count, capacity);
    ck_assert_int_eq(shuffled.rows, packing.rows); /* ties do not matter */
    packing_free(&packing);
    packing_free(&shuffled);
}

/* In order: the longest first, equal ones by number, into the fullest row that has room. */
TEST(order)
{
    static const uint32_t lengths[] = {3, 6, 0, 3, 10, 4, 1};
    static const uint32_t documents[] = {4, 1, 5, 0, 3, 6}, first[] = {0, 1, 3, 6};
    struct packing packing = make(lengths, 7, 10, false, 0);
    ck_assert_int_eq(packing.rows, 3);
    ck_assert_mem_eq(packing.documents, documents, sizeof documents);
    ck_assert_mem_eq(packing.first, first, sizeof first);
    packing_free(&packing);
}

/* The seed decides which documents of equal length meet, and nothing else. */
TEST(seeds)
{
    static uint32_t lengths[MOST];
    for (int64_t d = 0; d < MOST; d++) lengths[d] = 1 + noise(40);
    struct packing one = make(lengths, MOST, 128, true, 1),
                   same = make(lengths, MOST, 128, true, 1);
    struct packing other = make(lengths, MOST, 128, true, 2);
    check_rows(&one, lengths, MOST, 128);
    check_rows(&other, lengths, MOST, 128);
    ck_assert_int_eq(one.rows, other.rows);
    ck_assert_mem_eq(one.documents, same.documents, MOST * sizeof *one.documents);
    ck_assert(memcmp(one.documents, other.documents, MOST * sizeof *one.documents) != 0);
    int64_t tokens = 0;
    for (int64_t d = 0; d < MOST; d++) tokens += lengths[d];
    ck_assert_int_le(one.rows, tokens / 128 + 2); /* short documents leave no gaps */
    packing_free(&one);
    packing_free(&same);
    packing_free(&other);
}

TEST(refusals)
{
    static const uint32_t empty[3] = {0};
    struct packing packing;
    status_t status = packing_make(empty, 3, 10, true, 1, &packing);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "no document has more than one token"));
    status_free(status);
    packing_free(&packing);
    status = packing_make(empty, (int64_t)PACKING_DOCUMENTS_MAX + 1, 10, true, 1, &packing);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "67108865 documents are too many"));
    status_free(status);
    packing_free(&packing);
}
