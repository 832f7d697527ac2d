/* The header of the final state_dict; see final_weights.h. */
#include "coordinator/calls/final_weights.h"

#include "checkpoint/state_header.h"

enum { PREFIX_BYTES = 8 }; /* the size of the header */

void final_weights_begin(struct final_weights *weights, uint64_t total, uint64_t parameters)
{
    *weights =
        (struct final_weights){.total = total, .parameters = parameters, .needed = PREFIX_BYTES};
}

void final_weights_deinit(struct final_weights *weights)
{
    buf_deinit(&weights->header);
    safetensors_header_deinit(&weights->layout);
}

/* Called with `needed` header bytes, which may be the whole header. */
static status_t check(struct final_weights *weights)
{
    uint64_t needed = 0;
    status_t status = state_header_check(weights->header.data, weights->header.length,
                                         weights->total, weights->parameters, &needed);
    if (status_code(status) == STATUS_OUT_OF_RANGE && needed > weights->needed) {
        status_free(status);
        weights->needed = needed;
        return NULL;
    }
    weights->checked = true;
    if (status == NULL)
        status = safetensors_read_header(weights->header.data, weights->header.length,
                                         weights->total, &weights->layout, &needed);
    buf_deinit(&weights->header);
    return status;
}

status_t final_weights_take(struct final_weights *weights, const void *bytes, size_t size)
{
    const char *from = bytes;
    while (size > 0 && !weights->checked) {
        uint64_t missing = weights->needed - weights->header.length;
        size_t count = size < missing ? size : (size_t)missing;
        buf_add(&weights->header, from, count);
        from += count;
        size -= count;
        if (weights->header.length == weights->needed) TRY(check(weights));
    }
    return NULL;
}
