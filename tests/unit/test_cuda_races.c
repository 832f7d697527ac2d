/*
 * The kernels' tests under ThreadSanitizer (tests/emulation/emulation.h), by tests/check_races.sh;
 * with "planted" and a number as arguments one kernel of tests/emulation/planted.cc instead.
 */
#include <stdlib.h>

#include "../emulation/planted.h"
#include "tests/testing.h"

static int run_planted(int argc, char **argv)
{
    planted_run(argc > 2 ? (enum planted)atoi(argv[2]) : PLANTED_BARRIER);
    return 0;
}

TEST_PROGRAM("planted", run_planted);
