/* Issues certificates: an authority, and certificates signed by it; see x509.h. */
#include <arpa/inet.h>
#include <ctype.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "x509/internal.h"

enum { SERIAL_BYTES = 16, NAME_MAX_BYTES = 64, HOST_MAX_BYTES = 253, BACKDATE_SECONDS = 300 };

void x509_pair_deinit(struct x509_pair *pair)
{
    if (pair->key != NULL) OPENSSL_cleanse(pair->key, strlen(pair->key));
    free(pair->key);
    free(pair->certificate);
    *pair = (struct x509_pair){0};
}

static char *take_pem(BIO *bio)
{
    char *data = NULL;
    long size = BIO_get_mem_data(bio, &data);
    char *text = mem_strndup(data, (size_t)size);
    OPENSSL_cleanse(data, (size_t)size);
    BIO_free(bio);
    return text;
}

static bool write_pair(X509 *certificate, EVP_PKEY *key, struct x509_pair *pair)
{
    BIO *first = BIO_new(BIO_s_mem()), *second = BIO_new(BIO_s_mem());
    bool right = PEM_write_bio_X509(first, certificate) == 1 &&
                 PEM_write_bio_PrivateKey(second, key, NULL, NULL, 0, NULL, NULL) == 1;
    char *certificate_text = take_pem(first), *key_text = take_pem(second);
    if (right) {
        *pair = (struct x509_pair){.certificate = certificate_text, .key = key_text};
    } else {
        free(certificate_text);
        free(key_text);
    }
    return right;
}

/* Random, so that two authorities of one name never issue the same serial number. */
static bool set_serial(X509 *certificate)
{
    unsigned char bytes[SERIAL_BYTES];
    if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40); /* positive, and never short */
    BIGNUM *number = BN_bin2bn(bytes, sizeof bytes, NULL);
    bool set = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL;
    BN_free(number);
    return set;
}

static bool add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool added = extension != NULL && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

static bool set_name(X509_NAME *name, const char *common)
{
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)common, -1,
                                      -1, 0) == 1;
}

/* Backdated: hosts' clocks differ a little, and a new certificate must be valid everywhere at
 * once. */
static bool set_times(X509 *certificate, int days, const X509 *issuer)
{
    if (X509_gmtime_adj(X509_getm_notBefore(certificate), -BACKDATE_SECONDS) == NULL) return false;
    if (X509_time_adj_ex(X509_getm_notAfter(certificate), days, 0, NULL) == NULL) return false;
    if (issuer == NULL) return true;
    const ASN1_TIME *begin = X509_get0_notBefore(issuer), *end = X509_get0_notAfter(issuer);
    bool right = true;
    if (ASN1_TIME_compare(X509_get0_notBefore(certificate), begin) < 0)
        right = X509_set1_notBefore(certificate, begin) == 1;
    if (right && ASN1_TIME_compare(X509_get0_notAfter(certificate), end) > 0)
        right = X509_set1_notAfter(certificate, end) == 1;
    return right;
}

/* A certificate with everything except its extensions and signature. NULL on failure. */
static X509 *begin_certificate(const char *name, int days, EVP_PKEY *key, X509 *issuer)
{
    X509 *certificate = X509_new();
    bool right = certificate != NULL && X509_set_version(certificate, X509_VERSION_3) == 1 &&
                 set_serial(certificate) && set_times(certificate, days, issuer) &&
                 X509_set_pubkey(certificate, key) == 1 &&
                 set_name(X509_get_subject_name(certificate), name);
    if (right) {
        X509_NAME *signer = X509_get_subject_name(issuer != NULL ? issuer : certificate);
        right = X509_set_issuer_name(certificate, signer) == 1;
    }
    if (right) return certificate;
    X509_free(certificate);
    return NULL;
}

static status_t check_name(const char *name)
{
    size_t length = strlen(name);
    bool right = length > 0 && length <= NAME_MAX_BYTES;
    for (const char *c = name; right && *c; c++) right = (unsigned char)*c >= ' ' && *c != 0x7f;
    if (right) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "name: expected 1 to %d printable bytes",
                      NAME_MAX_BYTES);
}

