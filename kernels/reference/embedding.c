/* Reference embeddings, and ops that need token ids alone. */
#include "kernels/distance.h"
#include "kernels/reference/reference.h"

status_t reference_embedding(const struct kernel *kernel, const struct kernel_call *call)
{
    const int32_t *indices = call->inputs[0];
    const float *weight = call->inputs[1];
    float *y = call->outputs[0];
    int64_t tokens = tensor_element_count(&kernel->desc.inputs[0]);
    int64_t columns = kernel->desc.inputs[1].dims[1];
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < columns; i++)
            reference_put(kernel, 0, &y[t * columns + i], weight[indices[t] * columns + i]);
    return NULL;
}

status_t reference_embedding_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const int32_t *indices = call->inputs[0];
    const float *dy = call->inputs[1];
    float *dweight = call->outputs[0];
    int64_t tokens = tensor_element_count(&kernel->desc.inputs[0]);
    int64_t rows = kernel->desc.outputs[0].dims[0], columns = kernel->desc.outputs[0].dims[1];
    for (int64_t row = 0; row < rows; row++) {
        int64_t first = 0;
        while (first < tokens && indices[first] != row) first++;
        if (row == kernel->desc.attrs.embedding.padding_index) first = tokens;
        for (int64_t i = 0; i < columns; i++) {
            double sum = 0;
            for (int64_t t = first; t < tokens; t++)
                if (indices[t] == row) sum += dy[t * columns + i];
            reference_put(kernel, 0, &dweight[row * columns + i], sum);
        }
    }
    return NULL;
}

status_t reference_arange(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t start = kernel->desc.attrs.arange.start, step = kernel->desc.attrs.arange.step;
    int32_t *y = call->outputs[0];
    const int32_t *starts = call->inputs[1]; /* NULL: one row, and it is one document */
    const struct tensor_type *type = &kernel->desc.outputs[0];
    int64_t count = tensor_element_count(type), time = type->dims[type->dim_count - 1];
    for (int64_t i = 0; i < count; i++) {
        int64_t position = i % time - (starts != NULL ? starts[i] : 0);
        y[i] = (int32_t)(start + position * step);
    }
    return NULL;
}

status_t reference_padding_mask(const struct kernel *kernel, const struct kernel_call *call)
{
    const int32_t *tokens = call->inputs[0];
    uint8_t *mask = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < count; i++) mask[i] = tokens[i] != kernel->desc.attrs.padding_mask.id;
    return NULL;
}

status_t reference_token_positions(const struct kernel *kernel, const struct kernel_call *call)
{
    const int32_t *tokens = call->inputs[0];
    int32_t *y = call->outputs[0], id = kernel->desc.attrs.padding_mask.id;
    int64_t time = kernel->desc.inputs[0].dims[1], count = kernel->desc.inputs[0].dims[0] * time;
    for (int64_t i = 0, seen = 0; i < count; i++) {
        if (i % time == 0) seen = 0;
        y[i] = tokens[i] != id ? (int32_t)(id + ++seen) : id;
    }
    return NULL;
}

status_t reference_tokens(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[0], *y = &kernel->desc.outputs[0];
    const float *row = (const float *)call->inputs[0] + kernel->desc.attrs.tokens.start;
    int32_t *ids = call->outputs[0], count = kernel->desc.attrs.tokens.count;
    for (int64_t r = 0; r < x->dims[0]; r++, row += x->dims[1])
        for (int64_t t = 0; t < y->dims[1]; t++)
            *ids++ = row[t] >= 0 && row[t] < (float)count ? (int32_t)row[t] : 0;
    return NULL;
}

status_t reference_distance_buckets(const struct kernel *kernel, const struct kernel_call *call)
{
    int32_t *y = call->outputs[0];
    int64_t count = kernel->desc.outputs[0].dims[0];
    for (int64_t i = 0; i < count; i++)
        y[i] = distance_bucket(kernel->desc.attrs.buckets.count,
                               kernel->desc.attrs.buckets.max_distance, i - count / 2);
    return NULL;
}
