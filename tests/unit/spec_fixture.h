/* What the tests of common/spec share: a directory with net.yaml to be in, and job files as text.
 */
#ifndef FSDPD_TEST_SPEC_FIXTURE_H
#define FSDPD_TEST_SPEC_FIXTURE_H

#include "spec/spec.h"

#define MINIMAL "name: mnist\nmodel: {file: net.yaml}\ndata: {dir: d}\n"

/* Make and leave the directory: a checked fixture. */
void spec_set_up(void);
void spec_tear_down(void);

/* A job file's text, with `count` (at most 8) settings of the command line. */
status_t read_with(const char *text, const char *const *sets, int count, Fsdpd__V1__JobSpec **spec);

/* The same with one setting or NULL; it must be read, and be valid. */
Fsdpd__V1__JobSpec *must_read(const char *text, const char *set);

void expect_invalid(const Fsdpd__V1__JobSpec *spec, const char *message);

#endif
