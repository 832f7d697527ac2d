/*
 * Maintains the store's log, and the mark of acknowledged changes (store_mark.h), as changes are
 * committed. SQLite appends to the log, and restarts it under another salt once all of it has been
 * copied to the store's file. We copy it instead of SQLite, so that the mark records each stage:
 * first that the log is on the disk, then that neither file is complete alone, then that store.db
 * is.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "coordinator/store/store_internal.h"

enum { COPY_FRAMES = 1000, CHANGES_OFFSET = 60 /* user_version, in the file's header */ };

static sqlite3_file *file_of(sqlite3 *database, int which)
{
    sqlite3_file *file = NULL;
    sqlite3_file_control(database, "main", which, &file);
    return file != NULL && file->pMethods != NULL ? file : NULL;
}

status_t store_read_changes(sqlite3 *database, const char *path, uint32_t *changes,
                            uint32_t *copied)
{
    sqlite3_stmt *statement = NULL;
    uint8_t bytes[4];
    status_t status = NULL;
    if (sqlite3_prepare_v2(database, "PRAGMA user_version", -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        status = store_sqlite_error(database, path, "read");
    else *changes = (uint32_t)sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    TRY(status);
    sqlite3_file *file = file_of(database, SQLITE_FCNTL_FILE_POINTER);
    int code = file == NULL ? SQLITE_ERROR
                            : file->pMethods->xRead(file, bytes, sizeof bytes, CHANGES_OFFSET);
    if (code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ) /* empty file: 0 */
        return status_new(STATUS_UNAVAILABLE, "cannot read %s", path);
    *copied =
        (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    return NULL;
}

/* Writes the mark. If this fails, the older mark remains: it requires less than it could, and never
 * more than exists. */
static void write_mark(struct store *store, bool sync)
{
    status_t status = mark_write(store->mark_fd, &store->mark, sync);
    if (status == NULL) store->mark_refused = false;
    else if (store->mark_refused) status_free(status);
    else {
        store->mark_refused = true;
        log_status(LOG_WARNING, "store_mark_failed", status);
    }
}

/* Records in the mark that all frames of the log are on the disk. */
static void mark_frames(struct store *store)
{
    uint8_t header[LOG_FRAME_HEADER];
    sqlite3_file *log = file_of(store->database, SQLITE_FCNTL_JOURNAL_POINTER);
    if (log != NULL && store->frames > 0 &&
        log->pMethods->xRead(log, header, sizeof header,
                             log_frame_offset(store->frames, store->page_size)) == SQLITE_OK)
        store->mark.log = log_place_of(store->frames, header);
}

bool store_copy_log(struct store *store)
{
    sqlite3_file *log = file_of(store->database, SQLITE_FCNTL_JOURNAL_POINTER);
    int frames = 0, copied = -1;
    if (log == NULL || store->frames == 0 ||
        log->pMethods->xSync(log, SQLITE_SYNC_NORMAL) != SQLITE_OK)
        return false; /* the next commit retries */
    mark_frames(store);
    store->mark.copying = true;
    write_mark(store, false);
    if (sqlite3_wal_checkpoint_v2(store->database, "main", SQLITE_CHECKPOINT_PASSIVE, &frames,
                                  &copied) != SQLITE_OK ||
        frames != copied)
        return false; /* a reader uses it, or there is no room */
    store->mark.copying = false;
    store->mark.copied = store->mark.changes;
    write_mark(store, true);
    return true;
}

/* The mark must not lag by more than one restart of the log: after two, the salts could not be
 * compared. */
void store_note_commit(struct store *store)
{
    bool restarted = store->committed < store->frames;
    store->frames = store->committed;
    if (restarted) store->mark.log = (struct log_place){0};
    if (store->durable) {
        store->mark.changes++;
        mark_frames(store);
    }
    if (restarted || store->durable) write_mark(store, restarted);
    if (store->frames >= COPY_FRAMES) store_copy_log(store);
}

int store_count_frames(void *user, sqlite3 *database, const char *name, int frames)
{
    (void)database;
    (void)name;
    ((struct store *)user)->committed = (uint32_t)frames;
    return SQLITE_OK;
}

/* ---- identity of the files ---- */

void store_note_files(struct store *store)
{
    for (int i = 0; i < STORE_FILES; i++) {
        struct store_file *file = &store->files[i];
        struct stat info;
        if (stat(file->path, &info) != 0) continue;
        file->device = info.st_dev;
        file->number = info.st_ino;
    }
}

status_t store_check_files(const struct store *store)
{
    for (int i = 0; i < STORE_FILES; i++) {
        const struct store_file *file = &store->files[i];
        struct stat info;
        if (file->number == 0) continue;
        bool there = stat(file->path, &info) == 0;
        if (!there && errno != ENOENT && errno != ENOTDIR)
            return status_new(STATUS_UNAVAILABLE, "cannot look at %s: %s", file->path,
                              strerror(errno));
        if (there && info.st_dev == file->device && info.st_ino == file->number) continue;
        return status_new(STATUS_UNAVAILABLE,
                          "%s was %s while fsdpd ran: nothing can be recorded until it is back, or "
                          "fsdpd is restarted",
                          file->path, there ? "replaced" : "removed");
    }
    return NULL;
}
