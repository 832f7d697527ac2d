/* Processes of a previous coordinator; see adopted.h. */
#include "coordinator/workers/adopted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

enum { FILE_MAX = 1 << 20 };

int64_t process_started(int64_t pid)
{
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    /* The second field, the program's name, may contain anything: count from its end. */
    char *rest = strrchr(text, ')');
    char state = rest != NULL && strlen(rest) > 2 ? rest[2] : 'Z';
    if (state == 'Z' || state == 'X') return 0;
    long long started = 0;
    sscanf(rest + 2,
           "%*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld",
           &started);
    return started;
}

static char *records_path(const struct coordinator *c)
{
    return file_path_join(c->options.runtime_dir, "workers");
}

status_t records_write(const struct coordinator *c, const struct process_record *records, int count)
{
    AUTO(buf_deinit) struct buf text = {0};
    for (int i = 0; i < count; i++)
        buf_printf(&text, "%lld %lld %s\n", (long long)records[i].pid,
                   (long long)records[i].started, records[i].id);
    AUTO_FREE char *path = records_path(c);
    return file_write_atomic(path, buf_text(&text), text.length, 0640);
}

/* "<pid> <started> <id>" */
static bool parse_record(char *line, struct process_record *record)
{
    char *rest = line;
    const char *pid = strsep(&rest, " "), *started = strsep(&rest, " ");
    record->id = rest;
    return rest != NULL && rest[0] != '\0' && text_parse_i64(pid, &record->pid) &&
           record->pid > 1 && text_parse_i64(started, &record->started);
}

status_t records_read(const struct coordinator *c, char **list)
{
    AUTO_FREE char *path = records_path(c);
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = file_read(path, FILE_MAX, &text);
    if (status_code(status) == STATUS_NOT_FOUND) {
        status_free(status);
        status = NULL;
    }
    TRY(status_wrap(status, "which local workers still run"));
    *list = mem_strdup(buf_text(&text));
    return NULL;
}

void records_each(const char *list, void (*visit)(void *user, const struct process_record *record),
                  void *user)
{
    char *copy = mem_strdup(list), *rest = copy;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        struct process_record record;
        if (parse_record(line, &record) && process_started(record.pid) == record.started)
            visit(user, &record);
    }
    free(copy);
}

struct adopted {
    uv_poll_t poll;
    struct coordinator *c;
    int64_t pid;
    int fd;
    void (*ended)(void *user);
    void *user;
    void (*closed)(struct coordinator *c);
};

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct adopted *adopted = poll->data;
    uv_poll_stop(poll);
    adopted->ended(adopted->user);
}

struct adopted *adopted_new(struct coordinator *c, int64_t pid, void (*ended)(void *user),
                            void *user)
{
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    if (fd < 0) return NULL;
    struct adopted *adopted = mem_alloc(sizeof *adopted);
    *adopted = (struct adopted){.c = c, .pid = pid, .fd = fd, .ended = ended, .user = user};
    if (uv_poll_init(c->loop, &adopted->poll, fd) != 0) {
        close(fd);
        free(adopted);
        return NULL;
    }
    adopted->poll.data = adopted;
    uv_poll_start(&adopted->poll, UV_READABLE, on_readable);
    return adopted;
}

int64_t adopted_pid(const struct adopted *adopted)
{
    return adopted->pid;
}

void adopted_kill(const struct adopted *adopted, int number)
{
    syscall(SYS_pidfd_send_signal, adopted->fd, number, NULL, 0);
}

static void on_closed(uv_handle_t *handle)
{
    struct adopted *adopted = handle->data;
    struct coordinator *c = adopted->c;
    void (*closed)(struct coordinator * c) = adopted->closed;
    close(adopted->fd);
    free(adopted);
    closed(c);
}

void adopted_free(struct adopted *adopted, void (*closed)(struct coordinator *c))
{
    adopted->closed = closed;
    uv_close((uv_handle_t *)&adopted->poll, on_closed);
}
