/*
 * What a request's headers must say before a listener with identities serves it. Pure, and fuzzed.
 *
 * A browser sends requests for any page that it shows. So a request must name this host (a page
 * that has another name resolve to our address does not) and must not come from a page of another
 * origin. There are no cookies: only a token, which a page cannot know, identifies a client.
 */
#ifndef FSDPD_COORDINATOR_HTTP_CHECKS_H
#define FSDPD_COORDINATOR_HTTP_CHECKS_H

#include <stdbool.h>

/*
 * Whether a Host header names a listener at `port`: a name or an address, and that port, which may
 * be missing with TLS (443). Without TLS, listeners are at the loopback interface, so the name is
 * localhost or an address of it; with TLS the client has compared it with the certificate.
 */
bool http_host_is_ours(const char *host, bool tls, int port);

/* Whether an Origin header is the origin of this Host, which http_host_is_ours has accepted. */
bool http_origin_is_ours(const char *origin, const char *host, bool tls);

/* The secret in an Authorization header, which points into it; NULL if it has none. */
const char *http_bearer(const char *authorization);

/* Whether a Content-Type is JSON, whatever its parameters. */
bool http_type_is_json(const char *type);

/*
 * Whether a path is one of a route, in which one part may be "*": any text without a slash, but not
 * none. *part: what is in its place, which the caller frees; not set without a "*".
 */
bool http_path_matches(const char *route, const char *path, char **part);

/* Whether a list such as "GET, HEAD" has the method. */
bool http_allows(const char *methods, const char *method);

#endif
