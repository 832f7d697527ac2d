/*
 * Addresses: what people write, its normal form, and the form that a gRPC channel expects. Pure,
 * except rpc_address_listen, which binds one.
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
#include "rpc/address.h"

static status_t parse_unix(const char *address, const char *path, char **normal)
{
    if (strncmp(path, "//", 2) == 0) {
        /* unix:///path equals unix:/path; a host is invalid here. */
        path += 2;
        if (path[0] != '/')
            return status_new(STATUS_INVALID_ARGUMENT,
                              "address \"%s\": expected an absolute path after unix://", address);
    }
    while (path[0] == '/' && path[1] == '/') path++; /* two slashes would again introduce a host */
    if (path[0] == '\0')
        return status_new(STATUS_INVALID_ARGUMENT,
                          "address \"%s\" has no path after unix:", address);
    AUTO_FREE char *absolute = NULL;
    if (path[0] == '/') {
        absolute = mem_strdup(path);
    } else {
        AUTO_FREE char *directory = getcwd(NULL, 0);
        if (directory == NULL)
            return status_from_errno(errno, "address \"%s\": the current directory", address);
        absolute = file_path_join(directory, path);
    }
    size_t longest = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    status_t status = NULL;
    if (strlen(absolute) > longest)
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "address \"%s\": the path of a Unix socket may have at most %zu "
                            "bytes; this one has %zu",
                            address, longest, strlen(absolute));
    else *normal = mem_printf("unix:%s", absolute);
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
    AUTO_FREE char *text = mem_strndup(host, length);
    return inet_pton(AF_INET6, text, &parsed) == 1;
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
                          "address \"%s\" has no host (0.0.0.0 means every interface)", address);
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
                          "address \"%s\": an IPv6 address needs brackets, as in [::1]:%d", address,
                          (int)port);
    else valid = host_is_plausible(address, length);
    if (!valid)
        return status_new(STATUS_INVALID_ARGUMENT, "address \"%s\": \"%.*s\" is not a valid host",
                          address, (int)length, address);
    *normal = mem_printf("%.*s:%d", (int)length, address, (int)port);
    return NULL;
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
    /* A target is a URI: every character of the path except plain ones is percent-encoded. */
    struct buf target = {0};
    const char *path = rpc_address_unix_path(normal);
    const char *rest = normal;
    if (path) {
        buf_add_text(&target, "unix:");
        rest = path;
    } else {
        struct in_addr parsed;
        AUTO_FREE char *host = NULL;
        int port;
        rpc_address_split(normal, &host, &port);
        /* Literal addresses need no resolver. */
        if (normal[0] == '[') buf_add_text(&target, "ipv6:");
        else if (inet_pton(AF_INET, host, &parsed) == 1) buf_add_text(&target, "ipv4:");
        else buf_add_text(&target, "dns:///");
    }
    for (const char *c = rest; *c; c++) {
        if (isalnum((unsigned char)*c) || strchr("-._~/:", *c)) buf_add_char(&target, *c);
        else buf_printf(&target, "%%%02X", (unsigned char)*c);
    }
    return buf_take(&target);
}

/* Opens, binds and listens; returns 0 or the errno. */
static int open_listener(const struct addrinfo *info, int *fd_out)
{
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const struct sockaddr_in6 *v6 = (const void *)info->ai_addr;
    /* [::] includes all IPv4 addresses; any other IPv6 address is only itself. */
    if (info->ai_family == AF_INET6 && !IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, info->ai_addr, info->ai_addrlen) < 0 || listen(fd, RPC_BACKLOG) < 0) {
        int error = errno;
        close(fd);
        return error;
    }
    *fd_out = fd;
    return 0;
}

/* The port of an IPv4 or IPv6 socket address. */
static in_port_t *port_of(struct sockaddr *address)
{
    if (address->sa_family == AF_INET6) return &((struct sockaddr_in6 *)(void *)address)->sin6_port;
    return &((struct sockaddr_in *)(void *)address)->sin_port;
}

static int listen_at_all(struct addrinfo *list, int *fds, int most, int *count)
{
    in_port_t port = 0; /* port of the first socket, for the others: 0 let the kernel pick it */
    int error = EADDRNOTAVAIL;
    for (struct addrinfo *i = list; i != NULL && *count < most; i = i->ai_next) {
        if (i->ai_family != AF_INET && i->ai_family != AF_INET6) continue;
        if (*count > 0) *port_of(i->ai_addr) = port;
        int failed = open_listener(i, &fds[*count]);
        if (failed == EADDRINUSE || failed == EACCES) return failed;
        if (failed != 0) {
            error = failed;
            continue;
        }
        struct sockaddr_storage bound;
        socklen_t size = sizeof bound;
        if (getsockname(fds[(*count)++], (struct sockaddr *)&bound, &size) != 0) return errno;
        port = *port_of((struct sockaddr *)&bound);
    }
    return *count > 0 ? 0 : error;
}

status_t rpc_address_listen(const char *normal, int *fds, int most, int *count, int *port)
{
    AUTO_FREE char *host = NULL;
    int wanted;
    rpc_address_split(normal, &host, &wanted);
    char service[8];
    snprintf(service, sizeof service, "%d", wanted);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int unknown = getaddrinfo(host, service, &hints, &list);
    *count = 0;
    int error = unknown == 0 ? listen_at_all(list, fds, most, count) : 0;
    if (list != NULL) freeaddrinfo(list);
    if (unknown != 0 || error != 0) {
        while (*count > 0) close(fds[--*count]);
        return status_new(STATUS_UNAVAILABLE, "cannot listen on %s: %s", normal,
                          unknown != 0 ? gai_strerror(unknown) : strerror(error));
    }
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    if (port != NULL && getsockname(fds[0], (struct sockaddr *)&bound, &size) == 0)
        *port = ntohs(*port_of((struct sockaddr *)&bound));
    return NULL;
}
