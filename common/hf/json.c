/*
 * JSON as Python reads and writes it; see json.h. Its json.loads takes NaN, Infinity and numbers of
 * any size, which jansson does not: they are texts with a mark of their own while jansson has them.
 */
#include "hf/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

static const char mark[] = "\001number ";
static const char written[] = "\"\\u0001number "; /* as jansson writes it */
static const char *const words[] = {"NaN", "Infinity", "-Infinity"};

/* The length of a word or a number that starts here and that jansson does not take; 0: none does. */
static size_t foreign_length(const char *at)
{
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0) return strlen(words[i]);
    size_t length = strspn(at, "-+.eE0123456789");
    if (length == 0 || (*at != '-' && (*at < '0' || *at > '9'))) return 0;
    if (strspn(at, "-0123456789") == length) {
        errno = 0;
        strtoll(at, NULL, 10);
        return errno == ERANGE ? length : 0;
    }
    return isinf(strtod(at, NULL)) ? length : 0;
}

static void mark_foreign(const char *text, size_t length, struct buf *out)
{
    char *copy = mem_strndup(text, length);
    bool inside = false;
    for (const char *at = copy; at < copy + length;) {
        size_t foreign = inside ? 0 : foreign_length(at);
        if (foreign > 0) {
            buf_printf(out, "%s%.*s\"", written, (int)foreign, at);
            at += foreign;
            continue;
        }
        size_t plain = inside ? 1 : strspn(at, "-+.eE0123456789");
        if (inside && *at == '\\') plain = 2;
        if (*at == '"') inside = !inside;
        if (plain == 0) plain = 1;
        if (plain > (size_t)(copy + length - at)) plain = (size_t)(copy + length - at);
        buf_add(out, at, plain);
        at += plain;
    }
    free(copy);
}

status_t hf_json_load(const char *text, size_t length, size_t most, const char *file, json_t **root)
{
    if (length > most)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %zu bytes, at most %zu are possible", file,
                          length, most);
    AUTO(buf_deinit) struct buf marked = {0};
    json_error_t error;
    if (memchr(text, '\0', length) == NULL) mark_foreign(text, length, &marked);
    else buf_add(&marked, text, length);
    *root = json_loadb(buf_text(&marked), marked.length, JSON_REJECT_DUPLICATES, &error);
    if (*root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s:%d: not JSON: %s", file, error.line,
                          error.text);
    if (json_is_object(*root)) return NULL;
    json_decref(*root);
    return status_new(STATUS_INVALID_ARGUMENT, "%s: expected a JSON object", file);
}

bool hf_json_is_foreign(const json_t *value)
{
    const char *text = json_string_value(value);
    return text != NULL && strncmp(text, mark, strlen(mark)) == 0;
}

char *hf_json_write(const json_t *value, size_t flags)
{
    AUTO_FREE char *text = json_dumps(value, flags);
    struct buf out = {0};
    const char *at = text, *found;
    while ((found = strstr(at, written)) != NULL) {
        const char *number = found + strlen(written);
        size_t length = foreign_length(number);
        bool whole = length > 0 && number[length] == '"';
        buf_add(&out, at, (size_t)((whole ? found : number) - at));
        if (whole) buf_add(&out, number, length);
        at = whole ? number + length + 1 : number;
    }
    buf_add_text(&out, at);
    return buf_take(&out);
}

json_t *hf_json_inside(json_t *root, const char *name)
{
    json_t *object = name != NULL ? json_object_get(root, name) : NULL;
    return json_is_object(object) ? object : root;
}
