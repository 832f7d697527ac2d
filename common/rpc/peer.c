/* Identities of peers; see peer.h. Sources: sockets, gRPC calls, URIs in certificates. */
#include "rpc/peer.h"

#include <ctype.h>
#include <errno.h>
#include <grpc/grpc_security.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "rpc/peer_internal.h"

enum {
    NAME_MAX_LENGTH = 64,
    GROUPS_MAX = 65536,
    ENTRY_MAX = 4 << 20, /* bytes for a user's entry in the system database */
};

char *rpc_roles_text(unsigned roles, const char *joint)
{
    static const char *const names[] = {"user", "operator", "worker", "observer"};
    struct buf text = {0};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if ((roles & (1u << i)) == 0) continue;
        if (text.length > 0) buf_printf(&text, " %s ", joint);
        buf_add_text(&text, names[i]);
    }
    if (text.length == 0) buf_add_text(&text, "no role");
    return buf_take(&text);
}

unsigned rpc_peer_parse_uri(const char *uri, const char **name)
{
    static const struct {
        const char *prefix;
        unsigned roles;
    } kinds[] = {
        {"fsdpd://user/", RPC_USER},
        {"fsdpd://operator/", RPC_USER | RPC_OPERATOR},
        {"fsdpd://worker/", RPC_WORKER},
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        size_t length = strlen(kinds[i].prefix);
        if (strncmp(uri, kinds[i].prefix, length) != 0) continue;
        const char *rest = uri + length;
        if (!isalnum((unsigned char)rest[0]) && rest[0] != '_') return 0;
        size_t count = 0;
        for (; rest[count] != '\0'; count++)
            if (!isalnum((unsigned char)rest[count]) && strchr("._-@", rest[count]) == NULL)
                return 0;
        if (count > NAME_MAX_LENGTH) return 0;
        *name = rest;
        return kinds[i].roles;
    }
    return 0;
}

/* Whether the connecting process was in the group, by its own group list: no lookup that can
 * hang. */
static bool peer_is_in_group(int fd, gid_t primary, gid_t group)
{
    if (primary == group) return true;
    gid_t few[64];
    gid_t *groups = few;
    socklen_t size = sizeof few;
    int error = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, few, &size) == 0 ? 0 : errno;
    if (error == ERANGE && size <= GROUPS_MAX * sizeof *groups) {
        groups = mem_alloc(size);
        error = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) == 0 ? 0 : errno;
    }
    bool found = false;
    for (size_t i = 0; error == 0 && i < size / sizeof *groups; i++) found |= groups[i] == group;
    if (groups != few) free(groups);
    return found;
}

/* Results of getpwuid_r for an unknown user, besides 0. */
static bool is_unknown(int error)
{
    return error == ENOENT || error == ESRCH || error == EBADF || error == EPERM;
}

char *rpc_peer_unix_name(uid_t uid)
{
    char *space = NULL, *name = NULL;
    struct passwd entry, *found = NULL;
    int error = ERANGE;
    for (size_t size = 4096; error == ERANGE && size <= ENTRY_MAX; size *= 4) {
        free(space);
        space = mem_alloc(size);
        do error = getpwuid_r(uid, &entry, space, size, &found);
        while (error == EINTR);
    }
    if (error == 0 && found != NULL && found->pw_name[0] != '\0') name = mem_strdup(found->pw_name);
    else if (error == 0 || is_unknown(error)) name = mem_printf("uid:%lu", (unsigned long)uid);
    else
        log_status(LOG_WARNING, "connection_refused",
                   status_from_errno(error, "cannot look up the user %lu", (unsigned long)uid));
    free(space);
    return name;
}

bool rpc_peer_of_socket(int fd, const struct rpc_operators *operators, struct rpc_peer *peer)
{
    int family = 0;
    socklen_t size = sizeof family;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) return false;
    *peer = (struct rpc_peer){.kind = RPC_PEER_INSECURE,
                              .name = "anonymous",
                              .uid = (uid_t)-1,
                              .roles = RPC_ANY_ROLE};
    if (family != AF_UNIX) return true;
    struct ucred credentials;
    size = sizeof credentials;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
    peer->kind = RPC_PEER_UNIX;
    peer->name = NULL;
    peer->uid = credentials.uid;
    peer->roles = RPC_USER;
    if (credentials.uid == 0 || credentials.uid == geteuid()) peer->roles = RPC_ANY_ROLE;
    else if (operators->known && peer_is_in_group(fd, credentials.gid, operators->group))
        peer->roles |= RPC_OPERATOR;
    return true;
}

char *rpc_peer_of_call(grpc_call *call, struct rpc_peer *peer)
{
    *peer = (struct rpc_peer){.kind = RPC_PEER_TLS, .name = "", .uid = (uid_t)-1};
    grpc_auth_context *context = grpc_call_auth_context(call);
    if (context == NULL) return NULL;
    char *own = NULL;
    bool contradicts = false;
    grpc_auth_property_iterator uris =
        grpc_auth_context_find_properties_by_name(context, "peer_uri");
    for (const grpc_auth_property *uri; (uri = grpc_auth_property_iterator_next(&uris)) != NULL;) {
        AUTO_FREE char *text = mem_strndup(uri->value, uri->value_length);
        const char *name = "";
        unsigned roles = strlen(text) == uri->value_length ? rpc_peer_parse_uri(text, &name) : 0;
        peer->roles |= roles;
        if (roles != 0 && own == NULL) own = mem_strdup(name);
        else if (roles != 0 && strcmp(own, name) != 0) contradicts = true;
    }
    grpc_auth_context_release(context);
    if (contradicts) peer->roles = 0; /* one certificate, one name */
    if (own != NULL) peer->name = own;
    return own;
}
