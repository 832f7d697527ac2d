/* To whom notices go; see notice_targets.h. */
#include "coordinator/monitor/notice_targets.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "digest/digest.h"

enum { SECRET_MAX = 4096, KEY_MIN = 24, KEY_MAX = 64 };

status_t notice_key_parse(const char *secret, unsigned char **key, size_t *size)
{
    static const char prefix[] = "whsec_";
    *key = strncmp(secret, prefix, strlen(prefix)) == 0
               ? base64_decode(secret + strlen(prefix), size)
               : NULL;
    if (*key != NULL && *size >= KEY_MIN && *size <= KEY_MAX) return NULL;
    free(*key);
    *key = NULL;
    /* What was found is a secret, or was meant to be one. */
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected whsec_ and base64 of %d to %d bytes, as Standard Webhooks has it",
                      KEY_MIN, KEY_MAX);
}

static status_t read_key(const char *path, struct notice_target *target)
{
    AUTO(buf_deinit) struct buf text = {0};
    TRY(file_check_private(path, "secret"));
    TRY(file_read_regular(path, SECRET_MAX, &text));
    AUTO_FREE char *secret = buf_take(&text);
    secret[strcspn(secret, "\r\n")] = '\0';
    return status_wrap(notice_key_parse(secret, &target->key, &target->key_size), "%s", path);
}

static char *copy(const char *text)
{
    return text != NULL ? mem_strdup(text) : NULL;
}

static status_t read_target(const struct notice_setting *setting, struct notice_target *target)
{
    *target = (struct notice_target){.name = copy(setting->name),
                                     .url = copy(setting->url),
                                     .ca_file = copy(setting->ca_file)};
    if (setting->command == NULL) return read_key(setting->secret_file, target);
    size_t count = 0;
    while (setting->command[count] != NULL) count++;
    target->command = mem_alloc_array(count + 1, sizeof *target->command);
    for (size_t i = 0; i < count; i++) target->command[i] = mem_strdup(setting->command[i]);
    return NULL;
}

status_t notice_targets_read(const struct coordinator_options *options,
                             struct notice_targets *targets)
{
    *targets = (struct notice_targets){0};
    targets->items = mem_alloc_array((size_t)options->notify_count + 1, sizeof *targets->items);
    for (int i = 0; i < options->notify_count; i++)
        TRY(status_wrap(read_target(&options->notify[i], &targets->items[targets->count++]),
                        "notify.%s.secret_file", options->notify[i].name));
    return NULL;
}

void notice_targets_deinit(struct notice_targets *targets)
{
    for (int i = 0; i < targets->count; i++) {
        struct notice_target *target = &targets->items[i];
        for (char **word = target->command; word != NULL && *word != NULL; word++) free(*word);
        free(target->command);
        free(target->name);
        free(target->url);
        free(target->ca_file);
        free(target->key);
    }
    free(targets->items);
    *targets = (struct notice_targets){0};
}

const struct notice_target *notice_targets_find(const struct notice_targets *targets,
                                                const char *name)
{
    for (int i = 0; i < targets->count; i++)
        if (strcmp(targets->items[i].name, name) == 0) return &targets->items[i];
    return NULL;
}

char *notice_signature(const struct notice_target *target, const char *id, int64_t seconds,
                       const char *payload)
{
    struct digest digest;
    AUTO_FREE char *text = mem_printf("%s.%" PRId64 ".%s", id, seconds, payload);
    digest_hmac(target->key, target->key_size, text, strlen(text), &digest);
    AUTO_FREE char *encoded = base64_encode(digest.bytes, DIGEST_BYTES);
    return mem_printf("v1,%s", encoded);
}

/* A line of curl's configuration. */
static void add_line(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "%s = \"", name);
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') buf_add_char(out, '\\');
        if (*c == '\n') buf_add_text(out, "\\n");
        else buf_add_char(out, *c);
    }
    buf_add_text(out, "\"\n");
}

void notice_request(const struct notice_target *target, const char *id, int64_t seconds,
                    const char *payload, int deadline_ms, struct buf *out)
{
    AUTO_FREE char *signature = notice_signature(target, id, seconds, payload);
    AUTO_FREE char *named = mem_printf("webhook-id: %s", id);
    AUTO_FREE char *timed = mem_printf("webhook-timestamp: %" PRId64, seconds);
    AUTO_FREE char *signed_with = mem_printf("webhook-signature: %s", signature);
    AUTO_FREE char *limit = mem_printf("%.3f", deadline_ms / 1000.0);
    add_line(out, "url", target->url);
    add_line(out, "proto", "=https");
    if (target->ca_file != NULL) add_line(out, "cacert", target->ca_file);
    add_line(out, "max-time", limit);
    add_line(out, "header", "Content-Type: application/json");
    add_line(out, "header", named);
    add_line(out, "header", timed);
    add_line(out, "header", signed_with);
    add_line(out, "data-raw", payload);
}
