/* `fsdpd calibrate`; see roles.h. */
#include "roles.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host.h"
#include "planning/calibrate.h"

enum { SECONDS = 50, WORKERS_DEFAULT_MAX = 8, LOWEST_PRIORITY = 19 };

/* Without --workers: a worker per processor, or one on another device. */
static int count_workers(const struct calibrate_role_options *options, const char *device)
{
    if (options->workers > 0) return options->workers;
    if (strcmp(device, "cpu") != 0) return 1;
    const int processors = host_processors();
    return processors > WORKERS_DEFAULT_MAX ? WORKERS_DEFAULT_MAX : processors;
}

static status_t write_profile(const struct profile *profile, const char *path)
{
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = NULL;
    profile_print(profile, &text);
    if (path != NULL) {
        status = file_write_atomic(path, buf_text(&text), text.length, 0644);
    } else if (fwrite(buf_text(&text), 1, text.length, stdout) != text.length ||
               fflush(stdout) != 0) {
        status = status_new(STATUS_UNAVAILABLE, "cannot write to standard output");
    }
    return status;
}

status_t calibrate_role_run(const struct calibrate_role_options *options, const char *device,
                            int threads)
{
    const struct calibrate_options measured = {.device = device,
                                               .workers = count_workers(options, device),
                                               .threads = threads > 0 ? threads : 1,
                                               .seconds = options->seconds > 0 ? options->seconds
                                                                               : SECONDS};
    AUTO(profile_deinit) struct profile profile = {0};
    if (options->worker > 0) {
        /* Neither can fail in a way that matters: the figures are then those of a busier host. */
        setpriority(PRIO_PROCESS, 0, LOWEST_PRIORITY);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != options->worker) /* it ended before that */
            return status_new(STATUS_CANCELLED, "calibrate: its worker has ended");
    }
    TRY(status_wrap(calibrate(&measured, &profile), "calibrate"));
    return write_profile(&profile, options->out);
}
