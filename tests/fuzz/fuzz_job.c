/* Job files and --set: the file, then after every NUL byte one override. */
#include <string.h>

#include "base/mem.h"
#include "spec_round_trip.h"

enum { OVERRIDES_MAX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = mem_alloc(size + 1);
    memcpy(copy, data, size);
    struct spec_override overrides[OVERRIDES_MAX] = {{NULL}};
    int count = 0;
    size_t length = strlen(copy);
    for (size_t at = length + 1; at < size && count < OVERRIDES_MAX; at += strlen(copy + at) + 1)
        overrides[count++].text = copy + at;
    Fsdpd__V1__JobSpec *spec;
    status_t status = spec_read_text(copy, length, "job.yaml", overrides, count, &spec);
    if (status == NULL) {
        status = spec_validate(spec);
        FUZZ_CHECK(status == NULL, "read, but not valid: %s", status_message(status));
        fuzz_check_round_trip(spec);
        spec_free(spec);
    } else {
        fuzz_expect_user_error(status);
    }
    free(copy);
    return 0;
}
