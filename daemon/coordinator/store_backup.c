/*
 * Copies of the store: backups, and their way back; see store.h. SQLite's backup interface reads
 * one moment of a store that is in use. A copy has no log beside it: it is one file.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "coordinator/migrations.h"
#include "coordinator/store_internal.h"

static status_t sync_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    status_t status = NULL;
    if (fd < 0 || fsync(fd) != 0) status = status_from_errno(errno, "cannot sync %s", path);
    if (fd >= 0) close(fd);
    return status;
}

/* Everything of `from` into the open database `to`, then checked as it will be opened. */
static status_t copy_pages(sqlite3 *from, const char *from_path, sqlite3 *to, const char *to_path)
{
    /* Nobody sees the file before it is synced as a whole. */
    if (sqlite3_exec(to, "PRAGMA synchronous = OFF", NULL, NULL, NULL) != SQLITE_OK)
        return store_sqlite_error(to, to_path, "write");
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
    if (backup == NULL) return store_sqlite_error(to, to_path, "write");
    int code;
    while ((code = sqlite3_backup_step(backup, -1)) == SQLITE_BUSY || code == SQLITE_LOCKED)
        sqlite3_sleep(10);
    int finished = sqlite3_backup_finish(backup); /* its error is now that of `to` */
    if (code != SQLITE_DONE || finished != SQLITE_OK) {
        status_t status = store_sqlite_error(to, to_path, "write");
        return status_wrap(status, "cannot copy %s", from_path);
    }
    /* The pages say that there is a log beside them, as there was: here there is none. */
    if (sqlite3_exec(to, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL) != SQLITE_OK)
        return store_sqlite_error(to, to_path, "write");
    return store_check(to, to_path);
}

status_t store_copy(sqlite3 *from, const char *from_path, const char *to)
{
    char *temporary = mem_printf("%s.tmp.XXXXXX", to);
    int fd = mkostemp(temporary, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) {
        status_t status = status_from_errno(errno, "cannot make %s", temporary);
        free(temporary);
        return status;
    }
    close(fd);
    sqlite3 *database = NULL;
    status_t status = NULL;
    if (sqlite3_open_v2(temporary, &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK)
        status = store_sqlite_error(database, temporary, "open");
    if (status == NULL) status = copy_pages(from, from_path, database, temporary);
    sqlite3_close(database);
    if (status == NULL) status = sync_file(temporary);
    if (status == NULL && rename(temporary, to) != 0)
        status = status_from_errno(errno, "cannot rename %s to %s", temporary, to);
    if (status != NULL) {
        char *journal = mem_printf("%s-journal", temporary);
        unlink(journal);
        free(journal);
        unlink(temporary);
    } else {
        status = file_sync_parent(to);
    }
    free(temporary);
    return status;
}

/* Opens a store to read it, and finds it whole. What it has in its log stays there. */
static status_t open_whole(const char *path, sqlite3 **database)
{
    if (access(path, F_OK) != 0) return status_from_errno(errno, "cannot open %s", path);
    status_t status = NULL;
    int code = sqlite3_open_v2(path, database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK) status = store_sqlite_error(*database, path, "open");
    if (status == NULL) {
        sqlite3_db_config(*database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        sqlite3_busy_timeout(*database, 10000);
        status = store_check(*database, path);
    }
    int version = 0;
    if (status == NULL) status = migrations_version(*database, path, &version);
    if (status == NULL && version == 0)
        status = status_new(STATUS_DATA_LOSS, "%s is empty: it is no store of fsdpd", path);
    if (status == NULL) return NULL;
    sqlite3_close(*database);
    *database = NULL;
    return status;
}

status_t store_backup(const char *from, const char *to)
{
    sqlite3 *database = NULL;
    TRY(open_whole(from, &database));
    status_t status = store_copy(database, from, to);
    sqlite3_close(database);
    return status;
}

/*
 * Brings what the log of a store has into its file, so that the file alone is the store. A store
 * that is damaged stays as it is.
 */
static status_t empty_log(const char *path)
{
    sqlite3 *database = NULL;
    int code = sqlite3_open_v2(path, &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    status_t status = code != SQLITE_OK ? store_sqlite_error(database, path, "open") : NULL;
    if (status == NULL) {
        sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        sqlite3_busy_timeout(database, 10000);
        status = store_check(database, path);
    }
    if (status != NULL) {
        sqlite3_close(database);
        status_free(status);
        return NULL;
    }
    if (sqlite3_exec(database, "PRAGMA synchronous = FULL", NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_wal_checkpoint_v2(database, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) !=
            SQLITE_OK)
        status = store_sqlite_error(database, path, "write");
    sqlite3_close(database);
    return status;
}

/* Gives `path` with `suffix` the same place below the new name. Without such a file, nothing. */
static status_t move_part(const char *path, const char *kept, const char *suffix)
{
    char *old = mem_printf("%s%s", path, suffix), *new = mem_printf("%s%s", kept, suffix);
    status_t status = NULL;
    if (rename(old, new) != 0 && errno != ENOENT)
        status = status_from_errno(errno, "cannot rename %s to %s", old, new);
    free(old);
    free(new);
    return status;
}

/*
 * The old store under a name of its own. Its file stays under the old name as well, so that there
 * is a store at every moment; its log must go, as it would be taken for that of the new store, and
 * is empty by then: what ends in between loses no transaction.
 */
static status_t keep_old(const char *path, char **kept)
{
    if (access(path, F_OK) != 0) return NULL;
    TRY(empty_log(path));
    char moment[32];
    struct tm parts;
    time_t now = time(NULL);
    strftime(moment, sizeof moment, "%Y%m%dT%H%M%SZ", gmtime_r(&now, &parts));
    char *name = mem_printf("%s.replaced-%s", path, moment);
    status_t status = NULL;
    if (link(path, name) != 0)
        status = status_from_errno(errno, "cannot keep %s as %s", path, name);
    if (status == NULL) status = move_part(path, name, "-wal");
    if (status == NULL) status = move_part(path, name, "-shm");
    if (status == NULL) *kept = name;
    else free(name);
    return status;
}

/* Root may restore what another user's fsdpd is to open. */
static status_t give_to_owner(const char *path)
{
    char *directory = file_path_directory(path);
    struct stat info;
    status_t status = NULL;
    if (geteuid() == 0 &&
        (stat(directory, &info) != 0 || chown(path, info.st_uid, info.st_gid) != 0))
        status = status_from_errno(errno, "cannot give %s to the owner of %s", path, directory);
    free(directory);
    return status;
}

status_t store_restore(const char *from, const char *to, char **kept)
{
    *kept = NULL;
    sqlite3 *database = NULL;
    TRY(open_whole(from, &database));
    char *fresh = mem_printf("%s.restored", to);
    status_t status = store_copy(database, from, fresh);
    sqlite3_close(database);
    if (status == NULL) status = give_to_owner(fresh);
    if (status == NULL) status = keep_old(to, kept);
    if (status == NULL && rename(fresh, to) != 0)
        status = status_from_errno(errno, "cannot rename %s to %s", fresh, to);
    if (status == NULL) status = file_sync_parent(to);
    else unlink(fresh);
    free(fresh);
    return status;
}
