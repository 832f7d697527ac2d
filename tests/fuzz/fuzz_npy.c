/* .npy files; what is accepted is read to its end. */
#include "scratch.h"
#include "data/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct npy npy;
    status_t status = npy_open(NULL, scratch_write(data, size), &npy);
    if (status != NULL) {
        scratch_expect_user_error(status);
        return 0;
    }
    int64_t count = 1;
    FUZZ_CHECK(npy.dim_count >= 1 && npy.dim_count <= NPY_DIMS_MAX, "%d dimensions", npy.dim_count);
    for (int d = 0; d < npy.dim_count; d++) count *= npy.dims[d];
    FUZZ_CHECK(count == npy.count && count >= 1, "%lld elements", (long long)npy.count);
    FUZZ_CHECK(npy.first_byte + count * npy_type_width(npy.type) == (int64_t)size, "its size");
    for (int64_t i = 0; i < count; i++) {
        unsigned char element[8];
        status = npy_read(&npy, i, 1, element);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
    }
    npy_close(&npy);
    return 0;
}
