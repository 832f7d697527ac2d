/* Exit codes; see exit.h. */
#include "exit.h"

int exit_from_status(status_t status)
{
    switch (status_code(status)) {
    case STATUS_OK: return EXIT_DONE;
    case STATUS_UNAVAILABLE: return status_is_answer(status) ? EXIT_FAILED : EXIT_UNREACHABLE;
    case STATUS_PERMISSION_DENIED:
    case STATUS_UNAUTHENTICATED: return EXIT_NOT_PERMITTED;
    case STATUS_NOT_FOUND: return EXIT_NOT_FOUND;
    case STATUS_ALREADY_EXISTS:
    case STATUS_FAILED_PRECONDITION:
    case STATUS_ABORTED: return EXIT_CONFLICT;
    case STATUS_DEADLINE_EXCEEDED: return EXIT_DEADLINE;
    case STATUS_RESOURCE_EXHAUSTED: return EXIT_DOES_NOT_FIT;
    default: return EXIT_FAILED;
    }
}

int exit_from_file(status_t status)
{
    switch (status_code(status)) {
    case STATUS_OK: return EXIT_DONE;
    case STATUS_INVALID_ARGUMENT: return EXIT_USAGE;
    case STATUS_NOT_FOUND: return EXIT_NOT_FOUND;
    case STATUS_PERMISSION_DENIED: return EXIT_NOT_PERMITTED;
    default: return EXIT_FAILED;
    }
}

int exit_from_state(Fsdpd__V1__JobState state)
{
    switch (state) {
    case FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED: return EXIT_DONE;
    case FSDPD__V1__JOB_STATE__JOB_STATE_FAILED: return EXIT_JOB_FAILED;
    case FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED: return EXIT_JOB_CANCELLED;
    default: return EXIT_FAILED;
    }
}
