/* Descriptor sets, of which reflection answers. */
#include "base/mem.h"
#include "fuzz.h"
#include "rpc/descriptors.h"

enum { FILES_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct descriptors *descriptors;
    status_t status = descriptors_new(data, size, &descriptors);
    if (status != NULL) {
        FUZZ_CHECK(status_code(status) == STATUS_INVALID_ARGUMENT, "%s", status_message(status));
        status_free(status);
        return 0;
    }
    int count = descriptors_file_count(descriptors);
    int *order = mem_alloc_array((size_t)count + 1, sizeof *order);
    for (int i = 0; i < count && i < FILES_MAX; i++) {
        const struct descriptors_file *file = descriptors_file(descriptors, i);
        FUZZ_CHECK(descriptors_find_file(descriptors, file->name) >= 0, "%s", file->name);
        int closure = descriptors_closure(descriptors, i, order);
        FUZZ_CHECK(closure >= 1 && closure <= count, "%d of %d files", closure, count);
        for (int k = 0; k < closure; k++)
            FUZZ_CHECK(order[k] >= 0 && order[k] < count, "file %d", order[k]);
    }
    const struct descriptors_symbol *symbol = descriptors_find_symbol(descriptors, "a.B");
    if (symbol != NULL) FUZZ_CHECK(symbol->file < count, "file %d", symbol->file);
    free(order);
    descriptors_free(descriptors);
    return 0;
}
