/* Requests for what the API reads over HTTP, a part of fuzz_http.c. */
#ifndef FSDPD_TESTS_FUZZ_HTTP_READS_H
#define FSDPD_TESTS_FUZZ_HTTP_READS_H

#include "fuzz.h"

/* `text`, with a NUL at its end: a path, lines NAME=VALUE with its parameters, an empty line, and
 * the bytes of the message that the API answers. */
void fuzz_http_read(char *text, size_t size);

#endif
