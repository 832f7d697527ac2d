/*
 * The data that a rank saves, and its file; see capture.h. The thread that writes reads the
 * executor's arrays in place, piece by piece; as the executor's guard, a capture copies what is not
 * written of a unit before that changes.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/block_sums.h"
#include "checkpoint/capture_internal.h"
#include "checkpoint/state_dict.h"
#include "hf/safetensors.h"

enum { PIECE_BYTES = 1 << 20, PIECE_ELEMENTS = PIECE_BYTES / sizeof(float) };

/* With the lock held, which it releases. */
static void leave(struct capture *capture)
{
    MUST(capture->users > 0);
    bool last = --capture->users == 0;
    pthread_mutex_unlock(&capture->lock);
    if (!last) return;
    status_free(capture->failed);
    pthread_mutex_destroy(&capture->lock);
    free(capture);
}

uint64_t capture_drop_arrays(struct capture *capture)
{
    pthread_mutex_lock(&capture->lock);
    for (int i = 0; i < capture->array_count; i++) free(capture->arrays[i].copy);
    free(capture->arrays);
    capture->arrays = NULL;
    capture->array_count = 0;
    uint64_t copied = capture->copied;
    pthread_mutex_unlock(&capture->lock);
    return copied;
}

void capture_free(struct capture *capture)
{
    if (capture == NULL) return;
    capture_drop_arrays(capture);
    manifest_deinit(&capture->manifest);
    pthread_mutex_lock(&capture->lock);
    leave(capture);
}

uint64_t capture_step(const struct capture *capture)
{
    return capture->manifest.progress.step;
}

status_t capture_failure(struct capture *capture)
{
    pthread_mutex_lock(&capture->lock);
    status_t status = status_copy(capture->failed);
    pthread_mutex_unlock(&capture->lock);
    return status;
}

/* The groups that hold copies of a unit take turns, unit by unit; buffers are those of rank 0. */
static void describe_unit(const struct executor *executor, int u, struct saved_unit *saved)
{
    const struct plan *plan = executor_plan(executor);
    const struct unit *unit = &plan->units->units[u];
    const struct flat_parameter *flat = &unit->flat;
    int copies = plan->options.world / unit->shard_world;
    *saved =
        (struct saved_unit){.name = mem_strdup(unit->name),
                            .shard =
                                !unit->unsaved ? (int64_t)executor_shard_elements(executor, u) : 0,
                            .shard_world = unit->shard_world,
                            .rounded = flat->slots.rounded,
                            .first_rank = unit->buffers ? 0 : u % copies * unit->shard_world};
    while (saved->slots < plan->options.optimizer_slots &&
           executor_unit_state(executor, u, saved->slots) != NULL)
        saved->slots++;
    if (slot_shaped(flat->slots.shape) < saved->slots) saved->shape = flat->slots.shape;
    saved->parameters =
        mem_alloc_array((size_t)flat->parameter_count + 1, sizeof *saved->parameters);
    const struct slot_layout shaped =
        saved->shape != SHAPE_PLAIN ? flat->slots : (struct slot_layout){0};
    for (int i = 0; i < flat->parameter_count && saved->shard > 0; i++) {
        const struct parameter *parameter = &plan->model->parameters[flat->parameters[i]];
        int64_t elements = tensor_element_count(&parameter->type);
        saved->parameters[saved->parameter_count++] =
            (struct saved_parameter){.name = mem_strdup(parameter->name),
                                     .elements = elements,
                                     .offset = flat->offsets[i],
                                     .words = slot_words(&shaped, flat->offsets[i], elements)};
    }
    manifest_lay_out(saved, plan->options.state);
}

void capture_describe(const struct executor *executor, const struct capture_job *job,
                      const struct saved_progress *progress, struct manifest *manifest)
{
    const struct plan *plan = executor_plan(executor);
    *manifest = (struct manifest){.run = mem_strdup(job->run),
                                  .job = mem_strdup(job->job),
                                  .optimizer = plan_optimizers_text(plan),
                                  .averages = plan_average_slot(plan) >= 0,
                                  .state = plan->options.state,
                                  .attempt = job->attempt,
                                  .time_ms = clock_wall_ms(),
                                  .plan_hash = plan->hash,
                                  .progress = *progress,
                                  .world = plan->options.world};
    manifest->files = mem_alloc_array((size_t)manifest->world, sizeof *manifest->files);
    manifest->units = mem_alloc_array((size_t)plan->units->unit_count, sizeof *manifest->units);
    manifest->unit_count = plan->units->unit_count;
    for (int u = 0; u < manifest->unit_count; u++) describe_unit(executor, u, &manifest->units[u]);
    manifest->entries = state_entries_list(plan, &manifest->entry_count);
    int count = 0;
    for (int e = 0; e < manifest->entry_count; e++) {
        struct state_entry *entry = &manifest->entries[e];
        if (!plan->units->units[entry->unit].unsaved) manifest->entries[count++] = *entry;
        else free(entry->name);
    }
    manifest->entry_count = count;
}

