/* Reads certificates and checks whether TLS can use them; see x509.h. */
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "x509/internal.h"
#include "x509/x509.h"

status_t x509_error(enum status_code code, const char *what)
{
    unsigned long error = ERR_peek_last_error();
    const char *reason = error ? ERR_reason_error_string(error) : NULL;
    status_t status = status_new(code, "%s%s%s", what, reason ? ": " : "", reason ? reason : "");
    ERR_clear_error();
    return status;
}

/* Refuses an encrypted key: there is no terminal to ask for its passphrase. */
static int no_pass_phrase(char *buffer, int size, int writes, void *user)
{
    (void)buffer, (void)size, (void)writes, (void)user;
    return 0;
}

X509 *x509_read_certificate(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *certificate = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL);
    BIO_free(bio);
    return certificate;
}

EVP_PKEY *x509_read_key(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_pass_phrase, NULL);
    BIO_free(bio);
    return key;
}

static char *take_text(BIO *bio)
{
    char *data = NULL;
    long size = BIO_get_mem_data(bio, &data);
    char *text = mem_strndup(data != NULL ? data : "", size > 0 ? (size_t)size : 0);
    BIO_free(bio);
    return text;
}

static char *name_text(const X509_NAME *name)
{
    BIO *bio = BIO_new(BIO_s_mem());
    X509_NAME_print_ex(bio, name, 0, XN_FLAG_ONELINE);
    return take_text(bio);
}

static char *alternative_names(X509 *certificate)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    BIO *bio = BIO_new(BIO_s_mem());
    for (int i = 0; names != NULL && i < sk_GENERAL_NAME_num(names); i++) {
        if (i > 0) BIO_puts(bio, ", ");
        GENERAL_NAME_print(bio, sk_GENERAL_NAME_value(names, i));
    }
    GENERAL_NAMES_free(names);
    return take_text(bio);
}

static char *fingerprint(const X509 *certificate)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    X509_digest(certificate, EVP_sha256(), digest, &length);
    char *text = mem_alloc(3 * (size_t)length + 1);
    for (unsigned i = 0; i < length; i++)
        sprintf(text + 3 * i, "%02X%s", digest[i], i + 1 < length ? ":" : "");
    return text;
}

static char *serial_text(const X509 *certificate)
{
    BIGNUM *number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), NULL);
    char *digits = number != NULL ? BN_bn2hex(number) : NULL;
    char *text = mem_strdup(digits != NULL ? digits : "?");
    OPENSSL_free(digits);
    BN_free(number);
    return text;
}

static int64_t unix_time(const ASN1_TIME *time)
{
    struct tm parts;
    if (ASN1_TIME_to_tm(time, &parts) != 1) return 0;
    return (int64_t)timegm(&parts);
}

status_t x509_describe(const char *pem, struct x509_facts *facts)
{
    X509 *certificate = x509_read_certificate(pem);
    if (certificate == NULL)
        return x509_error(STATUS_INVALID_ARGUMENT, "expected a PEM certificate");
    *facts = (struct x509_facts){
        .subject = name_text(X509_get_subject_name(certificate)),
        .issuer = name_text(X509_get_issuer_name(certificate)),
        .names = alternative_names(certificate),
        .fingerprint = fingerprint(certificate),
        .serial = serial_text(certificate),
        .not_before = unix_time(X509_get0_notBefore(certificate)),
        .not_after = unix_time(X509_get0_notAfter(certificate)),
        .authority = X509_check_ca(certificate) > 0,
        .server = X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0) == 1,
        .client = X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, 0) == 1,
    };
    X509_free(certificate);
    ERR_clear_error();
    return NULL;
}

void x509_facts_deinit(struct x509_facts *facts)
{
    free(facts->subject);
    free(facts->issuer);
    free(facts->names);
    free(facts->fingerprint);
    free(facts->serial);
    *facts = (struct x509_facts){0};
}

static status_t check_time(int64_t begin, int64_t end)
{
    int64_t now = (int64_t)time(NULL), moment = now < begin ? begin : end;
    if (now >= begin && now <= end) return NULL;
    time_t seconds = (time_t)moment;
    struct tm parts;
    char text[32] = "";
    if (gmtime_r(&seconds, &parts)) strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
    return status_new(STATUS_FAILED_PRECONDITION, "the certificate %s %s",
                      now < begin ? "is not valid before" : "expired on", text);
}

status_t x509_check_certificate(const char *certificate)
{
    AUTO(x509_facts_deinit) struct x509_facts facts = {0};
    TRY(x509_describe(certificate, &facts));
    return check_time(facts.not_before, facts.not_after);
}

status_t x509_check_use(const char *certificate, bool server)
{
    AUTO(x509_facts_deinit) struct x509_facts facts = {0};
    TRY(x509_describe(certificate, &facts));
    bool right = server ? facts.server : facts.client;
    if (right) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "the certificate is not for %s (%s)",
                      server ? "servers" : "clients", server ? "serverAuth" : "clientAuth");
}

status_t x509_check_key(const char *certificate, const char *key)
{
    X509 *parsed = x509_read_certificate(certificate);
    EVP_PKEY *private_key = x509_read_key(key);
    status_t status = NULL;
    if (parsed == NULL) status = x509_error(STATUS_INVALID_ARGUMENT, "expected a PEM certificate");
    else if (private_key == NULL)
        status =
            x509_error(STATUS_INVALID_ARGUMENT, "expected a PEM private key without a pass phrase");
    else if (X509_check_private_key(parsed, private_key) != 1)
        status = status_new(STATUS_INVALID_ARGUMENT, "the key does not match the certificate");
    ERR_clear_error();
    EVP_PKEY_free(private_key);
    X509_free(parsed);
    return status;
}

status_t x509_check_authorities(const char *authorities)
{
    BIO *bio = BIO_new_mem_buf(authorities, -1);
    int count = 0;
    status_t status = NULL;
    for (X509 *one; status == NULL && (one = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL));) {
        if (X509_check_ca(one) <= 0)
            status = status_new(STATUS_INVALID_ARGUMENT,
                                "certificate %d is not a certificate authority's", count + 1);
        X509_free(one);
        count++;
    }
    unsigned long error = ERR_peek_last_error();
    bool ended = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
    if (status == NULL && (count == 0 || !ended))
        status = x509_error(STATUS_INVALID_ARGUMENT, "expected PEM certificates of authorities");
    ERR_clear_error();
    BIO_free(bio);
    return status;
}

/* ---- pem ---- */

enum { PEM_FILE_MAX = 1 << 20 };

status_t x509_read_pem(const char *path, char **text)
{
    struct buf bytes = {0};
    TRY(file_read_regular(path, PEM_FILE_MAX, &bytes));
    bool zero = memchr(buf_text(&bytes), '\0', bytes.length) != NULL;
    if (!zero) {
        *text = buf_take(&bytes);
        return NULL;
    }
    buf_deinit(&bytes);
    return status_new(STATUS_INVALID_ARGUMENT, "%s: expected PEM, found zero bytes", path);
}
