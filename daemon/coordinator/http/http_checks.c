/* Checks of headers; see http_checks.h. Pure. */
#include "coordinator/http/http_checks.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

enum { HOST_MAX = 255, SECRET_MAX = 128, HTTPS_PORT = 443, HTTP_PORT = 80 };

/* The length of the name or address at the beginning of a Host; 0: there is none. */
static size_t name_length(const char *host)
{
    if (host[0] != '[')
        return strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                            "0123456789.-_");
    size_t digits = strspn(host + 1, "0123456789abcdefABCDEF:.");
    return digits > 0 && host[1 + digits] == ']' ? digits + 2 : 0;
}

static bool is_name(const char *host, size_t length, const char *name)
{
    return strlen(name) == length && strncasecmp(host, name, length) == 0;
}

/* 127.0.0.0/8 in decimal, [::1] or localhost. */
static bool is_loopback(const char *host, size_t length)
{
    if (is_name(host, length, "localhost") || is_name(host, length, "[::1]")) return true;
    if (length < strlen("127.0.0.1") || strncmp(host, "127.", 4) != 0) return false;
    int dots = 0;
    for (size_t i = 0; i < length; i++) {
        bool dot = host[i] == '.';
        if (!dot && !isdigit((unsigned char)host[i])) return false;
        if (dot && (i + 1 == length || host[i + 1] == '.')) return false;
        dots += dot;
    }
    return dots == 3;
}

bool http_host_is_ours(const char *host, bool tls, int port)
{
    size_t length = name_length(host);
    if (length == 0 || length > HOST_MAX) return false;
    if (!tls && !is_loopback(host, length)) return false;
    if (host[length] == '\0') return port == (tls ? HTTPS_PORT : HTTP_PORT);
    size_t digits = host[length] == ':' ? strspn(host + length + 1, "0123456789") : 0;
    if (digits == 0 || digits > 5 || host[length + 1 + digits] != '\0') return false;
    return atoi(host + length + 1) == port;
}

bool http_origin_is_ours(const char *origin, const char *host, bool tls)
{
    const char *scheme = tls ? "https://" : "http://";
    size_t length = strlen(scheme);
    return strncasecmp(origin, scheme, length) == 0 && strcasecmp(origin + length, host) == 0;
}

const char *http_bearer(const char *authorization)
{
    static const char scheme[] = "Bearer ";
    size_t length = strlen(scheme);
    if (strncasecmp(authorization, scheme, length) != 0) return NULL;
    const char *secret = authorization + length;
    while (*secret == ' ') secret++;
    size_t size = strlen(secret);
    return size > 0 && size <= SECRET_MAX && strcspn(secret, " \t") == size ? secret : NULL;
}

bool http_type_is_json(const char *type)
{
    static const char json[] = "application/json";
    size_t length = strlen(json);
    if (strncasecmp(type, json, length) != 0) return false;
    return type[length] == '\0' || type[length] == ';' || type[length] == ' ';
}

bool http_path_matches(const char *route, const char *path, char **part)
{
    const char *star = strchr(route, '*');
    if (star == NULL) return strcmp(route, path) == 0;
    size_t before = (size_t)(star - route);
    if (strncmp(route, path, before) != 0) return false;
    size_t length = strcspn(path + before, "/");
    if (length == 0 || strcmp(star + 1, path + before + length) != 0) return false;
    *part = mem_strndup(path + before, length);
    return true;
}

bool http_allows(const char *methods, const char *method)
{
    size_t length = strlen(method);
    for (const char *at = methods; length > 0 && *at != '\0';) {
        size_t word = strcspn(at, ", ");
        if (word == length && strncmp(at, method, length) == 0) return true;
        at += word + strspn(at + word, ", ");
    }
    return false;
}
