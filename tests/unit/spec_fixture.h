/* Shared by the tests of common/spec: a working directory with net.yaml, and job files as text. */
#ifndef FSDPD_TEST_SPEC_FIXTURE_H
#define FSDPD_TEST_SPEC_FIXTURE_H

#include "spec/spec.h"

#define MINIMAL "name: mnist\nmodel: {file: net.yaml}\ndata: {dir: d}\n"

/* Create and leave the directory: a checked fixture. */
void spec_set_up(void);
void spec_tear_down(void);

/* Reads a job file's text, with `count` (at most 8) settings of the command line. */
status_t read_with(const char *text, const char *const *sets, int count, Fsdpd__V1__JobSpec **spec);

/* The same with one setting or NULL; the text must parse, and be valid. */
Fsdpd__V1__JobSpec *must_read(const char *text, const char *set);

void expect_invalid(const Fsdpd__V1__JobSpec *spec, const char *message);

#endif
