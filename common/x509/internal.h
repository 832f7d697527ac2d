/* Shared by the files of common/x509. */
#ifndef FSDPD_X509_INTERNAL_H
#define FSDPD_X509_INTERNAL_H

#include <openssl/evp.h>
#include <openssl/x509.h>

#include "x509/x509.h"

/* The first certificate or the private key in a PEM text; NULL if there is none. */
X509 *x509_read_certificate(const char *pem);
EVP_PKEY *x509_read_key(const char *pem);

/* `what`, followed by OpenSSL's last error, if any. Clears OpenSSL's error queue. */
status_t x509_error(enum status_code code, const char *what);

#endif
