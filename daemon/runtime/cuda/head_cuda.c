/*
 * The fused head: a linear layer and the cross-entropy of its output, forward and backward in one,
 * by blocks of rows, so that only few rows' logits exist at a time. Rows of logits and of their
 * gradients begin at multiples of STRIDE elements, because tensor cores require aligned rows, and
 * vocabularies are odd (GPT-2's is 50,257).
 *
 * The gradient takes the logits' place. So in bf16 the logits of training are bf16, as those of
 * PyTorch's autocast are: 2 bytes each instead of 6, and 10 moved instead of 14 (written, read,
 * replaced, read by two products). Rows' sums and losses are computed in f32. Evaluation, which has
 * no gradient, keeps f32 logits: its losses and hits stay exact.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "base/switches.h"
#include "runtime/cuda/matmul.h"

/* Memory for a block's logits, unless one row needs more: a fraction of the device's, within
 * bounds. Every block but the first reads and writes the whole gradient of the weight again. */
#define LEAST_LOGIT_BYTES ((int64_t)256 << 20)
#define MOST_LOGIT_BYTES ((int64_t)4 << 30)
enum { ALIGNMENT = 256, SIZES = 2, STRIDE = 64, PART_OF_MEMORY = 64 };

/* What a multiprocessor computes at once of a product: the tile that NVIDIA's libraries prefer for
 * bf16 on Hopper. */
enum { TILE_ROWS = 128, TILE_COLUMNS = 256 };

static enum dtype logits_dtype(const struct op_desc *desc)
{
    bool replaced = desc->kind == OP_LINEAR_CROSS_ENTROPY_BACKWARD;
    return replaced && !cuda_is_switched("FSDPD_CUDA_HEAD", "f32") ? desc->inputs[0].dtype
                                                                   : DTYPE_F32;
}

/* The products of a block of `rows` rows. */
struct head_block {
    int64_t rows;
    struct cuda_matmul logits, dx, dweight, dweight_first;
};

struct cuda_head {
    struct cuda_prepared base;
    int64_t rows, columns, classes, stride;
    struct head_block blocks[SIZES]; /* whole ones, and the last if that is smaller (rows 0: not) */
    /* Bytes from the start of the workspace. */
    uint64_t losses, correct, logits, gradients, products;
};

static bool is_backward(const struct cuda_head *head)
{
    return head->base.op.desc.kind == OP_LINEAR_CROSS_ENTROPY_BACKWARD;
}

static status_t prepare_block(struct cuda_head *head, struct cuda_device *device,
                              struct head_block *block, int64_t rows)
{
    const struct op_desc *desc = &head->base.op.desc;
    enum dtype dtype = desc->inputs[0].dtype;
    block->rows = rows;
    struct matmul_shape shape = {.m = head->classes,
                                 .n = rows,
                                 .k = head->columns,
                                 .a_transposed = true,
                                 .d_stride = head->stride,
                                 .in = dtype,
                                 .out = logits_dtype(desc)};
    TRY(cuda_matmul_init(&block->logits, device, &shape));
    if (!is_backward(head)) return NULL;
    if (desc->output_present[1]) {
        shape = (struct matmul_shape){.m = head->columns,
                                      .n = rows,
                                      .k = head->classes,
                                      .b_stride = head->stride,
                                      .in = dtype,
                                      .out = dtype,
                                      .accumulate = desc->accumulate[1]};
        TRY(cuda_matmul_init(&block->dx, device, &shape));
    }
    if (!desc->output_present[2]) return NULL;
    shape = (struct matmul_shape){.m = head->columns,
                                  .n = head->classes,
                                  .k = rows,
                                  .b_transposed = true,
                                  .b_stride = head->stride,
                                  .in = dtype,
                                  .out = DTYPE_F32,
                                  .accumulate = true};
    TRY(cuda_matmul_init(&block->dweight, device, &shape));
    shape.accumulate = desc->accumulate[2];
    return cuda_matmul_init(&block->dweight_first, device, &shape);
}

static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t at = *end;
    *end += round_up(bytes, ALIGNMENT);
    return at;
}

static uint64_t largest_workspace(const struct cuda_head *head)
{
    const struct head_block *first = &head->blocks[0];
    uint64_t most = cuda_column_sum_bytes(first->rows, head->classes);
    for (int i = 0; i < SIZES; i++) {
        const struct head_block *block = &head->blocks[i];
        const uint64_t bytes[] = {block->logits.workspace_bytes, block->dx.workspace_bytes,
                                  block->dweight.workspace_bytes,
                                  block->dweight_first.workspace_bytes};
        for (int k = 0; k < 4; k++)
            if (bytes[k] > most) most = bytes[k];
    }
    return most;
}

