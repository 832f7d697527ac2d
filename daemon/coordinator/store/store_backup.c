/*
 * Copies of the store: backup and restore; see store.h. SQLite's backup interface reads a
 * consistent snapshot of a store that is in use. A copy is a single file without a log beside it.
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
#include "coordinator/store/migrations.h"
#include "coordinator/store/store_internal.h"

static status_t sync_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    status_t status = NULL;
    if (fd < 0 || fsync(fd) != 0) status = status_from_errno(errno, "cannot sync %s", path);
    if (fd >= 0) close(fd);
    return status;
}

static void keep_job(void *user, const char *job)
{
    char **first = user;
    if (*first == NULL) *first = mem_strdup(job);
}

/* Checks that the store has no damaged record at all, as a backup requires. */
static status_t check_whole(sqlite3 *database, const char *path)
{
    int version = 0;
    char *job = NULL;
    const struct store_damage damage = {.job = keep_job, .events = keep_job, .user = &job};
    TRY(store_add_sums(database, path));
    TRY(store_check(database, path));
    TRY(migrations_version(database, path, &version));
    status_t status = NULL;
    if (version == migrations_latest()) status = store_check_records(database, path, &damage);
    if (status == NULL && job != NULL)
        status = store_damaged(path, "records of job %s; fsdpctl forget removes it", job);
    free(job);
    return status;
}

/* Copies all of `from` into the open database `to`, then checks it as an open would. */
static status_t copy_pages(sqlite3 *from, const char *from_path, sqlite3 *to, const char *to_path)
{
    /* No process uses the file before it is synced as a whole. */
    if (sqlite3_exec(to, "PRAGMA synchronous = OFF", NULL, NULL, NULL) != SQLITE_OK)
        return store_sqlite_error(to, to_path, "write");
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
    if (backup == NULL) return store_sqlite_error(to, to_path, "write");
    int code;
    while ((code = sqlite3_backup_step(backup, -1)) == SQLITE_BUSY || code == SQLITE_LOCKED)
        sqlite3_sleep(10);
    int finished = sqlite3_backup_finish(backup); /* an error is now that of `to` */
    if (code != SQLITE_DONE || finished != SQLITE_OK) {
        status_t status = store_sqlite_error(to, to_path, "write");
        return status_wrap(status, "cannot copy %s", from_path);
    }
    /* The copied pages still refer to a log: the copy has none. */
    if (sqlite3_exec(to, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL) != SQLITE_OK)
        return store_sqlite_error(to, to_path, "write");
    return check_whole(to, to_path);
}

status_t store_copy(sqlite3 *from, const char *from_path, const char *to)
{
    AUTO_FREE char *temporary = mem_printf("%s.tmp.XXXXXX", to);
    int fd = mkostemp(temporary, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) return status_from_errno(errno, "cannot make %s", temporary);
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
        AUTO_FREE char *journal = mem_printf("%s-journal", temporary);
        unlink(journal);
        unlink(temporary);
    } else {
        status = file_sync_parent(to);
    }
    return status;
}

/* Opens a store for reading. Its log is not copied into its file. */
static status_t open_to_read(const char *path, sqlite3 **database)
{
    struct stat info;
    if (stat(path, &info) != 0) return status_from_errno(errno, "cannot open %s", path);
    if (info.st_size == 0) /* SQLite would remove its log */
        return status_new(STATUS_DATA_LOSS, "%s is empty: it is not an fsdpd store", path);
    int code = sqlite3_open_v2(path, database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK) return store_sqlite_error(*database, path, "open");
    sqlite3_db_config(*database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_busy_timeout(*database, 10000);
    return NULL;
}

/* Also verifies it. */
static status_t open_whole(const char *path, sqlite3 **database)
{
    status_t status = open_to_read(path, database);
    if (status == NULL) status = check_whole(*database, path);
    int version = 0;
    if (status == NULL) status = migrations_version(*database, path, &version);
    if (status == NULL && version == 0)
        status = status_new(STATUS_DATA_LOSS, "%s is empty: it is not an fsdpd store", path);
    if (status == NULL) return NULL;
    sqlite3_close(*database);
    *database = NULL;
    return status;
}

/* Retries: a coordinator may write the store meanwhile, and its mark a moment later. */
static status_t verify_mark(sqlite3 *database, const char *path)
{
    enum { ATTEMPTS = 6, PAUSE_MS = 100 };
    for (int attempt = 1;; attempt++) {
        struct store_mark mark;
        uint32_t changes = 0, copied = 0;
        status_t status = mark_read(path, &mark);
        if (status_code(status) == STATUS_NOT_FOUND) { /* a copy that no fsdpd has opened */
            status_free(status);
            return NULL;
        }
        if (status == NULL) status = store_read_changes(database, path, &changes, &copied);
        if (status == NULL) status = mark_verify(path, &mark, changes, copied);
        if (status == NULL || attempt == ATTEMPTS) return status;
        status_free(status);
        sqlite3_sleep(PAUSE_MS);
    }
}

status_t store_backup(const char *from, const char *to)
{
    sqlite3 *database = NULL;
    int version = 0;
    TRY(mark_find_store(from));
    TRY(open_whole(from, &database));
    status_t status = migrations_version(database, from, &version);
    if (status == NULL) status = verify_mark(database, from);
    if (status == NULL) status = store_copy(database, from, to);
    sqlite3_close(database);
    return status;
}

static status_t check_view(struct store *store, void (*damaged)(void *user, const char *job),
                           void *user)
{
    const struct store_damage damage = {.job = damaged, .events = damaged, .user = user};
    int version = 0;
    TRY(mark_find_store(store->path));
    TRY(open_to_read(store->path, &store->database));
    TRY(store_add_sums(store->database, store->path));
    TRY(migrations_version(store->database, store->path, &version));
    if (version != migrations_latest())
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s has schema version %d, this fsdpd reads %d: the fsdpd that uses it "
                          "upgrades it",
                          store->path, version, migrations_latest());
    TRY(verify_mark(store->database, store->path));
    TRY(store_check(store->database, store->path));
    TRY(store_check_records(store->database, store->path, &damage));
    return store_prepare(store);
}

