/* Checkpoints in directories that the jobs' settings name; see checkpoint_place.h. */
#include "coordinator/jobs/checkpoint_place.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/mem.h"
#include "base/tree.h"
#include "proto/message.h"

char *checkpoint_dirs_run(const job_message *job)
{
    return mem_printf("%s@%lld", job->id, (long long)message_time_ms(job->submit_time));
}

typedef status_t visit_fn(int parent, const char *run, const char *path);

static status_t visit_all(const struct coordinator_options *options, const char *directory,
                          const char *run, visit_fn *visit)
{
    status_t status = NULL;
    for (int i = 0; i < options->data_root_count; i++) {
        int parent = -1;
        status_free(beneath_open(options->data_roots[i], directory, true, &parent));
        if (parent < 0) continue; /* below another root, or only on other hosts */
        AUTO_FREE char *path = mem_printf("%s/%s", directory, run);
        status = status_first(status, visit(parent, run, path));
        close(parent);
    }
    return status;
}

status_t checkpoint_dirs_remove(const struct coordinator_options *options, const char *directory,
                                const char *run)
{
    return visit_all(options, directory, run, tree_remove_at);
}

static status_t sweep(int parent, const char *run, const char *path)
{
    int fd = openat(parent, run, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? NULL : status_from_errno(errno, "cannot open %s", path);
    status_t status = unfinished_sweep_at(fd, path);
    close(fd);
    return status;
}

status_t checkpoint_dirs_sweep(const struct coordinator_options *options, const char *directory,
                               const char *run)
{
    return visit_all(options, directory, run, sweep);
}
