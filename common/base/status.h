/*
 * Errors. A function that can fail returns a status_t: NULL means it succeeded; anything else is
 * one error on the heap that the caller owns and must hand on, wrap or free. Codes are gRPC's
 * canonical codes, so an error keeps its meaning from a kernel to the shell. Messages say what was
 * expected, what was found, and where. On failure a function leaves its outputs untouched.
 *
 * Thread safety: a status_t may be handed from one thread to another; it is never shared.
 */
#ifndef FSDPD_BASE_STATUS_H
#define FSDPD_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

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

#define FSDPD_MUST_USE __attribute__((warn_unused_result))
#define FSDPD_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* A new error. `code` must not be STATUS_OK. Messages are cut at 4 KiB. */
status_t status_new(enum status_code code, const char *format, ...) FSDPD_PRINTF(2, 3);
status_t status_new_v(enum status_code code, const char *format, va_list args);

/* A new error whose message ends in the text of `error` (an errno value); its code is chosen to
 * fit. */
status_t status_from_errno(int error, const char *format, ...) FSDPD_PRINTF(2, 3);

/* "no memory " and the text; RESOURCE_EXHAUSTED, and status_lacks. */
status_t status_no_memory(const char *format, ...) FSDPD_PRINTF(1, 2);

/* Puts "<text>: " before the message of `status` and returns it; NULL stays NULL. */
status_t status_wrap(status_t status, const char *format, ...) FSDPD_PRINTF(2, 3);

/* The same error again, for a second owner. */
status_t status_copy(status_t status);

/* STATUS_OK for NULL. */
enum status_code status_code(status_t status);

/* Whether a host ran out of space, memory or descriptors, or its disk failed, so that a later
 * attempt may succeed. Set by errors made from errno; copies and wrapped errors keep it. */
bool status_lacks(status_t status);
void status_set_lacks(status_t status, bool lacks); /* accepts NULL */

/* The same for any error made from errno, where what is to be opened was there before; returns
 * `status`. */
status_t status_of_disk(status_t status);

/* Whether it is the answer of the other side of a call, rather than a failure on the way there;
 * copies and wrapped errors keep it. */
bool status_is_answer(status_t status);
void status_set_answer(status_t status, bool answer); /* accepts NULL */

/* "ok" for NULL; otherwise valid until the status is wrapped or freed. */
const char *status_message(status_t status);

/* What programs read of an error, beside its code. Copies and wrapped errors keep it. */
struct status_details {
    const char *reason;  /* "JOB_IS_NOT_RUNNING"; NULL: nothing more than the code says */
    const char *subject; /* what the error is about, "mnist-1"; NULL: unknown */
    const char *field;   /* of the request or of a file, "train.epochs"; NULL: none */
    int line;            /* of the file; 0: none */
};

/* The reason of an error to connect to another rank, which is the subject. */
#define STATUS_PEER_UNREACHED "PEER_UNREACHED"

/* Sets what is not known yet of `status`, and returns it; NULL stays NULL. Texts are copied. */
status_t status_with(status_t status, struct status_details about);
struct status_details status_about(status_t status);

/* "INVALID_ARGUMENT" etc.; "UNKNOWN" for a number that is not a code. */
const char *status_code_name(enum status_code code);

/* Accepts NULL. */
void status_free(status_t status);

/* Keeps the first of two errors and frees the other: for clean-up paths that can also fail. */
status_t status_first(status_t first, status_t second);

/* Returns from the calling function if `expression` is an error. */
#define TRY(expression)                                                                            \
    do {                                                                                           \
        status_t try_status_ = (expression);                                                       \
        if (try_status_ != NULL) return try_status_;                                               \
    } while (0)

#endif
