/*
 * Event files; see tensorboard.h. A record consists of its length, a checksum of the length, the
 * data, and a checksum of the data. The data is an Event message, encoded by hand, since only a few
 * of its fields are needed. The format and the mask of the checksums are TensorFlow's
 * (tensorflow/core/lib/io/record_writer).
 */
#include "coordinator/jobs/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "proto/message.h"
#include "spec/metric_table.h"
#include "spec/spec.h"

struct tensorboard {
    int fd; /* -1 after a failure */
    char *path;
    int64_t length; /* bytes of complete records */
};

/* ---- the format ---- */

/* CRC-32C (Castagnoli), bit by bit: records are small and few. */
static uint32_t checksum(const void *bytes, size_t count)
{
    const uint8_t *byte = bytes;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < count; i++) {
        crc ^= byte[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78 & (0 - (crc & 1)));
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

static void add_little_endian(struct buf *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) buf_add_char(out, (char)(value >> (8 * i) & 0xff));
}

static void add_varint(struct buf *out, uint64_t value)
{
    while (value >= 0x80) {
        buf_add_char(out, (char)(value & 0x7f) | (char)0x80);
        value >>= 7;
    }
    buf_add_char(out, (char)value);
}

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void add_key(struct buf *out, int field, int type)
{
    buf_add_char(out, (char)(field << 3 | type));
}

static void add_bytes(struct buf *out, int field, const void *bytes, size_t count)
{
    add_key(out, field, BYTES);
    add_varint(out, count);
    buf_add(out, bytes, count);
}

static void add_double(struct buf *out, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(out, field, FIXED64);
    add_little_endian(out, bits, 8);
}

static void add_float(struct buf *out, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(out, field, FIXED32);
    add_little_endian(out, bits, 4);
}

static void add_record(struct buf *out, const struct buf *event)
{
    size_t start = out->length;
    add_little_endian(out, event->length, 8);
    add_little_endian(out, checksum(out->data + start, 8), 4);
    buf_add(out, event->data, event->length);
    add_little_endian(out, checksum(event->data, event->length), 4);
}

void tensorboard_add_version(struct buf *out, double wall_seconds)
{
    AUTO(buf_deinit) struct buf event = {0};
    add_double(&event, 1, wall_seconds);
    add_bytes(&event, 3, "brain.Event:2", 13);
    add_record(out, &event);
}

void tensorboard_add_scalars(struct buf *out, double wall_seconds, int64_t step,
                             const struct tensorboard_scalar *scalars, int count)
{
    AUTO(buf_deinit) struct buf event = {0}, summary = {0}, value = {0};
    add_double(&event, 1, wall_seconds);
    add_key(&event, 2, VARINT);
    add_varint(&event, (uint64_t)step);
    for (int i = 0; i < count; i++) {
        buf_clear(&value);
        add_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        add_float(&value, 2, (float)scalars[i].value);
        add_bytes(&summary, 1, value.data, value.length);
    }
    add_bytes(&event, 5, buf_text(&summary), summary.length);
    add_record(out, &event);
}

void tensorboard_add_text(struct buf *out, double wall_seconds, int64_t step, const char *tag,
                          const char *text)
{
    AUTO(buf_deinit) struct buf event = {0}, summary = {0}, value = {0}, part = {0}, inner = {0};
    add_bytes(&value, 1, tag, strlen(tag));
    add_bytes(&inner, 1, "text", 4); /* the plugin's name */
    add_bytes(&part, 1, inner.data, inner.length);
    add_bytes(&value, 9, part.data, part.length);
    buf_clear(&part);
    add_key(&part, 1, VARINT);
    add_varint(&part, 7 /* DT_STRING */);
    add_bytes(&part, 2, "", 0); /* the shape of a scalar */
    add_bytes(&part, 8, text, strlen(text));
    add_bytes(&value, 8, part.data, part.length);
    add_bytes(&summary, 1, value.data, value.length);
    add_double(&event, 1, wall_seconds);
    add_key(&event, 2, VARINT);
    add_varint(&event, (uint64_t)step);
    add_bytes(&event, 5, summary.data, summary.length);
    add_record(out, &event);
}

/* ---- what a job reports ---- */

enum { TAG_SIZE = 80 };

/* Of one of data.validation: "validation/NAME/loss". */
static const char *tag_of(const job_event *event, const char *tag, char text[TAG_SIZE])
{
    const char *set = metric_kind(event) == METRIC_VALIDATION ? event->validation->set : "";
    const char *slash = strchr(tag, '/');
    if (set[0] == '\0' || slash == NULL) return tag;
    snprintf(text, TAG_SIZE, "%.*s/%.40s%s", (int)(slash - tag), tag, set, slash);
    return text;
}

