/* PEM files as texts; see x509.h. */
#include <string.h>

#include "base/file.h"
#include "x509/x509.h"

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
