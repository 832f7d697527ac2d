/*
 * Errors. A function that can fail returns a status_t: NULL means it succeeded; anything else is one
 * error on the heap that the caller owns and must hand on, wrap or free. Codes are gRPC's canonical
 * codes, so an error keeps its meaning from a kernel to the shell. Messages say what was expected,
 * what was found, and where. On failure a function leaves its outputs untouched.
 *
 * Thread safety: a status_t may be handed from one thread to another; it is never shared.
 */
#ifndef FSDPD_BASE_STATUS_H
#define FSDPD_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

enum status_code {
    STATUS_OK = 0,
    STATUS_CANCELLED = 1,
    STATUS_UNKNOWN = 2,
    STATUS_INVALID_ARGUMENT = 3,
    STATUS_DEADLINE_EXCEEDED = 4,
    STATUS_NOT_FOUND = 5,
    STATUS_ALREADY_EXISTS = 6,
    STATUS_PERMISSION_DENIED = 7,
    STATUS_RESOURCE_EXHAUSTED = 8,
    STATUS_FAILED_PRECONDITION = 9,
    STATUS_ABORTED = 10,
    STATUS_OUT_OF_RANGE = 11,
    STATUS_UNIMPLEMENTED = 12,
    STATUS_INTERNAL = 13,
    STATUS_UNAVAILABLE = 14,
    STATUS_DATA_LOSS = 15,
    STATUS_UNAUTHENTICATED = 16,
};

struct status;
typedef struct status *status_t;

#define STATUS_OKAY ((status_t)0)
#define FSDPD_MUST_USE __attribute__((warn_unused_result))
#define FSDPD_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* A new error. `code` must not be STATUS_OK. Messages are cut at 4 KiB. */
status_t status_new(enum status_code code, const char *format, ...) FSDPD_PRINTF(2, 3);
status_t status_new_v(enum status_code code, const char *format, va_list args);

/* A new error whose message ends in the text of `error` (a value of errno), its code chosen to fit. */
status_t status_from_errno(int error, const char *format, ...) FSDPD_PRINTF(2, 3);

/* Puts "<text>: " before the message of `status` and returns it; NULL stays NULL. */
status_t status_wrap(status_t status, const char *format, ...) FSDPD_PRINTF(2, 3);

/* The same error again, for a second owner. */
status_t status_copy(status_t status);

/* STATUS_OK for NULL. */
enum status_code status_code(status_t status);

/* "ok" for NULL; otherwise valid until the status is wrapped or freed. */
const char *status_message(status_t status);

/* "INVALID_ARGUMENT" and so on; "UNKNOWN" for a number that is no code. */
const char *status_code_name(enum status_code code);

/* Accepts NULL. */
void status_free(status_t status);

/* Keeps the first of two errors and frees the other: for clean-up paths that can fail too. */
status_t status_first(status_t first, status_t second);

/* Returns from the calling function if `expression` is an error. */
#define TRY(expression)                                                                            \
    do {                                                                                           \
        status_t try_status_ = (expression);                                                       \
        if (try_status_ != NULL) return try_status_;                                               \
    } while (0)

#endif
