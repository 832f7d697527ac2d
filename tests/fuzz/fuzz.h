/*
 * Fuzz targets: each file here has one LLVMFuzzerTestOneInput, which hands hostile bytes to one
 * parser and holds its promises against it. In a build with --enable-fuzzers (clang) they are
 * linked with libFuzzer, and `make fuzz` runs them; in every other build with replay.c, which runs
 * the corpus and thereby every input that was ever a finding. An input that breaks a promise
 * aborts.
 */
#ifndef FSDPD_TESTS_FUZZ_H
#define FSDPD_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (condition) break;                                                                      \
        fprintf(stderr, "%s:%d: " #condition ": ", __FILE__, __LINE__);                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        abort();                                                                                   \
    } while (0)

/* Frees an error that an input may well cause; one that says that we are wrong is a finding. */
static inline void fuzz_expect_user_error(status_t status)
{
    FUZZ_CHECK(status_code(status) != STATUS_INTERNAL && status_code(status) != STATUS_UNKNOWN,
               "%s", status_message(status));
    status_free(status);
}

#endif