/* Room for what the writer has not taken of an array. */
static status_t make_room(struct capture *capture, struct captured *array)
{
    MUST(array->copy == NULL && array->taken <= array->elements);
    size_t count = array->elements - array->taken;
    array->copied_from = array->taken;
    array->copy = malloc(count * sizeof *array->copy);
    if (array->copy == NULL)
        return status_no_memory("to copy the %zu numbers that this rank keeps of unit %d for a "
                                "checkpoint",
                                count, array->unit);
    capture->copied += count * sizeof *array->copy;
    return NULL;
}

static status_t copy_rest(struct capture *capture, struct captured *array)
{
    size_t count = array->elements - array->taken;
    TRY(make_room(capture, array));
    memcpy(array->copy, array->live + array->taken, count * sizeof *array->copy);
    array->live = NULL;
    return NULL;
}

/* Copies what the writer has not taken of a unit (-1: of all). With the lock held. */
static void settle(struct capture *capture, int unit)
{
    for (int i = 0; i < capture->array_count && capture->failed == NULL; i++) {
        struct captured *array = &capture->arrays[i];
        if (array->live != NULL && (unit < 0 || array->unit == unit))
            capture->failed = copy_rest(capture, array);
    }
}

static void before_change(void *user, int unit)
{
    struct capture *capture = user;
    pthread_mutex_lock(&capture->lock);
    settle(capture, unit);
    pthread_mutex_unlock(&capture->lock);
}

static void release(void *user)
{
    struct capture *capture = user;
    pthread_mutex_lock(&capture->lock);
    settle(capture, -1);
    leave(capture);
}

/* Notes where an array is, or copies it if the host cannot read it there. */
static status_t take_array(struct capture *capture, struct executor *executor,
                           struct captured *array)
{
    if (array->elements == 0) return NULL;
    if (executor_in_host_memory(executor, array->unit)) {
        array->live = executor_unit_state(executor, array->unit, array->slot);
        return NULL;
    }
    TRY(make_room(capture, array));
    return executor_read_slot(executor, array->unit, array->slot, array->copy);
}

static status_t take_arrays(struct capture *capture, struct executor *executor)
{
    const struct manifest *manifest = &capture->manifest;
    capture->arrays = mem_alloc_array((size_t)manifest->unit_count * (MANIFEST_SLOTS_MAX + 1),
                                      sizeof *capture->arrays);
    for (int u = 0; u < manifest->unit_count; u++) {
        const struct saved_unit *unit = &manifest->units[u];
        int place = capture->rank - unit->first_rank;
        if (place < 0 || place >= unit->shard_world) continue;
        for (int slot = -1; slot < unit->slots; slot++) {
            struct captured *array = &capture->arrays[capture->array_count++];
            struct slot_layout layout = slot_layout_of(&unit->layout, slot);
            *array = (struct captured){.unit = u, .slot = slot, .elements = (size_t)layout.words};
            array->type = slot_file_type(&layout, &array->per_word);
            TRY(take_array(capture, executor, array));
        }
    }
    return NULL;
}

struct capture *capture_take(struct executor *executor, const struct capture_job *job,
                             const struct saved_progress *progress)
{
    struct capture *capture = mem_alloc(sizeof *capture);
    pthread_mutex_init(&capture->lock, NULL);
    capture->users = 2;
    capture->rank = executor_plan(executor)->options.rank;
    capture_describe(executor, job, progress, &capture->manifest);
    capture->failed = take_arrays(capture, executor);
    executor_set_guard(executor, &(struct executor_guard){before_change, release, capture});
    return capture;
}

/* The file. */

struct capture_writer {
    int fd;
    const char *path;
    uint64_t written;
    struct block_sums sums;
};

static status_t write_bytes(struct capture_writer *writer, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        size_t piece = size < PIECE_BYTES ? size : PIECE_BYTES;
        ssize_t count = write(writer->fd, at, piece);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return status_from_errno(errno, "cannot write %s", writer->path);
        block_sums_add(&writer->sums, at, (size_t)count);
        writer->written += (uint64_t)count;
        at += count;
        size -= (size_t)count;
    }
    return NULL;
}

