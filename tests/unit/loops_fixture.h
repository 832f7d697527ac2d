/*
 * Shared by the tests of the vectorised loops: sizes around those of a vector, and values.
 * Everything is static; a test uses what it needs.
 */
#ifndef FSDPD_TESTS_LOOPS_FIXTURE_H
#define FSDPD_TESTS_LOOPS_FIXTURE_H

#include "kernel_fixture.h"
#include "kernels/cpu/loops.h"
#include "tests/testing.h"

enum { MOST = 5000 };

static const size_t sizes[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 511, 513, 4999};
enum { SIZE_COUNT = COUNT_OF(sizes) };

static struct random rng;

/* Typical values for an optimizer: of all sizes, some of them zero. */
static void random_state(float *values, size_t count, bool positive)
{
    for (size_t i = 0; i < count; i++) {
        float value = ldexpf(random_float(&rng), (int)random_between(&rng, -40, 3));
        values[i] = random_between(&rng, 0, 20) == 0 ? 0 : positive ? fabsf(value) : value;
    }
}

static void assert_same_bits(const float *found, const float *expected, size_t count,
                             const char *what, const char *level)
{
    if (count == 0 || memcmp(found, expected, count * sizeof *found) == 0) return;
    size_t i = 0;
    while (memcmp(&found[i], &expected[i], sizeof *found) == 0) i++;
    ck_abort_msg("%s (%s): %.9g at %zu of %zu, expected %.9g", what, level, found[i], i, count,
                 expected[i]);
}

#endif