status_t store_view(const char *path, void (*damaged)(void *user, const char *job), void *user,
                    struct store **out)
{
    struct store *store = mem_alloc(sizeof *store);
    store->path = mem_strdup(path);
    store->mark_fd = -1;
    status_t status = check_view(store, damaged, user);
    if (status == NULL) *out = store;
    else store_close(store);
    return status;
}

/*
 * Copies the store's log into its file, so that the file alone is the store. Leaves a damaged store
 * unchanged.
 */
static status_t empty_log(const char *path)
{
    sqlite3 *database = NULL;
    int code = sqlite3_open_v2(path, &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    status_t status = code != SQLITE_OK ? store_sqlite_error(database, path, "open") : NULL;
    if (status == NULL) {
        sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        sqlite3_busy_timeout(database, 10000);
        status = check_whole(database, path);
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

/* Renames `path` with `suffix` to `kept` with `suffix`, if there is such a file. */
static status_t move_part(const char *path, const char *kept, const char *suffix)
{
    AUTO_FREE char *old = mem_printf("%s%s", path, suffix), *new = mem_printf("%s%s", kept, suffix);
    if (rename(old, new) != 0 && errno != ENOENT)
        return status_from_errno(errno, "cannot rename %s to %s", old, new);
    return NULL;
}

/*
 * Keeps the old store under a name of its own. Its file also stays under the old name, so that a
 * store exists at every moment. Its log must go, as it would be taken for the new store's; the log
 * is empty by then, so an interruption loses no transaction.
 */
static status_t keep_old(const char *path, char **kept)
{
    struct stat info;
    bool there = stat(path, &info) == 0;
    if (there && info.st_size > 0) TRY(empty_log(path));
    char moment[32];
    struct tm parts;
    time_t now = time(NULL);
    strftime(moment, sizeof moment, "%Y%m%dT%H%M%SZ", gmtime_r(&now, &parts));
    char *name = mem_printf("%s.replaced-%s", path, moment);
    status_t status = NULL;
    for (int more = 2; access(name, F_OK) == 0; more++) {
        free(name);
        name = mem_printf("%s.replaced-%s-%d", path, moment, more);
    }
    if (there && link(path, name) != 0)
        status = status_from_errno(errno, "cannot keep %s as %s", path, name);
    if (status == NULL) status = move_part(path, name, "-wal");
    if (status == NULL) status = move_part(path, name, "-shm");
    if (status == NULL && there) *kept = name;
    else free(name);
    return status;
}

/* Root may restore a store that another user's fsdpd opens. */
static status_t give_to_owner(const char *path)
{
    AUTO_FREE char *directory = file_path_directory(path);
    struct stat info;
    if (geteuid() == 0 &&
        (stat(directory, &info) != 0 || chown(path, info.st_uid, info.st_gid) != 0))
        return status_from_errno(errno, "cannot give %s to the owner of %s", path, directory);
    return NULL;
}

/* Resets the mark: from here on it requires nothing of the old or the new store. */
static status_t reset_mark(const char *path)
{
    static const struct store_mark nothing;
    TRY(mark_replace(path, &nothing));
    AUTO_FREE char *name = mem_printf("%s-mark", path);
    return give_to_owner(name);
}

/* A damaged backup needs other advice than a damaged store. Takes `status`. */
static status_t as_backup(status_t status)
{
    const char *message = status_message(status);
    const char *advice = status != NULL ? strstr(message, STORE_DAMAGED_ADVICE) : NULL;
    if (advice == NULL) return status;
    status_t other =
        status_new(status_code(status), "%.*s. The store was not changed; restore another backup",
                   (int)(advice - message), message);
    status_free(status);
    return other;
}

status_t store_restore(const char *from, const char *to, char **kept)
{
    *kept = NULL;
    sqlite3 *database = NULL;
    TRY(as_backup(open_whole(from, &database)));
    AUTO_FREE char *fresh = mem_printf("%s.restored", to);
    status_t status = store_copy(database, from, fresh);
    sqlite3_close(database);
    if (status == NULL) status = give_to_owner(fresh);
    if (status == NULL) status = keep_old(to, kept);
    if (status == NULL) status = reset_mark(to);
    if (status == NULL && rename(fresh, to) != 0)
        status = status_from_errno(errno, "cannot rename %s to %s", fresh, to);
    if (status == NULL) status = file_sync_parent(to);
    else unlink(fresh);
    return status;
}
