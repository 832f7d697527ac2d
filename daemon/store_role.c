/* `fsdpd backup`, `fsdpd restore` and `fsdpd scrub`; see roles.h. */
#include "roles.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "coordinator/monitor/scrub.h"
#include "coordinator/store/store.h"
#include "options.h"
#include "print/table.h"

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

struct scrub_pace {
    int64_t began_ns;
    uint64_t bytes;
    double rate; /* bytes per second */
};

static bool keep_pace(void *user, uint64_t bytes)
{
    struct scrub_pace *pace = user;
    pace->bytes += bytes;
    double ahead = (double)pace->bytes / pace->rate -
                   (double)(clock_monotonic_ns() - pace->began_ns) * 1e-9;
    if (ahead > 0) clock_sleep_ms((int64_t)(ahead * 1000));
    return true;
}

static void print_finding(void *user, const struct scrub_finding *finding)
{
    (void)user;
    AUTO(buf_deinit) struct buf text = {0};
    buf_printf(&text, "damaged: %s", scrub_kind_name(finding->kind));
    if (finding->job != NULL) buf_printf(&text, " of %s", finding->job);
    if (finding->kind == SCRUB_CHECKPOINT) buf_printf(&text, " of step %" PRIu64, finding->step);
    buf_add_text(&text, ": ");
    output_clean(&text, finding->message, false);
    puts(buf_text(&text));
    fflush(stdout);
}

/* Prints what was read; returns how much of it is damaged. */
static uint64_t print_totals(const struct scrub_totals *totals)
{
    static const struct table_column columns[] = {
        {.title = "KEPT"}, {"READ", true, false, 0}, {"SIZE", true, false, 0}, {"DAMAGED", true, false, 0}};
    struct table table = {.columns = columns, .column_count = 4};
    AUTO(buf_deinit) struct buf text = {0};
    uint64_t damaged = 0;
    for (int kind = 0; kind < SCRUB_KINDS; kind++) {
        table_add(&table, scrub_kind_name((enum scrub_kind)kind));
        table_add_count(&table, totals->read[kind]);
        table_add_bytes(&table, totals->bytes[kind]);
        table_add_count(&table, totals->damaged[kind]);
        damaged += totals->damaged[kind];
    }
    table_print(&table, 0, 0, &text);
    table_deinit(&table);
    fputs(buf_text(&text), stdout);
    return damaged;
}

status_t scrub_role_run(const struct options *options)
{
    struct coordinator_options own = options->coordinator;
    AUTO_FREE char *data = file_path_join(own.state_dir, "data"), *real = realpath(data, NULL);
    if (own.data_root_count == 0 && real != NULL) own.data_roots[own.data_root_count++] = real;
    struct scrub_pace pace = {.began_ns = clock_monotonic_ns(), .rate = own.limits.scrub_rate * 1e6};
    struct scrub scrub = {
        .options = &own, .read = keep_pace, .found = print_finding, .user = &pace};
    TRY(scrub_run(&scrub));
    uint64_t damaged = print_totals(&scrub.totals);
    if (damaged == 0) return NULL;
    return status_new(STATUS_DATA_LOSS, "damage was found in %" PRIu64 " place%s", damaged,
                      damaged == 1 ? "" : "s");
}