static int64_t rounded_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static int64_t logit_bytes(const struct cuda_device *device)
{
    int64_t bytes = switch_number("FSDPD_CUDA_LOGITS");
    if (bytes > 0) return bytes;
    bytes = (int64_t)(device->memory / PART_OF_MEMORY);
    if (bytes < LEAST_LOGIT_BYTES) return LEAST_LOGIT_BYTES;
    return bytes < MOST_LOGIT_BYTES ? bytes : MOST_LOGIT_BYTES;
}

/* How often all multiprocessors compute a tile of dx, in blocks of `block` rows. The head's other
 * products have enough tiles for the last round hardly to count. */
static int64_t rounds_of(int64_t rows, int64_t columns, int64_t block, int64_t processors)
{
    int64_t wide = rounded_up(columns, TILE_COLUMNS) / TILE_COLUMNS;
    int64_t tiles = rounded_up(block, TILE_ROWS) / TILE_ROWS * wide;
    int64_t last = rounded_up(rows % block, TILE_ROWS) / TILE_ROWS * wide;
    return rows / block * (rounded_up(tiles, processors) / processors) +
           rounded_up(last, processors) / processors;
}

int64_t cuda_head_rows(int64_t rows, int64_t columns, int64_t most, int processors)
{
    if (most > TILE_ROWS) most = most / TILE_ROWS * TILE_ROWS;
    if (most < 1) most = 1;
    if (most >= rows) return rows;
    int64_t blocks = (rows + most - 1) / most;
    int64_t best = rounded_up((rows + blocks - 1) / blocks, TILE_ROWS);
    if (best > most) best = most;
    if (columns == 0) return best;
    for (int64_t block = most; block > TILE_ROWS && block >= most / 2; block -= TILE_ROWS)
        if (rounds_of(rows, columns, block, processors) <
            rounds_of(rows, columns, best, processors))
            best = block;
    return best;
}

static int64_t rows_of_block(const struct cuda_head *head, const struct cuda_device *device)
{
    const struct op_desc *desc = &head->base.op.desc;
    int64_t bytes = head->stride * (int64_t)dtype_size(logits_dtype(desc));
    bool makes_dx = is_backward(head) && desc->output_present[1];
    return cuda_head_rows(head->rows, makes_dx ? head->columns : 0, logit_bytes(device) / bytes,
                          device->processors);
}

static status_t prepare(struct cuda_head *head, struct cuda_device *device)
{
    const struct op_desc *desc = &head->base.op.desc;
    const struct tensor_type *weight = &desc->inputs[1];
    head->rows = tensor_element_count(&desc->inputs[3]);
    head->columns = weight->dims[1], head->classes = weight->dims[0];
    head->stride = rounded_up(head->classes, STRIDE);
    int64_t rows = rows_of_block(head, device);
    TRY(prepare_block(head, device, &head->blocks[0], rows));
    if (head->rows % rows != 0)
        TRY(prepare_block(head, device, &head->blocks[1], head->rows % rows));
    uint64_t end = 0, logits = (uint64_t)(rows * head->stride);
    head->losses = place(&end, (uint64_t)head->rows * sizeof(float));
    head->correct = place(&end, (uint64_t)head->rows * sizeof(float));
    head->logits = place(&end, logits * dtype_size(logits_dtype(desc)));
    head->gradients = head->logits;
    if (is_backward(head) && desc->inputs[0].dtype != logits_dtype(desc))
        head->gradients = place(&end, logits * sizeof(uint16_t));
    head->products = place(&end, largest_workspace(head));
    head->base.workspace_bytes = end;
    return NULL;
}

