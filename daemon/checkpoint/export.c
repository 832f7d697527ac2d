/* A checkpoint as a state_dict; see export.h. */
#include "checkpoint/export.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/state_header.h"

#define BYTES_MAX (UINT64_C(1) << 60)

struct export
{
    struct saved *saved;
    bool average;
    struct buf header;
    uint64_t bytes;
    size_t header_done;
    int entry;    /* position of the next read */
    int64_t done; /* elements of it */
};

void export_free(struct export *export)
{
    if (export == NULL) return;
    saved_free(export->saved);
    buf_deinit(&export->header);
    free(export);
}

uint64_t export_bytes(const struct export *export)
{
    return export->bytes;
}

const struct manifest *export_manifest(const struct export *export)
{
    return saved_manifest(export->saved);
}

/* A sum of values that only a forged manifest reaches is refused. */
static status_t check_entries(const struct manifest *manifest)
{
    uint64_t bytes = 0;
    for (int e = 0; e < manifest->entry_count; e++) {
        bytes += (uint64_t)state_entry_elements(&manifest->entries[e]) * sizeof(float);
        if (bytes > BYTES_MAX)
            return status_new(STATUS_DATA_LOSS,
                              MANIFEST_FILE " of step %" PRIu64
                                            ": state_dict: more values than any model has",
                              manifest->progress.step);
    }
    return NULL;
}

static status_t make_header(struct export *export)
{
    const struct manifest *manifest = saved_manifest(export->saved);
    TRY(check_entries(manifest));
    export->bytes = state_header_write(&export->header, manifest->entries, manifest->entry_count);
    return NULL;
}

static status_t check_average(const struct manifest *manifest)
{
    if (manifest->averages) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "the checkpoint of step %" PRIu64 " has no average of the weights: the job "
                      "kept none then (train.ema)",
                      manifest->progress.step);
}

status_t export_new(struct saved *saved, bool average, struct export **out)
{
    struct export *export = mem_alloc(sizeof *export);
    export->saved = saved;
    export->average = average;
    status_t status = average ? check_average(saved_manifest(saved)) : NULL;
    if (status == NULL) status = make_header(export);
    if (status == NULL) *out = export;
    else export_free(export);
    return status;
}

status_t export_verify(struct export *export, uint64_t bytes, bool *done)
{
    return saved_verify_next(export->saved, bytes, done);
}

status_t export_check_reports(const struct export *export)
{
    AUTO(buf_deinit) struct buf reports = {0};
    return saved_read_reports(export->saved, &reports);
}

/* As f32, of a unit whose parameters are in bf16. */
static status_t read_rounded(struct export *export, int unit, int64_t first, int64_t count,
                             float *values)
{
    enum { PIECE = 1 << 12 };
    uint32_t words[PIECE / 2 + 1];
    for (int64_t at = first; at < first + count;) {
        int64_t left = first + count - at, now = left < PIECE ? left : PIECE;
        const uint16_t *halves = (const uint16_t *)words + at % 2;
        TRY(saved_read_unit(export->saved, unit, -1, at / 2, (at + now + 1) / 2 - at / 2,
                            (float *)(void *)words));
        for (int64_t i = 0; i < now; i++) {
            uint32_t bits = (uint32_t)halves[i] << 16;
            memcpy(&values[at - first + i], &bits, sizeof bits);
        }
        at += now;
    }
    return NULL;
}

/* The entry that is next, with values left; NULL: that was all. */
static const struct state_entry *find_next(struct export *export)
{
    const struct manifest *manifest = saved_manifest(export->saved);
    for (; export->entry < manifest->entry_count; export->entry++, export->done = 0)
        if (export->done < state_entry_elements(&manifest->entries[export->entry]))
            return &manifest->entries[export->entry];
    return NULL;
}

static size_t take_header(struct export *export, void *bytes, size_t size)
{
    size_t left = export->header.length - export->header_done;
    size_t count = left < size ? left : size;
    if (count > 0) memcpy(bytes, export->header.data + export->header_done, count);
    export->header_done += count;
    return count;
}

status_t export_read(struct export *export, void *bytes, size_t size, size_t *count)
{
    char *to = bytes;
    const struct manifest *manifest = saved_manifest(export->saved);
    const struct state_entry *entry;
    *count = take_header(export, to, size);
    /* a header is padded to 8 bytes, so the remainder holds whole values */
    while (size - *count >= sizeof(float) && (entry = find_next(export)) != NULL) {
        int64_t left = state_entry_elements(entry) - export->done;
        int64_t room = (int64_t)((size - *count) / sizeof(float));
        int64_t now = left < room ? left : room;
        int slot = export->average ? manifest->units[entry->unit].slots - 1 : -1;
        int64_t first = entry->offset + export->done;
        float *values = (float *)(void *)(to + *count);
        if (slot < 0 && manifest->units[entry->unit].rounded)
            TRY(read_rounded(export, entry->unit, first, now, values));
        else TRY(saved_read_unit(export->saved, entry->unit, slot, first, now, values));
        export->done += now;
        *count += (size_t)now * sizeof(float);
    }
    return NULL;
}
