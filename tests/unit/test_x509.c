/* Certificates: OpenSSL accepts what an authority issues, and each error has a name. */
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "tests/testing.h"
#include "x509/x509.h"

static struct x509_pair authority;

static void make_authority(void)
{
    ck_assert_ptr_null(x509_make_authority("test authority", 10, &authority));
}

static void drop_authority(void)
{
    x509_pair_deinit(&authority);
}

static void refused(status_t status, enum status_code code, const char *words)
{
    ck_assert_int_eq(status_code(status), code);
    ck_assert_msg(strstr(status_message(status), words) != NULL, "%s", status_message(status));
    status_free(status);
}

static X509 *parse(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    ck_assert_ptr_nonnull(certificate);
    BIO_free(bio);
    return certificate;
}

/* OpenSSL's own verdict on a chain, for a purpose: X509_V_OK or the reason. */
static int verify(const char *leaf, const char *root, int purpose, time_t when)
{
    X509 *one = parse(leaf), *anchor = parse(root);
    X509_STORE *store = X509_STORE_new();
    X509_STORE_add_cert(store, anchor);
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    X509_STORE_CTX_init(context, store, one, NULL);
    X509_STORE_CTX_set_purpose(context, purpose);
    X509_STORE_CTX_set_flags(context, X509_V_FLAG_X509_STRICT);
    if (when != 0) X509_STORE_CTX_set_time(context, 0, when);
    X509_verify_cert(context);
    int error = X509_STORE_CTX_get_error(context);
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    X509_free(anchor);
    X509_free(one);
    return error;
}

TESTS_BELOW(.set_up = make_authority, .tear_down = drop_authority);

TEST(authority_is_one)
{
    struct x509_facts facts;
    ck_assert_ptr_null(x509_describe(authority.certificate, &facts));
    ck_assert_str_eq(facts.subject, "CN = test authority");
    ck_assert_str_eq(facts.issuer, facts.subject);
    ck_assert(facts.authority && !facts.server && !facts.client);
    ck_assert_int_eq(strlen(facts.fingerprint), 32 * 3 - 1);
    int64_t now = (int64_t)time(NULL);
    ck_assert_int_le(facts.not_before, now);
    ck_assert_int_le(llabs(facts.not_after - now - 10 * 86400), 5);
    x509_facts_deinit(&facts);
    ck_assert_ptr_null(x509_check_certificate(authority.certificate));
    ck_assert_ptr_null(x509_check_key(authority.certificate, authority.key));
    ck_assert_ptr_null(x509_check_authorities(authority.certificate));
}

TEST(server_and_client)
{
    struct x509_request request = {.name = "node1",
                                   .server = true,
                                   .hosts = {"node1", "node1.example.org", "10.0.0.1", "fe80::1"},
                                   .host_count = 4,
                                   .days = 5};
    struct x509_pair server, client;
    ck_assert_ptr_null(x509_issue(&authority, &request, &server));
    request = (struct x509_request){.name = "ann", .uri = "fsdpd://user/ann", .days = 365};
    ck_assert_ptr_null(x509_issue(&authority, &request, &client));
    ck_assert_int_eq(verify(server.certificate, authority.certificate, X509_PURPOSE_SSL_SERVER, 0),
                     X509_V_OK);
    ck_assert_int_ne(verify(server.certificate, authority.certificate, X509_PURPOSE_SSL_CLIENT, 0),
                     X509_V_OK);
    ck_assert_int_eq(verify(client.certificate, authority.certificate, X509_PURPOSE_SSL_CLIENT, 0),
                     X509_V_OK);
    ck_assert_int_ne(verify(client.certificate, authority.certificate, X509_PURPOSE_SSL_SERVER, 0),
                     X509_V_OK);
    ck_assert_int_eq(verify(server.certificate, authority.certificate, X509_PURPOSE_SSL_SERVER,
                            time(NULL) + 6 * 86400),
                     X509_V_ERR_CERT_HAS_EXPIRED);
    ck_assert_ptr_null(x509_check_use(server.certificate, true));
    ck_assert_ptr_null(x509_check_use(client.certificate, false));
    refused(x509_check_use(server.certificate, false), STATUS_INVALID_ARGUMENT, "not for clients");
    refused(x509_check_use(client.certificate, true), STATUS_INVALID_ARGUMENT, "not for servers");
    X509 *parsed = parse(server.certificate);
    ck_assert_int_eq(X509_check_host(parsed, "node1.example.org", 0, 0, NULL), 1);
    ck_assert_int_eq(X509_check_host(parsed, "node2", 0, 0, NULL), 0);
    ck_assert_int_eq(X509_check_ip_asc(parsed, "10.0.0.1", 0), 1);
    ck_assert_int_eq(X509_check_ip_asc(parsed, "fe80::1", 0), 1);
    X509_free(parsed);
    struct x509_facts facts;
    ck_assert_ptr_null(x509_describe(client.certificate, &facts));
    ck_assert_str_eq(facts.names, "URI:fsdpd://user/ann");
    ck_assert(facts.client && !facts.server && !facts.authority);
    /* It ends with its authority, not after it. */
    ck_assert_int_le(facts.not_after, (int64_t)time(NULL) + 10 * 86400 + 5);
    x509_facts_deinit(&facts);
    x509_pair_deinit(&server);
    x509_pair_deinit(&client);
}

