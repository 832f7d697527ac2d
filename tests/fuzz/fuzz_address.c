/* Addresses: the normal form is its own normal form, and every part can be taken from it. */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "rpc/address.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_strndup((const char *)data, size), *normal = NULL, *again = NULL;
    status_t status = rpc_address_parse(text, &normal);
    free(text);
    if (status != NULL) {
        FUZZ_CHECK(status_code(status) == STATUS_INVALID_ARGUMENT, "%s", status_message(status));
        status_free(status);
        return 0;
    }
    status = rpc_address_parse(normal, &again);
    FUZZ_CHECK(status == NULL, "%s", status_message(status));
    FUZZ_CHECK(strcmp(normal, again) == 0, "%s, then %s", normal, again);
    free(rpc_address_target(normal));
    if (rpc_address_unix_path(normal) == NULL) {
        char *host;
        int port;
        rpc_address_split(normal, &host, &port);
        FUZZ_CHECK(host[0] != '\0' && port >= 0 && port <= 65535, "%s: %s and %d", normal, host,
                   port);
        free(host);
    }
    free(normal);
    free(again);
    return 0;
}
