/* The role cert; see roles.h. */
#include "roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host.h"
#include "base/mem.h"
#include "rpc/peer.h"

enum { ACTION_COUNT = 3, KIND_COUNT = 4 };

static const struct {
    const char *name, *arguments;
    int words;
} actions[ACTION_COUNT] = {{"init", "DIR", 2},
                           {"issue", "DIR user|operator|worker|server NAME", 4},
                           {"show", "FILE", 2}};

static const char *const kinds[KIND_COUNT] = {"user", "operator", "worker", "server"};

static bool is_kind(const char *word)
{
    for (int i = 0; i < KIND_COUNT; i++)
        if (strcmp(word, kinds[i]) == 0) return true;
    return false;
}

/* Valid names can be part of an identity and of a file name. */
static status_t check_name(const char *name)
{
    const char *rest = NULL;
    AUTO_FREE char *uri = mem_printf("fsdpd://user/%s", name);
    bool right = rpc_peer_parse_uri(uri, &rest) != 0;
    if (right) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "cert issue: the name '%.80s': expected 1 to 64 of letters, digits and ._-@, "
                      "beginning with a letter, a digit or _",
                      name);
}

/* Refuses flags that the action ignores. */
static status_t check_flags(const struct cert_role_options *options, const char *action)
{
    const char *flag = options->host_count > 0                             ? "--host"
                       : options->out != NULL                              ? "--out"
                       : options->days != 0 && strcmp(action, "show") == 0 ? "--days"
                                                                           : NULL;
    if (flag == NULL) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "cert %s: %s belongs to issue%s", action, flag,
                      strcmp(flag, "--days") == 0 ? " and init" : "");
}

status_t cert_role_check(const struct cert_role_options *options)
{
    const char *word = options->word_count > 0 ? options->words[0] : NULL;
    int action = 0;
    while (action < ACTION_COUNT && (word == NULL || strcmp(word, actions[action].name) != 0))
        action++;
    if (action == ACTION_COUNT)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "cert: expected init, issue or show%s%s; see "
                          "fsdpd cert --help",
                          word ? ", found " : "", word ? word : "");
    if (options->word_count != actions[action].words)
        return status_new(STATUS_INVALID_ARGUMENT, "cert %s: expected %s; see fsdpd cert --help",
                          word, actions[action].arguments);
    if (strcmp(word, "issue") != 0) return check_flags(options, word);
    if (!is_kind(options->words[2]))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "cert issue: expected user, operator, worker or server, found '%.80s'",
                          options->words[2]);
    if (options->host_count > 0 && strcmp(options->words[2], "server") != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "cert issue: --host belongs to server; a %s is known by its name",
                          options->words[2]);
    return check_name(options->words[3]);
}

/* Writes the key before the certificate: a certificate without its key is useless, so it never
 * exists. `fresh`: only if neither file exists yet. */
static status_t write_pair(const char *directory, const char *name, const struct x509_pair *pair,
                           bool fresh, char **certificate_path)
{
    status_t (*write_file)(const char *, const void *, size_t, mode_t) =
        fresh ? file_write_new : file_write_atomic;
    char *certificate = mem_printf("%s/%s.crt", directory, name);
    AUTO_FREE char *key = mem_printf("%s/%s.key", directory, name);
    status_t status = write_file(key, pair->key, strlen(pair->key), 0600);
    if (status == NULL) {
        status = write_file(certificate, pair->certificate, strlen(pair->certificate), 0644);
        if (status != NULL && fresh) unlink(key);
    }
    if (status == NULL) *certificate_path = certificate;
    else free(certificate);
    return status;
}

static void print_time(const char *name, int64_t when)
{
    time_t seconds = (time_t)when;
    struct tm parts;
    char text[32] = "?";
    if (gmtime_r(&seconds, &parts)) strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
    printf("%-12s %s\n", name, text);
}