/* A block's gradients to dx, dweight and dbias. */
static status_t hand_back(struct cuda_head *head, struct head_block *block, struct cuda_lane *lane,
                          const struct kernel_call *call, int64_t from)
{
    const struct op_desc *desc = &head->base.op.desc;
    char *workspace = call->workspace;
    enum dtype dtype = desc->inputs[0].dtype;
    int64_t offset = from * head->columns * (int64_t)dtype_size(dtype);
    const char *x = (const char *)call->inputs[0] + offset;
    char *gradients = workspace + head->gradients, *products = workspace + head->products;
    if (desc->output_present[1])
        TRY(cuda_matmul_run(&block->dx, lane, call->inputs[1], gradients,
                            (char *)call->outputs[1] + offset, NULL, products));
    if (desc->output_present[2])
        TRY(cuda_matmul_run(from == 0 ? &block->dweight_first : &block->dweight, lane, x, gradients,
                            call->outputs[2], NULL, products));
    if (!desc->output_present[3]) return NULL;
    struct cuda_launch launch = cuda_launch_of(lane);
    int error =
        cuda_column_sum_apart(&launch, dtype, gradients, block->rows, head->classes, head->stride,
                              call->outputs[3], from > 0 || desc->accumulate[3], products);
    return cuda_status((cudaError_t)error, "the gradient of the head's bias");
}

static status_t run_block(struct cuda_head *head, struct head_block *block, struct cuda_lane *lane,
                          const struct kernel_call *call, int64_t from)
{
    const struct op_desc *desc = &head->base.op.desc;
    struct cuda_launch launch = cuda_launch_of(lane);
    char *workspace = call->workspace;
    enum dtype dtype = desc->inputs[0].dtype;
    const char *x =
        (const char *)call->inputs[0] + from * head->columns * (int64_t)dtype_size(dtype);
    bool backward = is_backward(head), counts = !backward && desc->output_present[1];
    char *logits = workspace + head->logits;
    TRY(cuda_matmul_run(&block->logits, lane, call->inputs[1], x, logits, NULL,
                        workspace + head->products));
    const struct cuda_logits of = {.logits = logits,
                                   .logits_dtype = logits_dtype(desc),
                                   .rows = block->rows,
                                   .classes = head->classes,
                                   .stride = head->stride,
                                   .bias = desc->input_present[2] ? call->inputs[2] : NULL,
                                   .bias_dtype = dtype,
                                   .target = (const int32_t *)call->inputs[3] + from,
                                   .scale = (float)op_loss_scale(desc, head->rows),
                                   .dtype = dtype,
                                   .gradient = backward ? workspace + head->gradients : NULL,
                                   .gradient_stride = head->stride,
                                   .losses = (float *)(void *)(workspace + head->losses) + from,
                                   .correct =
                                       counts ? (float *)(void *)(workspace + head->correct) + from
                                              : NULL};
    int error = cuda_cross_entropy_block(&launch, &of);
    TRY(cuda_status((cudaError_t)error, "the cross-entropy of a block of logits"));
    return backward ? hand_back(head, block, lane, call, from) : NULL;
}

static status_t run(struct cuda_prepared *prepared, struct cuda_lane *lane,
                    const struct kernel_call *call)
{
    struct cuda_head *head = (struct cuda_head *)prepared;
    const struct op_desc *desc = &prepared->op.desc;
    struct cuda_launch launch = cuda_launch_of(lane);
    char *workspace = call->workspace;
    float scale = (float)op_loss_scale(desc, head->rows);
    float *losses = (float *)(void *)(workspace + head->losses);
    for (int64_t from = 0; from < head->rows;) {
        struct head_block *block = &head->blocks[0];
        if (head->rows - from < block->rows) block = &head->blocks[1];
        TRY(run_block(head, block, lane, call, from));
        from += block->rows;
    }
    int error = cuda_sum(&launch, losses, head->rows, scale, call->outputs[0], desc->accumulate[0]);
    if (error == 0 && !is_backward(head) && desc->output_present[1])
        error = cuda_sum(&launch, (float *)(void *)(workspace + head->correct), head->rows, 1,
                         call->outputs[1], desc->accumulate[1]);
    return cuda_status((cudaError_t)error, "the sum of a loss");
}

static void release(struct cuda_prepared *prepared)
{
    struct cuda_head *head = (struct cuda_head *)prepared;
    for (int i = 0; i < SIZES; i++) {
        cuda_matmul_deinit(&head->blocks[i].logits);
        cuda_matmul_deinit(&head->blocks[i].dx);
        cuda_matmul_deinit(&head->blocks[i].dweight);
        cuda_matmul_deinit(&head->blocks[i].dweight_first);
    }
}

status_t cuda_head_prepare(struct cuda_device *device, const struct op_desc *desc,
                           struct cuda_prepared **prepared)
{
    struct cuda_head *head = mem_alloc(sizeof *head);
    head->base.op.desc = *desc;
    head->base.run = run;
    head->base.release = release;
    *prepared = &head->base;
    return prepare(head, device);
}
