/* Errors; see status.h. */
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { STATUS_MESSAGE_MAX = 4096 };

struct status {
    enum status_code code;
    char *message;
};

static char *message_format(const char *format, va_list args)
{
    char text[STATUS_MESSAGE_MAX];
    vsnprintf(text, sizeof text, format, args);
    return mem_strdup(text);
}

status_t status_new_v(enum status_code code, const char *format, va_list args)
{
    status_t status = mem_alloc(sizeof *status);
    status->code = code == STATUS_OK ? STATUS_INTERNAL : code;
    status->message = message_format(format, args);
    return status;
}

status_t status_new(enum status_code code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(code, format, args);
    va_end(args);
    return status;
}

static enum status_code code_from_errno(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR: return STATUS_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS: return STATUS_PERMISSION_DENIED;
    case EEXIST: return STATUS_ALREADY_EXISTS;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return STATUS_RESOURCE_EXHAUSTED;
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG: return STATUS_INVALID_ARGUMENT;
    case ETIMEDOUT: return STATUS_DEADLINE_EXCEEDED;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE: return STATUS_UNAVAILABLE;
    default: return STATUS_INTERNAL;
    }
}

status_t status_from_errno(int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(code_from_errno(error), format, args);
    va_end(args);
    char *joined = mem_printf("%s: %s", status->message, strerror(error));
    free(status->message);
    status->message = joined;
    return status;
}

status_t status_wrap(status_t status, const char *format, ...)
{
    if (status == NULL) return NULL;
    va_list args;
    va_start(args, format);
    char *prefix = message_format(format, args);
    va_end(args);
    char *joined = mem_printf("%s: %s", prefix, status->message);
    free(prefix);
    free(status->message);
    status->message = joined;
    return status;
}

status_t status_copy(status_t status)
{
    if (status == NULL) return NULL;
    return status_new(status->code, "%s", status->message);
}

enum status_code status_code(status_t status)
{
    return status == NULL ? STATUS_OK : status->code;
}

const char *status_message(status_t status)
{
    return status == NULL ? "ok" : status->message;
}

const char *status_code_name(enum status_code code)
{
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    };
    if ((unsigned)code >= sizeof names / sizeof names[0]) return "UNKNOWN";
    return names[code];
}

void status_free(status_t status)
{
    if (status == NULL) return;
    free(status->message);
    free(status);
}

status_t status_first(status_t first, status_t second)
{
    if (first == NULL) return second;
    status_free(second);
    return first;
}
