/* Helpers for the API's messages; see message.h. */
#include "coordinator/store/message.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *job_state_name(int state)
{
    const char *name = message_enum_name(&fsdpd__v1__job_state__descriptor, state);
    return name != NULL ? name : "UNKNOWN";
}

bool message_equal(const void *a, const void *b)
{
    size_t size_a = 0, size_b = 0;
    AUTO_FREE uint8_t *bytes_a = message_pack(a, &size_a);
    AUTO_FREE uint8_t *bytes_b = message_pack(b, &size_b);
    return size_a == size_b && memcmp(bytes_a, bytes_b, size_a) == 0;
}

void message_set_text(char **field, const char *text)
{
    char *copy = mem_strdup(text);
    if (*field != protobuf_c_empty_string) free(*field);
    *field = copy;
}
