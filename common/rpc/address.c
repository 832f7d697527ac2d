/*
 * Addresses: what people write, its normal form, and the form that a gRPC channel wants. Pure, but
 * for rpc_address_probe, which finds out why an address could not be bound (gRPC only logs the
 * reason).
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "rpc/internal.h"

static status_t parse_unix(const char *address, const char *path, char **normal)
{
    if (strncmp(path, "//", 2) == 0) {
        /* unix:///path is the same as unix:/path; a host makes no sense. */
        path += 2;
        if (path[0] != '/')
            return status_new(STATUS_INVALID_ARGUMENT,
                              "address \"%s\": after unix:// an absolute path is expected",
                              address);
    }
    while (path[0] == '/' && path[1] == '/') path++; /* two would stand for a host again */
    if (path[0] == '\0')
        return status_new(STATUS_INVALID_ARGUMENT,
                          "address \"%s\" has no path after unix:", address);
    char *absolute;
    if (path[0] == '/') {
        absolute = mem_strdup(path);
    } else {
        char *directory = getcwd(NULL, 0);
        if (directory == NULL)
            return status_from_errno(errno, "address \"%s\": the current directory", address);
        absolute = file_path_join(directory, path);
        free(directory);
    }
    size_t longest = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    status_t status = NULL;
    if (strlen(absolute) > longest)
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "address \"%s\": the path of a Unix socket is at most %zu bytes long, "
                            "this one has %zu",
                            address, longest, strlen(absolute));
    else *normal = mem_printf("unix:%s", absolute);
    free(absolute);
    return status;
}

static bool host_is_plausible(const char *host, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)host[i]) && strchr("-._", host[i]) == NULL) return false;
    return length > 0;
}

static bool host_is_ipv6(const char *host, size_t length)
{
    struct in6_addr parsed;
    char *text = mem_strndup(host, length);
    bool valid = inet_pton(AF_INET6, text, &parsed) == 1;
    free(text);
    return valid;
}

status_t rpc_address_parse(const char *address, char **normal)
{
    if (strncmp(address, "unix:", 5) == 0) return parse_unix(address, address + 5, normal);
    if (address[0] == '/')
        return status_new(STATUS_INVALID_ARGUMENT,
                          "address \"%s\" has no kind: for a Unix socket write unix:%s", address,
                          address);
    const char *colon = strrchr(address, ':');
    if (colon == NULL || strstr(address, "://"))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "address \"%s\": expected unix:/path or host:port", address);
    size_t length = (size_t)(colon - address);
    if (length == 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "address \"%s\" has no host (0.0.0.0 stands for every interface)",
                          address);
    int64_t port;
    if (!isdigit((unsigned char)colon[1]) || !text_parse_i64(colon + 1, &port) || port > 65535)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "address \"%s\": the port must be a number from 0 to 65535, not \"%s\"",
                          address, colon + 1);
    bool valid;
    if (address[0] == '[')
        valid = address[length - 1] == ']' && host_is_ipv6(address + 1, length - 2);
    else if (memchr(address, ':', length))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "address \"%s\": an IPv6 address stands in brackets, as in [::1]:%d",
                          address, (int)port);
    else valid = host_is_plausible(address, length);
    if (!valid)
        return status_new(STATUS_INVALID_ARGUMENT, "address \"%s\": \"%.*s\" is no host", address,
                          (int)length, address);
    *normal = mem_printf("%.*s:%d", (int)length, address, (int)port);
    return STATUS_OKAY;
}

const char *rpc_address_unix_path(const char *normal)
{
    return strncmp(normal, "unix:", 5) == 0 ? normal + 5 : NULL;
}

void rpc_address_split(const char *normal, char **host, int *port)
{
    const char *colon = strrchr(normal, ':');
    *port = atoi(colon + 1);
    if (normal[0] == '[') *host = mem_strndup(normal + 1, (size_t)(colon - normal) - 2);
    else *host = mem_strndup(normal, (size_t)(colon - normal));
}

char *rpc_address_target(const char *normal)
{
    /* A target is a URI: what a path may hold beyond its plain characters is percent-encoded. */
    struct buf target = {0};
    const char *path = rpc_address_unix_path(normal);
    const char *rest = normal;
    if (path) {
        buf_add_text(&target, "unix:");
        rest = path;
    } else {
        struct in_addr parsed;
        char *host;
        int port;
        rpc_address_split(normal, &host, &port);
        /* Literal addresses need no resolver. */
        if (normal[0] == '[') buf_add_text(&target, "ipv6:");
        else if (inet_pton(AF_INET, host, &parsed) == 1) buf_add_text(&target, "ipv4:");
        else buf_add_text(&target, "dns:///");
        free(host);
    }
    for (const char *c = rest; *c; c++) {
        if (isalnum((unsigned char)*c) || strchr("-._~/:", *c)) buf_add_char(&target, *c);
        else buf_printf(&target, "%%%02X", (unsigned char)*c);
    }
    return buf_take(&target);
}

static int try_bind(int family, const struct sockaddr *address, socklen_t length)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    int error = bind(fd, address, length) < 0 || listen(fd, 1) < 0 ? errno : 0;
    close(fd);
    return error;
}

int rpc_address_probe(const char *normal)
{
    const char *path = rpc_address_unix_path(normal);
    if (path) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        memcpy(address.sun_path, path, strlen(path));
        int error = try_bind(AF_UNIX, (struct sockaddr *)&address, sizeof address);
        if (error == 0) unlink(path);
        return error;
    }
    char *host;
    int port;
    rpc_address_split(normal, &host, &port);
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int error = getaddrinfo(host, service, &hints, &list) == 0 ? 0 : EADDRNOTAVAIL;
    for (struct addrinfo *i = list; i && error == 0; i = i->ai_next)
        error = try_bind(i->ai_family, i->ai_addr, i->ai_addrlen);
    if (list) freeaddrinfo(list);
    free(host);
    return error;
}