/* What an event has of the table; not a mean of nothing. `tags` holds the names made for it. */
static int take_scalars(const job_event *event, struct tensorboard_scalar *out,
                        char (*tags)[TAG_SIZE])
{
    int count = 0;
    double value;
    enum metric_event kind = metric_kind(event);
    for (size_t i = 0; kind != METRIC_EVENTS && i < metric_count(); i++) {
        const struct metric *metric = &metric_table[i];
        if (metric->tags[kind] == NULL || !metric_of_event(metric, event, &value) || isnan(value))
            continue;
        const char *tag = tag_of(event, metric->tags[kind], tags[count]);
        out[count++] = (struct tensorboard_scalar){tag, value};
    }
    return count;
}

static void add_samples(struct buf *out, double seconds, const Fsdpd__V1__JobSpec *spec,
                        const Fsdpd__V1__Sampled *sampled)
{
    for (size_t i = 0; i < sampled->n_sequences; i++) {
        char tag[TAG_SIZE];
        AUTO(buf_deinit) struct buf text = {0};
        snprintf(tag, sizeof tag, "sample/%zu", i);
        spec_add_sample(&text, spec, sampled, i);
        tensorboard_add_text(out, seconds, (int64_t)sampled->step, tag, buf_text(&text));
    }
}

/* ---- the file ---- */

static status_t append(struct tensorboard *file, const struct buf *records)
{
    const char *at = records->data;
    size_t left = records->length;
    while (left > 0) {
        ssize_t written = write(file->fd, at, left);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            status_t status = status_from_errno(written < 0 ? errno : ENOSPC, "%s", file->path);
            if (ftruncate(file->fd, file->length) != 0) {} /* no partial record, if possible */
            return status;
        }
        at += written;
        left -= (size_t)written;
    }
    file->length += (int64_t)records->length;
    return NULL;
}

static status_t open_file(const struct coordinator *c, const char *job, struct tensorboard *file)
{
    char host[HOST_NAME_SIZE];
    host_name(host);
    AUTO_FREE char *directory = coordinator_job_path(c, job, "tensorboard");
    status_t status = file_make_directory(directory, 0750);
    int64_t seconds = clock_wall_ms() / 1000;
    for (int i = 0; status == NULL && file->fd < 0 && i < 100; i++) { /* later names if taken */
        free(file->path);
        file->path =
            mem_printf("%s/events.out.tfevents.%lld.%s", directory, (long long)(seconds + i), host);
        file->fd = open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0640);
        if (file->fd < 0 && errno != EEXIST) status = status_from_errno(errno, "%s", file->path);
    }
    if (status != NULL || file->fd < 0) return status;
    AUTO(buf_deinit) struct buf version = {0};
    tensorboard_add_version(&version, (double)clock_wall_ms() / 1000.0);
    status = append(file, &version);
    return status;
}

static void give_up(struct tensorboard *file, status_t status)
{
    log_status(LOG_WARNING, "tensorboard_failed", status);
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

void tensorboard_record(struct tensorboard **own, const struct coordinator *c,
                        const job_message *job, const job_event *event)
{
    if (!job->spec->tensorboard) return;
    AUTO_FREE struct tensorboard_scalar *scalars = mem_alloc_array(metric_count(), sizeof *scalars);
    AUTO_FREE char(*tags)[TAG_SIZE] = mem_alloc_array(metric_count(), sizeof *tags);
    int count = take_scalars(event, scalars, tags);
    bool samples = event->event_case == FSDPD__V1__JOB_EVENT__EVENT_SAMPLED;
    if (count == 0 && !samples) return;
    struct tensorboard *file = *own;
    if (file == NULL) {
        *own = file = mem_alloc(sizeof *file);
        file->fd = -1;
        status_t status = open_file(c, job->id, file);
        if (status != NULL) give_up(file, status);
    }
    if (file->fd < 0) return;
    AUTO(buf_deinit) struct buf record = {0};
    double seconds = (double)message_time_ms(event->time) / 1000.0;
    if (samples) add_samples(&record, seconds, job->spec, event->sampled);
    else tensorboard_add_scalars(&record, seconds, (int64_t)metric_step(event), scalars, count);
    status_t status = append(file, &record);
    if (status != NULL) give_up(file, status);
}

void tensorboard_close(struct tensorboard *file)
{
    if (file == NULL) return;
    if (file->fd >= 0) close(file->fd);
    free(file->path);
    free(file);
}