status_t x509_make_authority(const char *name, int days, struct x509_pair *authority)
{
    TRY(check_name(name));
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = key != NULL ? begin_certificate(name, days, key, NULL) : NULL;
    bool right =
        certificate != NULL &&
        add_extension(certificate, certificate, NID_basic_constraints,
                      "critical,CA:TRUE,pathlen:0") &&
        add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
        add_extension(certificate, certificate, NID_subject_key_identifier, "hash") &&
        X509_sign(certificate, key, EVP_sha256()) > 0 && write_pair(certificate, key, authority);
    status_t status = NULL;
    if (!right) status = x509_error(STATUS_INTERNAL, "cannot make a certificate authority");
    X509_free(certificate);
    EVP_PKEY_free(key);
    return status;
}

static bool is_dns_name(const char *host)
{
    size_t length = strlen(host), label = 0;
    if (length == 0 || length > HOST_MAX_BYTES) return false;
    const char *rest = strncmp(host, "*.", 2) == 0 ? host + 2 : host;
    for (; *rest; rest++) {
        if (*rest == '.' ? label == 0
                         : !isalnum((unsigned char)*rest) && *rest != '-' && *rest != '_')
            return false;
        label = *rest == '.' ? 0 : label + 1;
        if (label > 63) return false;
    }
    return label > 0;
}

/* The extension's value: "URI:...,DNS:...,IP:...". Hosts contain no character that is special
 * here. */
static status_t list_names(const struct x509_request *request, struct buf *out)
{
    if (request->uri != NULL) buf_printf(out, "URI:%s", request->uri);
    for (int i = 0; i < request->host_count; i++) {
        unsigned char address[sizeof(struct in6_addr)];
        const char *host = request->hosts[i];
        bool is_address =
            inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
        if (!is_address && !is_dns_name(host))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "host '%.80s': expected a DNS name or an address", host);
        buf_printf(out, "%s%s:%s", out->length > 0 ? "," : "", is_address ? "IP" : "DNS", host);
    }
    return NULL;
}

static status_t sign(X509 *issuer, EVP_PKEY *issuer_key, const struct x509_request *request,
                     const char *names, struct x509_pair *issued)
{
    const char *use = request->server ? "serverAuth" : "clientAuth";
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate =
        key != NULL ? begin_certificate(request->name, request->days, key, issuer) : NULL;
    bool right =
        certificate != NULL &&
        add_extension(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
        add_extension(certificate, issuer, NID_key_usage, "critical,digitalSignature") &&
        add_extension(certificate, issuer, NID_ext_key_usage, use) &&
        add_extension(certificate, issuer, NID_subject_key_identifier, "hash") &&
        add_extension(certificate, issuer, NID_authority_key_identifier, "keyid:always") &&
        (names[0] == '\0' || add_extension(certificate, issuer, NID_subject_alt_name, names)) &&
        X509_sign(certificate, issuer_key, EVP_sha256()) > 0 &&
        write_pair(certificate, key, issued);
    status_t status = NULL;
    if (!right) status = x509_error(STATUS_INTERNAL, "cannot make the certificate");
    X509_free(certificate);
    EVP_PKEY_free(key);
    return status;
}

status_t x509_issue(const struct x509_pair *authority, const struct x509_request *request,
                    struct x509_pair *issued)
{
    TRY(check_name(request->name));
    TRY(x509_check_key(authority->certificate, authority->key));
    TRY(x509_check_certificate(authority->certificate));
    TRY(x509_check_authorities(authority->certificate));
    AUTO(buf_deinit) struct buf names = {0};
    status_t status = list_names(request, &names);
    X509 *issuer = x509_read_certificate(authority->certificate);
    EVP_PKEY *key = x509_read_key(authority->key);
    if (status == NULL) status = sign(issuer, key, request, buf_text(&names), issued);
    EVP_PKEY_free(key);
    X509_free(issuer);
    return status;
}
