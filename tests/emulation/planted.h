/* Kernels with a planted race, and the same without, for tests/check_races.sh. */
#ifndef FSDPD_TESTS_PLANTED_H
#define FSDPD_TESTS_PLANTED_H

#ifdef __cplusplus
extern "C" {
#endif

enum planted { PLANTED_BARRIER, PLANTED_NO_BARRIER, PLANTED_NO_OVERLAP, PLANTED_OVERLAP };

void planted_run(enum planted what);

#ifdef __cplusplus
}
#endif
#endif
