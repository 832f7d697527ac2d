/* The two generations of a run's state that a process keeps: which is found, dropped and counted;
 * and the parity of shards. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "redundancy/kept.h"
#include "tests/testing.h"

static struct kept kept;

static void fill_piece(struct kept_piece *piece, size_t elements)
{
    piece->values = mem_alloc_array(elements, sizeof *piece->values);
    piece->elements = piece->capacity = elements;
    piece->whole = true;
}

/* Generation i is of attempt 3 + i after step 10 + i, with mirrors at the distance 1 + i. */
static void set_up(void)
{
    kept_begin(&kept, "run");
    for (uint32_t i = 0; i < KEPT_GENERATIONS; i++) {
        struct kept_generation *generation = &kept.generations[i];
        generation->attempt = generation->valid = 3 + i;
        generation->manifest.progress.step = 10 + i;
        generation->shape =
            (struct kept_shape){.kind = REDUNDANCY_MIRROR, .world = 4, .distance = 1 + (int)i};
        fill_piece(&generation->primary, 100 + i);
        fill_piece(&generation->backup, 1000 + i);
    }
}

static void tear_down(void)
{
    kept_clear(&kept);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

static bool is_kept(int generation)
{
    return kept.generations[generation].primary.values != NULL;
}

TEST(finds_both_generations)
{
    for (uint32_t i = 0; i < KEPT_GENERATIONS; i++) {
        int distance = 1 + (int)i;
        ck_assert_ptr_eq(kept_find(&kept, 3 + i, 10 + i, distance), &kept.generations[i]);
        ck_assert_ptr_null(kept_find(&kept, 4 - i, 10 + i, distance));
        ck_assert_ptr_null(kept_find(&kept, 3 + i, 11 - i, distance));
        ck_assert_ptr_null(kept_find(&kept, 3 + i, 10 + i, 3 - distance));
    }
}

/* Without an attempt there is no generation, whatever else is asked for. */
TEST(finds_nothing_where_nothing_is_kept)
{
    kept_clear(&kept);
    ck_assert_ptr_null(kept_find(&kept, 0, 0, 0));
}

TEST(counts_all_pieces)
{
    ck_assert_uint_eq(kept_bytes(&kept), (100 + 101 + 1000 + 1001) * sizeof(float));
}

/* Generation _i is the older one. */
LOOP_TEST(drops_what_no_later_attempt_continued_from, 0, KEPT_GENERATIONS)
{
    kept.generations[_i].valid = 5;
    kept.generations[1 - _i].valid = 6;
    kept_drop_before(&kept, 5);
    ck_assert(is_kept(0) && is_kept(1));
    kept_drop_before(&kept, 6);
    ck_assert(!is_kept(_i) && is_kept(1 - _i));
    ck_assert_uint_eq(kept.generations[_i].attempt, 0);
    ck_assert_uint_eq(kept_bytes(&kept), (size_t)(1100 + 2 * (1 - _i)) * sizeof(float));
}

TEST(another_run_frees_both)
{
    kept_begin(&kept, "run");
    ck_assert(is_kept(0) && is_kept(1));
    kept_begin(&kept, "another");
    ck_assert(!is_kept(0) && !is_kept(1));
    ck_assert_str_eq(kept.run, "another");
    kept_clear(&kept);
    ck_assert_ptr_null(kept.run);
}

TEST(parts_are_added_bit_by_bit)
{
    enum { PARTS = 4, MOST = 13 };
    uint32_t bits[PARTS][MOST], found[MOST], noise = 1;
    float values[PARTS][MOST], out[MOST];
    const float *shards[PARTS];
    for (int part = 0; part < PARTS; part++) {
        for (int i = 0; i < MOST; i++) bits[part][i] = noise = noise * 1664525 + 1013904223;
        memcpy(values[part], bits[part], sizeof bits[part]);
        shards[part] = values[part];
    }
    for (int parts = 1; parts <= PARTS; parts++)
        for (size_t elements = 1; elements <= MOST; elements++) {
            uint32_t expected[MOST] = {0};
            size_t begin, first = kept_part(elements, parts, 0, &begin);
            for (int part = 0; part < parts; part++) {
                size_t count = kept_part(elements, parts, part, &begin);
                for (size_t i = 0; i < count; i++) expected[i] ^= bits[part][begin + i];
            }
            memset(out, 0xff, sizeof out);
            kept_xor_parts(out, shards, parts, elements);
            memcpy(found, out, sizeof found);
            for (size_t i = 0; i < first; i++) ck_assert_uint_eq(found[i], expected[i]);
            for (size_t i = first; i < MOST; i++) ck_assert_uint_eq(found[i], UINT32_MAX);
        }
}
