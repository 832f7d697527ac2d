/* Headers of safetensors files: four bytes that say how much data follows, then the header. */
#include <string.h>

#include "base/mem.h"
#include "hf/safetensors.h"
#include "fuzz.h"

static void check_header(struct safetensors_header *header, uint64_t data_bytes)
{
    uint64_t end = 0;
    for (int i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        FUZZ_CHECK(entry->begin == end && entry->end >= end, "\"%s\"", entry->name);
        end = entry->end;
    }
    FUZZ_CHECK(end == data_bytes, "ends at %llu", (unsigned long long)end);
    /* What we would write for it reads as the same. */
    struct buf out = {0};
    safetensors_write_header(&out, header->entries, header->count, NULL, 0);
    struct safetensors_header again;
    uint64_t needed;
    status_t status =
        safetensors_read_header(out.data, out.length, out.length + data_bytes, &again, &needed);
    FUZZ_CHECK(status == NULL, "%s, reading %s", status_message(status), out.data + 8);
    FUZZ_CHECK(again.count == header->count && again.data_offset == out.length, "%s", out.data + 8);
    safetensors_header_deinit(&again);
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) return 0;
    uint32_t data_bytes;
    memcpy(&data_bytes, data, sizeof data_bytes);
    void *bytes = mem_dup(data + 4, size - 4);
    struct safetensors_header header;
    uint64_t needed = 0;
    status_t status =
        safetensors_read_header(bytes, size - 4, size - 4 + (uint64_t)data_bytes, &header, &needed);
    if (status == NULL) {
        check_header(&header, size - 4 + (uint64_t)data_bytes - header.data_offset);
        safetensors_header_deinit(&header);
    } else {
        FUZZ_CHECK((status_code(status) == STATUS_OUT_OF_RANGE) == (needed > size - 4), "%s",
                   status_message(status));
        fuzz_expect_user_error(status);
    }
    free(bytes);
    return 0;
}
