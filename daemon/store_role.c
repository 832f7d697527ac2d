/* `fsdpd backup` and `fsdpd restore`; see store_role.h. */
#include "store_role.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "coordinator/store/store.h"

static char *store_path(const struct options *options)
{
    return file_path_join(options->coordinator.state_dir, "store.db");
}

status_t backup_role_run(const struct options *options)
{
    AUTO_FREE char *path = store_path(options);
    status_t status = store_backup(path, options->store_file);
    struct stat info;
    char size[32];
    if (status == NULL && stat(options->store_file, &info) == 0)
        printf("%s: %s, a backup of %s\n", options->store_file,
               text_format_bytes((uint64_t)info.st_size, size), path);
    return status;
}

status_t restore_role_run(const struct options *options)
{
    const char *directory = options->coordinator.state_dir;
    TRY(file_make_directory(directory, 0750));
    AUTO_FREE char *lock_path = file_path_join(directory, "store.lock"),
                   *path = store_path(options);
    AUTO_FREE char *kept = NULL;
    int lock = -1;
    status_t status = status_wrap(file_lock(lock_path, &lock), "stop fsdpd first");
    if (status == NULL) status = store_restore(options->store_file, path, &kept);
    if (status == NULL) printf("%s: restored from %s\n", path, options->store_file);
    if (kept != NULL) printf("%s: the previous store\n", kept);
    if (lock >= 0) close(lock);
    return status;
}
