/* Logs; see log.h. */
#include "base/log.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"

static atomic_int minimum_level = LOG_INFO;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static char context_fields[256];
static pthread_mutex_t tap_lock = PTHREAD_MUTEX_INITIALIZER;
static log_tap *tap_function;
static void *tap_user;
static atomic_int journal = -1; /* a socket; -1: lines go to stderr */

void log_set_level(enum log_level level)
{
    atomic_store(&minimum_level, level);
}

void log_use_journal(const char *path)
{
    if (path == NULL && !journal_has_stderr()) return;
    int fd = journal_open(path != NULL ? path : "/run/systemd/journal/socket");
    int old = atomic_exchange(&journal, fd);
    if (old >= 0) close(old);
}

static bool send_to_journal(enum log_level level, const char *event, const char *fields)
{
    static const int priorities[] = {7, 6, 4, 3};
    int fd = atomic_load(&journal);
    if (fd < 0) return false;
    AUTO(buf_deinit) struct buf entry = {0};
    journal_format(&entry, priorities[level], event, fields);
    return send(fd, entry.data, entry.length, MSG_NOSIGNAL) == (ssize_t)entry.length;
}

void log_set_context(const char *fields)
{
    pthread_mutex_lock(&context_lock);
    snprintf(context_fields, sizeof context_fields, "%s", fields);
    pthread_mutex_unlock(&context_lock);
}

void log_set_tap(log_tap *tap, void *user)
{
    pthread_mutex_lock(&tap_lock);
    tap_function = tap;
    tap_user = user;
    pthread_mutex_unlock(&tap_lock);
}

static void call_tap(enum log_level level, const char *event, const char *fields)
{
    pthread_mutex_lock(&tap_lock);
    if (tap_function != NULL) tap_function(tap_user, level, event, fields);
    pthread_mutex_unlock(&tap_lock);
}

const char *log_level_name(enum log_level level)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    return names[level];
}

char *log_quote(const char *text)
{
    bool plain = text[0] != '\0';
    struct buf quoted = {0};
    buf_add_char(&quoted, '"');
    for (int length; *text != '\0'; text += length) {
        uint32_t character = 0;
        int valid = utf8_decode(text, &character);
        bool hidden = valid == 0 || utf8_is_control(character);
        length = valid > 0 ? valid : 1;
        if (hidden || strchr(" \"=\\", *text) != NULL) plain = false;
        if (*text == '"' || *text == '\\') buf_printf(&quoted, "\\%c", *text);
        else if (*text == '\n') buf_add_text(&quoted, "\\n");
        else if (!hidden) buf_add(&quoted, text, (size_t)length);
        else
            for (int i = 0; i < length; i++) buf_printf(&quoted, "\\x%02x", (unsigned char)text[i]);
    }
    buf_add_char(&quoted, '"');
    char *result = plain ? mem_strndup(quoted.data + 1, quoted.length - 2) : NULL;
    if (result == NULL) return buf_take(&quoted);
    buf_deinit(&quoted);
    return result;
}

void log_event(enum log_level level, const char *event, const char *format, ...)
{
    if ((int)level < atomic_load(&minimum_level)) return;
    AUTO(buf_deinit) struct buf fields = {0};
    pthread_mutex_lock(&context_lock);
    buf_add_text(&fields, context_fields);
    pthread_mutex_unlock(&context_lock);
    va_list args;
    va_start(args, format);
    AUTO_FREE char *own = NULL;
    if (vasprintf(&own, format, args) >= 0 && own[0])
        buf_printf(&fields, "%s%s", fields.length > 0 ? " " : "", own);
    va_end(args);
    call_tap(level, event, own != NULL ? own : "");
    if (!send_to_journal(level, event, buf_text(&fields))) {
        char when[32];
        AUTO(buf_deinit) struct buf line = {0};
        buf_printf(&line, "%s %s %s%s%s\n", clock_format_wall(clock_wall_ms(), when),
                   log_level_name(level), event, fields.length > 0 ? " " : "", buf_text(&fields));
        ssize_t written = write(STDERR_FILENO, line.data, line.length);
        (void)written; /* nowhere left to report it */
    }
}

void log_status(enum log_level level, const char *event, status_t status)
{
    if (status == NULL) return;
    AUTO_FREE char *message = log_quote(status_message(status));
    log_event(level, event, "code=%s message=%s", status_code_name(status_code(status)), message);
    status_free(status);
}

/* ---- journal ---- */

bool journal_has_stderr(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat info;
    if (stream == NULL || sscanf(stream, "%llu:%llu", &device, &inode) != 2) return false;
    return fstat(STDERR_FILENO, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

int journal_open(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void add_field(struct buf *out, const char *key, const char *value, size_t length)
{
    buf_add_text(out, key);
    if (memchr(value, '\n', length) == NULL) {
        buf_add_char(out, '=');
    } else {
        buf_add_char(out, '\n');
        for (int i = 0; i < 8; i++)
            buf_add_char(out, (char)((unsigned long long)length >> (8 * i) & 0xff));
    }
    buf_add(out, value, length);
    buf_add_char(out, '\n');
}

/* Reverses log_quote for one value; returns what follows it. */
static const char *read_value(const char *at, struct buf *value)
{
    if (*at != '"') {
        size_t length = strcspn(at, " ");
        buf_add(value, at, length);
        return at + length;
    }
    for (at++; *at != '\0' && *at != '"'; at++) {
        unsigned byte;
        if (*at != '\\' || at[1] == '\0') {
            buf_add_char(value, *at);
        } else if (*++at == 'n') {
            buf_add_char(value, '\n');
        } else if (*at == 'x' && sscanf(at + 1, "%2x", &byte) == 1) {
            buf_add_char(value, (char)byte);
            at += 2;
        } else {
            buf_add_char(value, *at);
        }
    }
    return *at == '"' ? at + 1 : at;
}

void journal_format(struct buf *out, int priority, const char *event, const char *fields)
{
    AUTO(buf_deinit) struct buf message = {0}, key = {0}, value = {0};
    buf_printf(&message, "%s%s%s", event, fields[0] ? " " : "", fields);
    add_field(out, "MESSAGE", message.data, message.length);
    buf_printf(out, "PRIORITY=%d\nSYSLOG_IDENTIFIER=fsdpd\nFSDPD_EVENT=%s\n", priority, event);
    for (const char *at = fields; *at != '\0'; at += strspn(at, " ")) {
        size_t length = strcspn(at, "= ");
        if (at[length] != '=' || length == 0 || length > 50) {
            at += length + (at[length] == '='); /* no field */
            continue;
        }
        buf_clear(&key);
        buf_clear(&value);
        buf_add_text(&key, "FSDPD_");
        for (size_t i = 0; i < length; i++)
            buf_add_char(&key,
                         isalnum((unsigned char)at[i]) ? (char)toupper((unsigned char)at[i]) : '_');
        at = read_value(at + length + 1, &value);
        add_field(out, buf_text(&key), buf_text(&value), value.length);
    }
}
