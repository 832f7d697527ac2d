/*
 * Entries of the journal; see journal.h. The protocol is a line "KEY=value" per field, or, for
 * values with line ends, the key, a 64-bit little-endian length and the bytes.
 */
#include "base/journal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

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
