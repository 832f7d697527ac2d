/* Plans without a worker; see offline.h. On the loop's thread. The process reads its order from
 * standard input to the end, and writes the result to standard output. */
#include "coordinator/workers/offline.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "process/child.h"
#include "proto/message.h"

enum { RESULT_MAX = 64 << 20, ARGUMENTS_MAX = 16 };

struct offline {
    struct child_process *child;
    offline_done *done;
    void *user;
};

static void on_child_done(void *user, status_t status, const struct buf *output)
{
    struct offline *offline = user;
    Fsdpd__V1__PlanResult *result = NULL;
    if (status == NULL) {
        result =
            fsdpd__v1__plan_result__unpack(NULL, output->length, (const uint8_t *)buf_text(output));
        if (result == NULL)
            status = status_new(STATUS_INTERNAL,
                                "the planning process wrote %zu bytes, which are no plan",
                                output->length);
    }
    offline->done(offline->user, status, result);
    free(offline);
}

static void on_child_closed(void *user)
{
    coordinator_disk_done(user);
}

static int build_arguments(const struct coordinator_options *options,
                           const struct offline_devices *devices, char *memory,
                           const char **arguments)
{
    int count = 0;
    arguments[count++] = options->program;
    arguments[count++] = "plan";
    arguments[count++] = "--order";
    if (devices->profile != NULL) {
        arguments[count++] = "--profile";
        arguments[count++] = devices->profile;
    }
    if (devices->profile != NULL && devices->memory_bytes > 0) {
        arguments[count++] = "--memory";
        arguments[count++] = memory;
    }
    for (int i = 0; i < options->data_root_count; i++) {
        arguments[count++] = "--data-root";
        arguments[count++] = options->data_roots[i];
    }
    for (int i = 0; i < options->family_count; i++) {
        arguments[count++] = "--families";
        arguments[count++] = options->families[i];
    }
    arguments[count] = NULL;
    return count;
}

status_t offline_start(struct coordinator *c, const Fsdpd__V1__PlanOrder *order,
                       const struct offline_devices *devices, offline_done *done, void *user,
                       struct offline **result)
{
    const char
        *arguments[ARGUMENTS_MAX + 2 * COORDINATOR_DATA_ROOTS_MAX + 2 * COORDINATOR_FAMILIES_MAX];
    AUTO_FREE char *memory = mem_printf("%" PRIu64, devices->memory_bytes);
    size_t size;
    AUTO_FREE uint8_t *bytes = message_pack(order, &size);
    build_arguments(&c->options, devices, memory, arguments);
    const struct child_options options = {.what = "the planning process",
                                          .program = c->options.program,
                                          .arguments = arguments,
                                          .input = bytes,
                                          .input_size = size,
                                          .output_max = RESULT_MAX};
    struct offline *offline = mem_alloc(sizeof *offline);
    *offline = (struct offline){.done = done, .user = user};
    c->disk_requests++;
    status_t status =
        child_start(c->loop, &options, on_child_done, offline, on_child_closed, c, &offline->child);
    if (status == NULL) *result = offline;
    else free(offline);
    return status;
}

void offline_cancel(struct offline *offline)
{
    child_cancel(offline->child);
    free(offline);
}