static status_t show(const char *path)
{
    AUTO_FREE char *text = NULL;
    AUTO(x509_facts_deinit) struct x509_facts facts = {0};
    TRY(x509_read_pem(path, &text));
    TRY(status_wrap(x509_describe(text, &facts), "%s", path));
    printf("%-12s %s\n%-12s %s\n%-12s %s\n", "file", path, "subject", facts.subject, "issuer",
           facts.issuer);
    printf("%-12s %s\n", "names", facts.names[0] ? facts.names : "none");
    printf("%-12s %s\n", "for",
           facts.authority                ? "an authority"
           : facts.server && facts.client ? "servers and clients"
           : facts.server                 ? "servers"
           : facts.client                 ? "clients"
                                          : "neither servers nor clients");
    print_time("valid from", facts.not_before);
    print_time("valid until", facts.not_after);
    int64_t left = (facts.not_after - (int64_t)time(NULL)) / 86400;
    if (facts.not_after < (int64_t)time(NULL)) printf("%-12s it has expired\n", "");
    else printf("%-12s %lld days are left\n", "", (long long)left);
    printf("%-12s %s\n%-12s %s\n", "serial", facts.serial, "SHA-256", facts.fingerprint);
    return NULL;
}

/* Checks the certificate alone: it proves that there is an authority, even if the key is kept
 * elsewhere. */
static status_t check_none_yet(const char *directory)
{
    static const char *const names[] = {"ca.key", "ca.crt"};
    status_t status = NULL;
    for (int i = 0; status == NULL && i < 2; i++) {
        AUTO_FREE char *path = mem_printf("%s/%s", directory, names[i]);
        struct stat info;
        if (lstat(path, &info) == 0)
            status = status_new(
                STATUS_ALREADY_EXISTS,
                "%s: an authority exists already; a new one would invalidate its certificates",
                path);
    }
    return status;
}

static status_t init(const struct cert_role_options *options)
{
    const char *directory = options->words[1];
    char host[HOST_NAME_SIZE], *path = NULL;
    AUTO_FREE char *name = mem_printf("fsdpd authority of %.40s", host_name(host));
    AUTO(x509_pair_deinit) struct x509_pair authority = {0};
    status_t status = file_make_directory(directory, 0700);
    if (status == NULL) status = check_none_yet(directory);
    if (status == NULL)
        status =
            x509_make_authority(name, options->days ? options->days : X509_CA_DAYS, &authority);
    if (status == NULL) status = write_pair(directory, "ca", &authority, true, &path);
    if (status == NULL) status = show(path);
    free(path);
    return status;
}

static status_t read_authority(const char *directory, struct x509_pair *authority)
{
    AUTO_FREE char *certificate = mem_printf("%s/ca.crt", directory);
    AUTO_FREE char *key = mem_printf("%s/ca.key", directory);
    status_t status = x509_read_pem(certificate, &authority->certificate);
    if (status == NULL) status = x509_read_pem(key, &authority->key);
    return status_wrap(status, "the authority (fsdpd cert init makes one)");
}

static status_t issue(const struct cert_role_options *options)
{
    const char *kind = options->words[2], *name = options->words[3];
    const char *out = options->out ? options->out : options->words[1];
    bool server = strcmp(kind, "server") == 0;
    AUTO_FREE char *uri = server ? NULL : mem_printf("fsdpd://%s/%s", kind, name);
    struct x509_request request = {.name = name,
                                   .server = server,
                                   .uri = uri,
                                   .host_count = options->host_count,
                                   .days = options->days ? options->days : X509_DAYS};
    memcpy(request.hosts, options->hosts, sizeof request.hosts);
    if (server && request.host_count == 0) request.hosts[request.host_count++] = name;
    AUTO_FREE char *file = mem_printf("%s-%s", kind, name), *path = NULL;
    AUTO(x509_pair_deinit) struct x509_pair authority = {0}, issued = {0};
    TRY(read_authority(options->words[1], &authority));
    TRY(x509_issue(&authority, &request, &issued));
    TRY(file_make_directory(out, 0700));
    TRY(write_pair(out, file, &issued, false, &path));
    return show(path);
}

status_t cert_role_run(const struct cert_role_options *options)
{
    const char *action = options->words[0];
    if (strcmp(action, "init") == 0) return init(options);
    if (strcmp(action, "issue") == 0) return issue(options);
    return show(options->words[1]);
}
