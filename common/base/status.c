/* Errors; see status.h. */
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

enum { STATUS_MESSAGE_MAX = 4096 };

struct status {
    enum status_code code;
    bool lacks, answer, is_errno;
    char *message;
    char *reason, *subject, *field; /* see struct status_details */
    int line;
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
    case EFBIG: /* `ulimit -f`: as a full disk */
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case EAGAIN: /* no more threads */
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
    status->is_errno = true;
    status->lacks = error == ENOSPC || error == EDQUOT || error == EFBIG || error == EMFILE ||
                    error == ENFILE || error == ENOMEM || error == ENOBUFS || error == EIO ||
                    error == EAGAIN;
    char *joined = mem_printf("%s: %s", status->message, strerror(error));
    free(status->message);
    status->message = joined;
    return status;
}

status_t status_no_memory(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    AUTO_FREE char *text = message_format(format, args);
    va_end(args);
    status_t status = status_new(STATUS_RESOURCE_EXHAUSTED, "no memory %s", text);
    status->lacks = true;
    return status;
}

status_t status_wrap(status_t status, const char *format, ...)
{
    if (status == NULL) return NULL;
    va_list args;
    va_start(args, format);
    AUTO_FREE char *prefix = message_format(format, args);
    va_end(args);
    char *joined = mem_printf("%s: %s", prefix, status->message);
    free(status->message);
    status->message = joined;
    return status;
}

status_t status_copy(status_t status)
{
    if (status == NULL) return NULL;
    status_t copy = status_new(status->code, "%s", status->message);
    copy->lacks = status->lacks;
    copy->answer = status->answer;
    copy->is_errno = status->is_errno;
    return status_with(copy, status_about(status));
}

static void set_text(char **slot, const char *text)
{
    if (*slot == NULL && text != NULL) *slot = mem_strdup(text);
}

status_t status_with(status_t status, struct status_details about)
{
    if (status == NULL) return NULL;
    set_text(&status->reason, about.reason);
    set_text(&status->subject, about.subject);
    set_text(&status->field, about.field);
    if (status->line == 0) status->line = about.line;
    return status;
}

struct status_details status_about(status_t status)
{
    if (status == NULL) return (struct status_details){0};
    return (struct status_details){status->reason, status->subject, status->field, status->line};
}

bool status_lacks(status_t status)
{
    return status != NULL && status->lacks;
}

bool status_is_answer(status_t status)
{
    return status != NULL && status->answer;
}

void status_set_answer(status_t status, bool answer)
{
    if (status != NULL) status->answer = answer;
}

void status_set_lacks(status_t status, bool lacks)
{
    if (status != NULL) status->lacks = lacks;
}

status_t status_of_disk(status_t status)
{
    if (status != NULL && status->is_errno) status->lacks = true;
    return status;
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
    if ((unsigned)code >= COUNT_OF(names)) return "UNKNOWN";
    return names[code];
}

void status_free(status_t status)
{
    if (status == NULL) return;
    free(status->message);
    free(status->reason);
    free(status->subject);
    free(status->field);
    free(status);
}

status_t status_first(status_t first, status_t second)
{
    if (first == NULL) return second;
    status_free(second);
    return first;
}
