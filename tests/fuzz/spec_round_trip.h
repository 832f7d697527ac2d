/* What the two targets of common/spec share. */
#ifndef FSDPD_TESTS_FUZZ_SPEC_H
#define FSDPD_TESTS_FUZZ_SPEC_H

#include "fuzz.h"
#include "spec/spec.h"

/* A valid message, written as a job file and read again, must be the same message. */
void fuzz_check_round_trip(const Fsdpd__V1__JobSpec *spec);

#endif
