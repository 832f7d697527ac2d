/* SHA-256, HMAC and base64; see digest.h. libcrypto can fail here only for lack of memory, which
 * aborts as in base/mem.h. */
#include "digest/digest.h"

#include <limits.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct digester {
    EVP_MD_CTX *context;
};

static void need(int done)
{
    if (done != 1) abort();
}

void digest_of(const void *bytes, size_t size, struct digest *digest)
{
    need(EVP_Digest(bytes, size, digest->bytes, NULL, EVP_sha256(), NULL));
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
    return memcmp(a->bytes, b->bytes, DIGEST_BYTES) == 0;
}

char *digest_format(const struct digest *digest, char text[static DIGEST_DIGITS + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < DIGEST_BYTES; i++) {
        text[2 * i] = digits[digest->bytes[i] >> 4];
        text[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    text[DIGEST_DIGITS] = '\0';
    return text;
}

static int value_of(char digit)
{
    if (digit >= '0' && digit <= '9') return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

bool digest_parse(const char *text, struct digest *digest)
{
    for (int i = 0; i < DIGEST_BYTES; i++) {
        int high = value_of(text[2 * i]), low = high < 0 ? -1 : value_of(text[2 * i + 1]);
        if (low < 0) return false;
        digest->bytes[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

struct digester *digester_new(void)
{
    struct digester *digester = mem_alloc(sizeof *digester);
    digester->context = EVP_MD_CTX_new();
    need(digester->context != NULL);
    need(EVP_DigestInit_ex(digester->context, EVP_sha256(), NULL));
    return digester;
}

void digester_add(struct digester *digester, const void *bytes, size_t size)
{
    need(EVP_DigestUpdate(digester->context, bytes, size));
}

void digester_take(struct digester *digester, struct digest *digest)
{
    need(EVP_DigestFinal_ex(digester->context, digest->bytes, NULL));
    need(EVP_DigestInit_ex(digester->context, NULL, NULL));
}

void digester_free(struct digester *digester)
{
    if (digester == NULL) return;
    EVP_MD_CTX_free(digester->context);
    free(digester);
}

void digest_hmac(const void *key, size_t key_size, const void *bytes, size_t size,
                 struct digest *digest)
{
    unsigned length = 0;
    need(key_size <= INT_MAX &&
         HMAC(EVP_sha256(), key, (int)key_size, bytes, size, digest->bytes, &length) != NULL);
    need(length == DIGEST_BYTES);
}

char *base64_encode(const void *bytes, size_t size)
{
    need(size <= INT_MAX / 2);
    char *text = mem_alloc((size + 2) / 3 * 4 + 1);
    EVP_EncodeBlock((unsigned char *)text, bytes, (int)size);
    return text;
}

unsigned char *base64_decode(const char *text, size_t *size)
{
    size_t length = strlen(text), padding = 0;
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=') padding++;
    if (length == 0 || length % 4 != 0 || length > INT_MAX / 2) return NULL;
    unsigned char *bytes = mem_alloc(length / 4 * 3);
    /* It skips spaces, and takes any padding as zeros. */
    int decoded = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)length);
    if (decoded != (int)(length / 4 * 3)) {
        free(bytes);
        return NULL;
    }
    *size = (size_t)decoded - padding;
    return bytes;
}