static void add_header(const struct capture *capture, struct buf *header)
{
    AUTO_FREE struct safetensors_entry *entries =
        mem_alloc_array((size_t)capture->array_count + 1, sizeof *entries);
    for (int i = 0; i < capture->array_count; i++) {
        const struct captured *array = &capture->arrays[i];
        char name[48];
        entries[i] =
            (struct safetensors_entry){.name = mem_strdup(
                                           manifest_tensor_name(array->unit, array->slot, name)),
                                       .dtype = (char *)(uintptr_t)array->type,
                                       .dim_count = 1,
                                       .dims = {(int64_t)array->elements * array->per_word}};
    }
    const struct safetensors_metadata metadata[] = {{"format", "fsdpd-checkpoint"},
                                                    {"job", capture->manifest.job}};
    safetensors_write_header(header, entries, capture->array_count, metadata, 2);
    for (int i = 0; i < capture->array_count; i++) free(entries[i].name);
}

/* The next values of an array, none after the last: a piece of the executor's array is copied to
 * `piece`, so that it may change while they are written. */
static status_t take_values(struct capture *capture, struct captured *array, float *piece,
                            const float **values, size_t *count)
{
    pthread_mutex_lock(&capture->lock);
    status_t status = status_copy(capture->failed);
    size_t left = status == NULL ? array->elements - array->taken : 0;
    *count = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
    if (array->live != NULL && *count > 0) {
        *values = memcpy(piece, array->live + array->taken, *count * sizeof *piece);
    } else if (*count > 0) {
        *values = array->copy + (array->taken - array->copied_from);
    } else if (status == NULL) { /* memory shrinks as the file grows */
        free(array->copy);
        array->copy = NULL;
    }
    array->taken += *count;
    if (array->taken == array->elements) array->live = NULL;
    pthread_mutex_unlock(&capture->lock);
    return status;
}

static status_t write_array(struct capture *capture, struct captured *array, float *piece,
                            struct capture_writer *writer)
{
    for (;;) {
        const float *values = NULL;
        size_t count;
        TRY(take_values(capture, array, piece, &values, &count));
        if (count == 0) return NULL;
        TRY(write_bytes(writer, values, count * sizeof *values));
    }
}

static status_t write_all(void *user, struct capture_writer *writer)
{
    struct capture *capture = user;
    AUTO_FREE float *piece = malloc(PIECE_BYTES);
    if (piece == NULL) return status_no_memory("for a piece of a checkpoint");
    AUTO(buf_deinit) struct buf header = {0};
    add_header(capture, &header);
    TRY(write_bytes(writer, header.data, header.length));
    for (int i = 0; i < capture->array_count; i++)
        TRY(write_array(capture, &capture->arrays[i], piece, writer));
    return NULL;
}

/* A new file, written by `write_out`, and synced; nothing is left of one that failed. */
static status_t make_file(const struct folder *directory, const char *name, struct saved_file *file,
                          status_t (*write_out)(void *user, struct capture_writer *writer),
                          void *user)
{
    AUTO_FREE char *path = file_path_join(directory->path, name);
    int fd =
        openat(directory->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    struct capture_writer writer = {.fd = fd, .path = path};
    block_sums_begin(&writer.sums);
    status_t status =
        fd < 0 ? status_from_errno(errno, "cannot make %s", path) : write_out(user, &writer);
    block_sums_end(&writer.sums, &file->sum);
    file->bytes = writer.written;
    if (status == NULL && fsync(fd) != 0) status = status_from_errno(errno, "cannot sync %s", path);
    if (fd >= 0 && close(fd) != 0 && status == NULL)
        status = status_from_errno(errno, "cannot close %s", path);
    /* its bytes may be missing elsewhere */
    if (status != NULL && fd >= 0) unlinkat(directory->fd, name, 0);
    return status;
}

status_t capture_write(struct capture *capture, const struct folder *directory,
                       struct saved_file *file)
{
    char name[32];
    return make_file(directory, manifest_file_name(capture->rank, name), file, write_all, capture);
}

static status_t write_text(void *user, struct capture_writer *writer)
{
    const struct buf *bytes = user;
    return write_bytes(writer, bytes->data, bytes->length);
}

status_t capture_write_file(const struct folder *directory, const char *name, struct buf *bytes,
                            struct saved_file *file)
{
    return make_file(directory, name, file, write_text, bytes);
}
