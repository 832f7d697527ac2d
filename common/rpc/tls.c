/*
 * TLS files and the credentials made from them; see tls.h and internal.h. gRPC's threads request a
 * server's credentials whenever a peer connects, so a lock guards the current ones; everything else
 * runs on the loop's thread.
 */
#include "rpc/tls.h"

#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "rpc/peer.h"
#include "rpc/tls_internal.h"
#include "x509/x509.h"

bool rpc_tls_is_given(const struct rpc_tls_files *files)
{
    return files->ca != NULL || files->certificate != NULL || files->key != NULL;
}

enum { CA, CERTIFICATE, KEY };

static const char *const *names_of(const struct rpc_tls_files *files)
{
    static const char *const keys[] = {"tls.ca", "tls.certificate", "tls.key"};
    return files->names != NULL ? files->names : keys;
}

static status_t check_given(const struct rpc_tls_files *files)
{
    const char *const *names = names_of(files);
    const char *missing = files->ca == NULL            ? names[CA]
                          : files->certificate == NULL ? names[CERTIFICATE]
                          : files->key == NULL         ? names[KEY]
                                                       : NULL;
    if (missing == NULL) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "TLS needs %s, %s and %s; %s is not set", names[CA],
                      names[CERTIFICATE], names[KEY], missing);
}

void rpc_pems_deinit(struct rpc_pems *pems)
{
    struct x509_pair pair = {.certificate = pems->certificate, .key = pems->key};
    x509_pair_deinit(&pair);
    free(pems->ca);
    *pems = (struct rpc_pems){0};
}

status_t rpc_pems_read(const struct rpc_tls_files *files, bool server, struct rpc_pems *out)
{
    struct rpc_pems pems = {0};
    AUTO(x509_facts_deinit) struct x509_facts facts = {0};
    const char *const *names = names_of(files);
    TRY(check_given(files));
    TRY(status_wrap(file_check_private(files->key, "private key"), "%s", names[KEY]));
    status_t status = status_wrap(x509_read_pem(files->ca, &pems.ca), "%s", names[CA]);
    if (status == NULL)
        status = status_wrap(x509_read_pem(files->certificate, &pems.certificate), "%s",
                             names[CERTIFICATE]);
    if (status == NULL)
        status = status_wrap(x509_read_pem(files->key, &pems.key), "%s", names[KEY]);
    if (status == NULL) status = status_wrap(x509_check_authorities(pems.ca), "%s", files->ca);
    if (status == NULL)
        status = status_wrap(x509_check_certificate(pems.certificate), "%s", files->certificate);
    if (status == NULL)
        status = status_wrap(x509_check_use(pems.certificate, server), "%s", files->certificate);
    if (status == NULL)
        status = status_wrap(x509_check_key(pems.certificate, pems.key), "%s", files->key);
    if (status == NULL) status = x509_describe(pems.certificate, &facts);
    pems.end = facts.not_after;
    if (status == NULL) *out = pems;
    else rpc_pems_deinit(&pems);
    return status;
}

char *rpc_tls_worker_name(const struct rpc_tls_files *files)
{
    static const char prefix[] = "URI:";
    if (files->certificate == NULL) return NULL;
    char *text = NULL, *name = NULL;
    AUTO(x509_facts_deinit) struct x509_facts facts = {0};
    status_t status = x509_read_pem(files->certificate, &text);
    if (status == NULL) status = x509_describe(text, &facts);
    for (char *next = facts.names, *entry; name == NULL && (entry = strsep(&next, ",")) != NULL;) {
        entry += strspn(entry, " ");
        const char *worker;
        if (strncmp(entry, prefix, sizeof prefix - 1) == 0 &&
            rpc_peer_parse_uri(entry + sizeof prefix - 1, &worker) == RPC_WORKER)
            name = mem_strdup(worker);
    }
    status_free(status); /* the connection reports it */
    free(text);
    return name;
}

/* ---- the server's ---- */

struct rpc_server_tls {
    pthread_mutex_t lock; /* guards the members below */
    struct rpc_pems pems;
    unsigned generation; /* incremented whenever credentials are set */
    struct listening *listening;
};

/* One listening address: gRPC requests credentials for each one separately. */
struct listening {
    struct rpc_server_tls *tls;
    unsigned given; /* the generation that gRPC has */
    struct listening *next;
};

struct rpc_server_tls *rpc_server_tls_new(void)
{
    struct rpc_server_tls *tls = mem_alloc(sizeof *tls);
    pthread_mutex_init(&tls->lock, NULL);
    return tls;
}

void rpc_server_tls_free(struct rpc_server_tls *tls)
{
    if (tls == NULL) return;
    for (struct listening *i = tls->listening, *next; i != NULL; i = next) {
        next = i->next;
        free(i);
    }
    rpc_pems_deinit(&tls->pems);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

void rpc_server_tls_set(struct rpc_server_tls *tls, struct rpc_pems *pems)
{
    pthread_mutex_lock(&tls->lock);
    AUTO(rpc_pems_deinit) struct rpc_pems before = tls->pems;
    tls->pems = *pems;
    tls->generation++;
    pthread_mutex_unlock(&tls->lock);
    *pems = (struct rpc_pems){0};
}

/* Runs on a gRPC thread. */
static grpc_ssl_certificate_config_reload_status give(void *user,
                                                      grpc_ssl_server_certificate_config **config)
{
    struct listening *listening = user;
    struct rpc_server_tls *tls = listening->tls;
    grpc_ssl_certificate_config_reload_status answer = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    pthread_mutex_lock(&tls->lock);
    if (listening->given != tls->generation) {
        grpc_ssl_pem_key_cert_pair pair = {.private_key = tls->pems.key,
                                           .cert_chain = tls->pems.certificate};
        *config = grpc_ssl_server_certificate_config_create(tls->pems.ca, &pair, 1);
        listening->given = tls->generation;
        answer = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
    }
    pthread_mutex_unlock(&tls->lock);
    return answer;
}

grpc_server_credentials *rpc_server_tls_credentials(struct rpc_server_tls *tls)
{
    struct listening *listening = mem_alloc(sizeof *listening);
    listening->tls = tls;
    listening->next = tls->listening;
    tls->listening = listening;
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, give, listening));
}

/* ---- the client's ---- */

grpc_channel_credentials *rpc_client_tls_credentials(const struct rpc_pems *pems)
{
    grpc_ssl_pem_key_cert_pair pair = {.private_key = pems->key, .cert_chain = pems->certificate};
    return grpc_ssl_credentials_create_ex(pems->ca, &pair, NULL, NULL);
}