TEST(another_authority_does_not_vouch)
{
    struct x509_pair other, leaf;
    ck_assert_ptr_null(x509_make_authority("test authority", 10, &other)); /* the same name */
    struct x509_request request = {.name = "ann", .uri = "fsdpd://user/ann", .days = 3};
    ck_assert_ptr_null(x509_issue(&other, &request, &leaf));
    ck_assert_int_ne(verify(leaf.certificate, authority.certificate, X509_PURPOSE_SSL_CLIENT, 0),
                     X509_V_OK);
    refused(x509_check_key(leaf.certificate, other.key), STATUS_INVALID_ARGUMENT,
            "does not match the certificate");
    struct x509_pair mixed = {.certificate = authority.certificate, .key = other.key}, none;
    refused(x509_issue(&mixed, &request, &none), STATUS_INVALID_ARGUMENT,
            "does not match the certificate");
    refused(x509_issue(&leaf, &request, &none), STATUS_INVALID_ARGUMENT, "authority");
    x509_pair_deinit(&leaf);
    x509_pair_deinit(&other);
}

TEST(hosts_are_checked)
{
    static const char *const wrong[] = {"",   "a b",      "a,URI:fsdpd://operator/x",
                                        "-?", "a..b",     ".a",
                                        "a.", "http://a", "[::1]"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct x509_request request = {
            .name = "n", .server = true, .hosts = {wrong[i]}, .host_count = 1, .days = 1};
        struct x509_pair none;
        refused(x509_issue(&authority, &request, &none), STATUS_INVALID_ARGUMENT, "host");
    }
}

TEST(what_is_no_certificate)
{
    refused(x509_check_certificate("hello"), STATUS_INVALID_ARGUMENT, "PEM certificate");
    refused(x509_check_certificate(authority.key), STATUS_INVALID_ARGUMENT, "PEM certificate");
    refused(x509_check_key(authority.certificate, authority.certificate), STATUS_INVALID_ARGUMENT,
            "private key");
    refused(x509_check_authorities(""), STATUS_INVALID_ARGUMENT, "authorities");
    struct x509_request request = {.name = "ann", .uri = "fsdpd://user/ann", .days = -1};
    struct x509_pair expired;
    ck_assert_ptr_null(x509_issue(&authority, &request, &expired));
    refused(x509_check_certificate(expired.certificate), STATUS_FAILED_PRECONDITION, "expired on");
    refused(x509_check_authorities(expired.certificate), STATUS_INVALID_ARGUMENT, "authority");
    AUTO_FREE char *both = mem_printf("%s%s", authority.certificate, expired.certificate);
    refused(x509_check_authorities(both), STATUS_INVALID_ARGUMENT, "certificate 2 is not");
    x509_pair_deinit(&expired);
}
