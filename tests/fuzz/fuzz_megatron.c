/*
 * Indexes of Megatron-LM's token files: the input is the .idx of a .bin of 24 bytes.
 */
#include "data/token_file.h"
#include "scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { BYTES = 24 };
    struct data_file index;
    struct megatron megatron = {0};
    status_t status = data_file_open(NULL, scratch_write(data, size), &index);
    if (status != NULL) {
        scratch_expect_user_error(status);
        return 0;
    }
    status = megatron_parse(&index, BYTES, &megatron);
    if (status != NULL) scratch_expect_user_error(status);
    else
        FUZZ_CHECK(megatron.count * megatron.width == BYTES, "%lld tokens of %d bytes",
                   (long long)megatron.count, megatron.width);
    data_file_close(&index);
    return 0;
}
