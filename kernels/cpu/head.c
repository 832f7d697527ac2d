/*
 * A linear layer fused with the cross-entropy of its output: forward, or forward and backward.
 * Works in chunks of rows. oneDNN writes a chunk's scores to the workspace, at most
 * MOST_SCORE_BYTES; then each row's loss is computed, and its scores' gradient replaces the scores;
 * then come the chunk's products for the gradients. On bf16 the scores are f32, and their gradient
 * is rounded once.
 *
 * Where nothing or only x has a gradient, a chunk has many rows and a block of the classes, so that
 * every product reads the weights once. A row's sum and its gradient go by the largest score so far
 * and shrink where a larger one comes, as in attention (Dao et al., "FlashAttention", 2022);
 * dividing by the sum, and the target's part, which would cancel, come last. The weights' gradient
 * needs each row's sum before its product, so it has all classes of a few rows at a time.
 *
 * Losses are summed in double from the first row to the last, and chunks run one after the other.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/program.h"

#define MOST_SCORE_BYTES ((int64_t)32 << 20)
enum { MOST_ROWS = 1024, FEWEST_ROWS = 32, CLASSES_OF_BLOCK = 1024, ALIGNMENT = 64 };

/* c = a * b, for the matrices of one chunk. */
struct head_product {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, c;
};

/* The products for one chunk size: all chunks have the same size except the last. */
struct chunk {
    int64_t rows, classes; /* 0: there is no chunk of this size */
    struct head_product scores, dx;
    struct head_product first_dweight, dweight; /* the first may overwrite the gradient */
};

struct cpu_head {
    dnnl_stream_t stream;
    struct chunk chunks[2][2]; /* [the last of the rows][the last of the classes] */
    int64_t rows, columns, classes, chunk_rows, chunk_classes;
    bool bf16;
    bool in_blocks;           /* of classes */
    bool dx_apart;            /* dx is summed in the workspace */
    dnnl_memory_t scratchpad; /* NULL if none is needed */
    uint64_t scratchpad_bytes;
    /* In the workspace: */
    uint64_t scores_at, gradients_at, rows_at, dx_at, scratchpad_at;
};

/* What is known of a row of a chunk. */
struct head_row {
    double loss;      /* in blocks: at first the sum of exp(score - max), NaN if a score is NaN
                       * or infinite */
    float max, score; /* in blocks: the largest score so far, and the target's */
    bool correct;
};

static void product_deinit(struct head_product *product)
{
    if (product->primitive != NULL) dnnl_primitive_destroy(product->primitive);
    dnnl_memory_t memories[] = {product->a, product->b, product->bias, product->c};
    for (int i = 0; i < 4; i++)
        if (memories[i] != NULL) dnnl_memory_destroy(memories[i]);
}

static void head_free(void *state)
{
    struct cpu_head *head = state;
    for (int i = 0; i < 4; i++) {
        struct chunk *chunk = &head->chunks[i / 2][i % 2];
        product_deinit(&chunk->scores);
        product_deinit(&chunk->dx);
        product_deinit(&chunk->first_dweight);
        product_deinit(&chunk->dweight);
    }
    if (head->scratchpad != NULL) dnnl_memory_destroy(head->scratchpad);
    if (head->stream != NULL) dnnl_stream_destroy(head->stream);
    free(head);
}

static dnnl_data_type_t data_type(bool bf16)
{
    return bf16 ? dnnl_bf16 : dnnl_f32;
}

/* A dense matrix, or the transpose of one. */
struct matrix {
    int64_t rows, columns;
    bool bf16, transposed;
};

static status_t make_memory(const struct kernel *kernel, const struct matrix *matrix,
                            dnnl_memory_desc_t *format, dnnl_memory_t *memory)
{
    dnnl_dims_t dims = {matrix->rows, matrix->columns};
    dnnl_dims_t strides = {matrix->transposed ? 1 : matrix->columns,
                           matrix->transposed ? matrix->rows : 1};
    dnnl_engine_t engine = NULL;
    TRY(program_engine(kernel, &engine));
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_desc_init_by_strides(format, 2, dims, data_type(matrix->bf16), strides));
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_create(memory, format, engine, DNNL_MEMORY_NONE));
    return NULL;
}

static status_t make_product(struct kernel *kernel, struct head_product *product, struct matrix a,
                             struct matrix b, const struct matrix *bias, struct matrix c, bool sum)
{
    struct cpu_head *head = kernel->state;
    dnnl_memory_desc_t formats[3], bias_format;
    TRY(make_memory(kernel, &a, &formats[0], &product->a));
    TRY(make_memory(kernel, &b, &formats[1], &product->b));
    if (bias != NULL) TRY(make_memory(kernel, bias, &bias_format, &product->bias));
    TRY(make_memory(kernel, &c, &formats[2], &product->c));
    dnnl_primitive_desc_t primitive_desc = NULL;
    TRY(program_matmul(kernel, formats, bias != NULL ? &bias_format : NULL, sum, &primitive_desc));
    const dnnl_memory_desc_t *scratchpad =
        dnnl_primitive_desc_query_md(primitive_desc, dnnl_query_scratchpad_md, 0);
    uint64_t bytes = scratchpad == NULL ? 0 : dnnl_memory_desc_get_size(scratchpad);
    if (bytes > head->scratchpad_bytes) head->scratchpad_bytes = bytes;
    dnnl_status_t error = dnnl_primitive_create(&product->primitive, primitive_desc);
    dnnl_primitive_desc_destroy(primitive_desc);
    TRY_DNNL(kernel, "make a primitive", error);
    return NULL;
}

static status_t make_chunk(struct kernel *kernel, struct chunk *chunk, int64_t rows,
                           int64_t classes)
{
    const struct cpu_head *head = kernel->state;
    const struct op_desc *desc = &kernel->desc;
    int64_t columns = head->columns;
    bool bf16 = head->bf16, backward = desc->kind == OP_LINEAR_CROSS_ENTROPY_BACKWARD;
    if (rows == 0 || classes == 0) return NULL;
    chunk->rows = rows;
    chunk->classes = classes;
    struct matrix x = {rows, columns, bf16, false}, scores = {rows, classes, false, false};
    struct matrix bias = {1, classes, bf16, false};
    struct matrix weight = {classes, columns, bf16, false};
    struct matrix weight_transposed = {columns, classes, bf16, true};
    TRY(make_product(kernel, &chunk->scores, x, weight_transposed,
                     desc->input_present[2] ? &bias : NULL, scores, false));
    struct matrix gradients = {rows, classes, bf16, false};
    struct matrix gradients_transposed = {classes, rows, bf16, true};
    struct matrix dx = {rows, columns, bf16 && !head->in_blocks, false};
    if (backward && desc->output_present[1])
        TRY(make_product(kernel, &chunk->dx, gradients, weight, NULL, dx,
                         head->in_blocks || desc->accumulate[1]));
    if (!backward || !desc->output_present[2]) return NULL;
    struct matrix dweight = {classes, columns, false, false};
    TRY(make_product(kernel, &chunk->dweight, gradients_transposed, x, NULL, dweight, true));
    if (desc->accumulate[2]) return NULL;
    return make_product(kernel, &chunk->first_dweight, gradients_transposed, x, NULL, dweight,
                        false);
}

/* A chunk's rows and classes. */
struct head_job {
    const struct kernel *kernel;
    const struct cpu_head *head;
    const struct kernel_call *call;
    int64_t first, rows, first_class, classes;
    double scale; /* of a row's loss */
    bool backward;
};

static void *in_workspace(const struct head_job *job, uint64_t offset)
{
    return (char *)job->call->workspace + offset;
}

/* Whether the target is the first maximum: no earlier score is as large and no later one is larger.
 * NaN is larger than any number. */
static bool is_correct(const float *scores, int64_t classes, int64_t target)
{
    float score = scores[target];
    for (int64_t i = 0; i < target; i++)
        if (isnan(scores[i]) || scores[i] >= score) return false;
    for (int64_t i = target + 1; i < classes; i++)
        if (!isnan(score) && (isnan(scores[i]) || scores[i] > score)) return false;
    return true;
}

static int32_t target_of(const struct head_job *job, int64_t row)
{
    return ((const int32_t *)job->call->inputs[3])[job->first + row];
}

static struct head_row *row_of(const struct head_job *job, int64_t row)
{
    return (struct head_row *)in_workspace(job, job->head->rows_at) + row;
}

static void do_row(const struct head_job *job, int64_t row)
{
    const struct cpu_head *head = job->head;
    const struct cpu_loops *loops = cpu_loops_get();
    size_t classes = (size_t)head->classes;
    float *scores = (float *)in_workspace(job, head->scores_at) + (size_t)row * classes;
    int32_t target = target_of(job, row);
    struct head_row *result = row_of(job, row);
    *result = (struct head_row){0};
    if (target >= 0) {
        float score = scores[target];
        result->loss = loops->softmax_scaled(classes, scores, (float)job->scale, true) - score;
        scores[target] -= (float)job->scale;
    } else {
        memset(scores, 0, classes * sizeof *scores);
    }
    if (head->bf16)
        loops->f32_to_bf16(classes,
                           (uint16_t *)in_workspace(job, head->gradients_at) +
                               (size_t)row * classes,
                           scores);
}

/* Where the gradient of a row's x is summed. */
static float *dx_of(const struct head_job *job, int64_t row)
{
    const struct cpu_head *head = job->head;
    float *dx = head->dx_apart ? in_workspace(job, head->dx_at)
                               : (float *)job->call->outputs[1] + job->first * head->columns;
    return dx + row * head->columns;
}

static void scores_part(const void *argument, size_t begin, size_t end)
{
    const struct head_job *job = argument;
    const struct cpu_loops *loops = cpu_loops_get();
    size_t classes = (size_t)job->classes, columns = (size_t)job->head->columns;
    for (size_t i = begin; i < end; i++) {
        struct head_row *row = row_of(job, (int64_t)i);
        float *scores = (float *)in_workspace(job, job->head->scores_at) + i * classes;
        int64_t target = target_of(job, (int64_t)i), at = target - job->first_class;
        if (target < 0) {
            memset(scores, 0, classes * sizeof *scores);
        } else {
            float before = row->max, factor = 1;
            bool here = at >= 0 && at < job->classes;
            if (here) {
                row->score = scores[at];
                row->correct =
                    (job->first_class == 0 || before < row->score || isnan(row->score)) &&
                    (!isnan(row->loss) || before == INFINITY) &&
                    is_correct(scores, job->classes, at);
            }
            double sum = loops->exp_block(classes, scores, &row->max);
            if (here) scores[at] = 0; /* its part comes last */
            if (row->max > before) {
                factor = (float)exp((double)before - row->max);
                if (job->backward) loops->scale(columns, dx_of(job, (int64_t)i), factor);
            }
            row->loss = row->loss * factor + sum;
        }
        if (job->head->bf16 && job->backward)
            loops->f32_to_bf16(classes,
                               (uint16_t *)in_workspace(job, job->head->gradients_at) + i * classes,
                               scores);
    }
}

/* Makes the gradient of a row's x, after all blocks. */
static void finish_dx(const struct head_job *job, int64_t row)
{
    const struct cpu_head *head = job->head;
    const struct kernel *kernel = job->kernel;
    const struct head_row *sums = row_of(job, row);
    int64_t target = target_of(job, row), columns = head->columns;
    size_t width = (size_t)columns, at = (size_t)(job->first + row) * width;
    float *dx = dx_of(job, row);
    if (target >= 0) {
        double p = exp((double)sums->score - sums->max) / sums->loss;
        float factor = (float)(job->scale / sums->loss), back = (float)(job->scale * (p - 1));
        const void *weight = job->call->inputs[1];
        for (int64_t i = 0; i < columns; i++) {
            int64_t from = target * columns + i;
            float w = head->bf16 ? bfloat16_to_f32(((const uint16_t *)weight)[from])
                                 : ((const float *)weight)[from];
            dx[i] = dx[i] * factor + back * w;
        }
    }
    if (!head->dx_apart) return;
    if (head->bf16) {
        uint16_t *out = (uint16_t *)job->call->outputs[1] + at;
        for (int64_t i = 0; kernel->desc.accumulate[1] && i < columns; i++)
            dx[i] += bfloat16_to_f32(out[i]);
        cpu_loops_get()->f32_to_bf16(width, out, dx);
    } else {
        cpu_loops_get()->copy_add(width, (float *)job->call->outputs[1] + at, dx);
    }
}

static void finish_part(const void *argument, size_t begin, size_t end)
{
    const struct head_job *job = argument;
    for (size_t i = begin; i < end; i++) {
        struct head_row *row = row_of(job, (int64_t)i);
        if (job->backward) finish_dx(job, (int64_t)i);
        if (target_of(job, (int64_t)i) < 0) continue;
        bool largest = row->max == row->score && (!isnan(row->loss) || row->score == INFINITY);
        row->correct = row->correct && (largest || isnan(row->score));
        row->loss = row->max + log(row->loss) - row->score;
    }
}

static void rows_part(const void *argument, size_t begin, size_t end)
{
    for (size_t row = begin; row < end; row++) do_row(argument, (int64_t)row);
}

static status_t run_product(const struct head_job *job, const struct head_product *product,
                            const void *a, const void *b, const void *bias, void *c)
{
    const struct kernel *kernel = job->kernel;
    const struct cpu_head *head = job->head;
    TRY_DNNL(kernel, "set an address", dnnl_memory_set_data_handle(product->a, (void *)a));
    TRY_DNNL(kernel, "set an address", dnnl_memory_set_data_handle(product->b, (void *)b));
    TRY_DNNL(kernel, "set an address", dnnl_memory_set_data_handle(product->c, c));
    dnnl_exec_arg_t arguments[5] = {{DNNL_ARG_SRC, product->a},
                                    {DNNL_ARG_WEIGHTS, product->b},
                                    {DNNL_ARG_DST, product->c}};
    int count = 3;
    if (product->bias != NULL) {
        TRY_DNNL(kernel, "set an address",
                 dnnl_memory_set_data_handle(product->bias, (void *)bias));
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, product->bias};
    }
    if (head->scratchpad != NULL)
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, head->scratchpad};
    TRY_DNNL(kernel, "run",
             dnnl_primitive_execute(product->primitive, head->stream, count, arguments));
    TRY_DNNL(kernel, "finish", dnnl_stream_wait(head->stream));
    return NULL;
}

static const void *gradients_of(const struct head_job *job)
{
    return in_workspace(job, job->head->bf16 ? job->head->gradients_at : job->head->scores_at);
}

static void run_rows(const struct head_job *job,
                     void (*function)(const void *argument, size_t begin, size_t end))
{
    size_t grain = job->classes < CPU_GRAIN ? (size_t)(CPU_GRAIN / job->classes) : 1;
    cpu_parallel(job->kernel->threads, (size_t)job->rows, grain, function, job);
}

/* Where no weight has a gradient: makes the losses and that of x, block by block of the classes. */
static status_t run_blocks(struct head_job *job, const struct chunk *chunks, const void *x)
{
    const struct cpu_head *head = job->head;
    const void *const *in = job->call->inputs;
    size_t element = dtype_size(job->kernel->desc.inputs[0].dtype);
    for (int64_t row = 0; row < job->rows; row++)
        *row_of(job, row) = (struct head_row){.max = -INFINITY};
    if (job->backward)
        memset(dx_of(job, 0), 0, (size_t)(job->rows * head->columns) * sizeof(float));
    for (job->first_class = 0; job->first_class < head->classes;
         job->first_class += head->chunk_classes) {
        const struct chunk *chunk = &chunks[head->classes - job->first_class < head->chunk_classes];
        size_t first = (size_t)job->first_class * element;
        const char *weight = (const char *)in[1] + first * (size_t)head->columns;
        const char *bias = in[2] == NULL ? NULL : (const char *)in[2] + first;
        job->classes = chunk->classes;
        TRY(run_product(job, &chunk->scores, x, weight, bias, in_workspace(job, head->scores_at)));
        run_rows(job, scores_part);
        if (job->backward)
            TRY(run_product(job, &chunk->dx, gradients_of(job), weight, NULL, dx_of(job, 0)));
    }
    run_rows(job, finish_part);
    return NULL;
}

static status_t run_gradients(const struct head_job *job, const struct chunk *chunk, const void *x)
{
    const struct cpu_head *head = job->head;
    const struct op_desc *desc = &job->kernel->desc;
    void *const *out = job->call->outputs;
    const void *gradients = gradients_of(job);
    if (desc->output_present[1]) {
        size_t at = (size_t)(job->first * head->columns) * dtype_size(desc->outputs[1].dtype);
        TRY(run_product(job, &chunk->dx, gradients, job->call->inputs[1], NULL,
                        (char *)out[1] + at));
    }
    bool begins = job->first == 0;
    if (desc->output_present[2])
        TRY(run_product(job,
                        begins && !desc->accumulate[2] ? &chunk->first_dweight : &chunk->dweight,
                        gradients, x, NULL, out[2]));
    if (desc->output_present[3])
        cpu_loops_get()->sum_rows((size_t)job->rows, (size_t)head->classes, out[3],
                                  in_workspace(job, head->scores_at),
                                  desc->accumulate[3] || !begins);
    return NULL;
}

/* Makes the losses of a few rows, and their part of the gradients. */
static status_t run_chunk(struct head_job *job, const struct chunk *chunk, const void *x)
{
    const void *const *in = job->call->inputs;
    job->classes = chunk->classes;
    TRY(run_product(job, &chunk->scores, x, in[1], in[2], in_workspace(job, job->head->scores_at)));
    run_rows(job, rows_part);
    return run_gradients(job, chunk, x);
}

static void put(const struct head_job *job, int output, double value)
{
    float *to = job->call->outputs[output];
    *to = (float)(job->kernel->desc.accumulate[output] ? *to + value : value);
}

static status_t run_head(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct cpu_head *head = kernel->state;
    struct head_job job = {.kernel = kernel,
                           .head = head,
                           .call = call,
                           .scale = op_loss_scale(&kernel->desc, head->rows),
                           .backward = kernel->desc.kind == OP_LINEAR_CROSS_ENTROPY_BACKWARD};
    if (head->scratchpad != NULL)
        TRY_DNNL(kernel, "set an address",
                 dnnl_memory_set_data_handle(head->scratchpad,
                                             in_workspace(&job, head->scratchpad_at)));
    size_t row_bytes = (size_t)head->columns * dtype_size(kernel->desc.inputs[0].dtype);
    double loss = 0, correct = 0;
    for (job.first = 0; job.first < head->rows; job.first += head->chunk_rows) {
        int64_t left = head->rows - job.first;
        const struct chunk *chunks = head->chunks[left < head->chunk_rows];
        const char *x = (const char *)call->inputs[0] + (size_t)job.first * row_bytes;
        job.rows = chunks->rows;
        TRY(head->in_blocks ? run_blocks(&job, chunks, x) : run_chunk(&job, chunks, x));
        for (int64_t r = 0; r < job.rows; r++) {
            loss += row_of(&job, r)->loss;
            correct += row_of(&job, r)->correct;
        }
    }
    put(&job, 0, loss * job.scale);
    if (!job.backward && kernel->desc.output_present[1]) put(&job, 1, correct);
    return NULL;
}

/* Makes the chunks about equal; more than one unless there are few rows. */
static int64_t rows_of_chunk(const struct cpu_head *head, bool backward)
{
    int64_t row_bytes = head->chunk_classes * (head->bf16 && backward ? 6 : 4);
    int64_t most = MOST_SCORE_BYTES / row_bytes;
    if (most > MOST_ROWS) most = MOST_ROWS;
    if (most < 1) most = 1;
    int64_t chunks = (head->rows + most - 1) / most;
    if (chunks == 1 && head->rows > FEWEST_ROWS && !head->in_blocks) chunks = 2;
    return (head->rows + chunks - 1) / chunks;
}

static bool makes_blocks(const struct op_desc *desc)
{
    const bool *gradients = desc->output_present;
    return desc->kind == OP_LINEAR_CROSS_ENTROPY ||
           (gradients[1] && !gradients[2] && !gradients[3]);
}

static uint64_t take(uint64_t *end, uint64_t bytes)
{
    uint64_t offset = *end;
    *end += round_up(bytes, ALIGNMENT);
    return offset;
}

static status_t make_scratchpad(struct kernel *kernel)
{
    struct cpu_head *head = kernel->state;
    if (head->scratchpad_bytes == 0) return NULL;
    dnnl_engine_t engine = NULL;
    TRY(program_engine(kernel, &engine));
    dnnl_memory_desc_t format;
    dnnl_dims_t dims = {(dnnl_dim_t)head->scratchpad_bytes};
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_desc_init_by_tag(&format, 1, dims, dnnl_u8, dnnl_a));
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_create(&head->scratchpad, &format, engine, DNNL_MEMORY_NONE));
    return NULL;
}

status_t cpu_prepare_head(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    bool backward = desc->kind == OP_LINEAR_CROSS_ENTROPY_BACKWARD;
    struct cpu_head *head = mem_alloc(sizeof *head);
    kernel->state = head;
    kernel->release = head_free;
    head->rows = tensor_element_count(&desc->inputs[3]);
    head->classes = desc->inputs[1].dims[0];
    head->columns = desc->inputs[1].dims[1];
    head->bf16 = desc->inputs[0].dtype == DTYPE_BF16;
    head->in_blocks = makes_blocks(desc);
    head->dx_apart = backward && head->in_blocks && (head->bf16 || desc->accumulate[1]);
    head->chunk_classes =
        head->in_blocks && head->classes > CLASSES_OF_BLOCK ? CLASSES_OF_BLOCK : head->classes;
    head->chunk_rows = rows_of_chunk(head, backward);
    dnnl_engine_t engine = NULL;
    TRY(program_engine(kernel, &engine));
    TRY_DNNL(kernel, "make a stream",
             dnnl_stream_create(&head->stream, engine, dnnl_stream_default_flags));
    const int64_t rows[] = {head->chunk_rows, head->rows % head->chunk_rows};
    const int64_t classes[] = {head->chunk_classes, head->classes % head->chunk_classes};
    for (int i = 0; i < 4; i++)
        TRY(make_chunk(kernel, &head->chunks[i / 2][i % 2], rows[i / 2], classes[i % 2]));
    TRY(make_scratchpad(kernel));
    uint64_t scores = (uint64_t)(head->chunk_rows * head->chunk_classes), end = 0;
    head->scores_at = take(&end, scores * sizeof(float));
    if (head->bf16 && backward) head->gradients_at = take(&end, scores * sizeof(uint16_t));
    head->rows_at = take(&end, (uint64_t)head->chunk_rows * sizeof(struct head_row));
    if (head->dx_apart)
        head->dx_at = take(&end, (uint64_t)(head->chunk_rows * head->columns) * sizeof(float));
    head->scratchpad_at = take(&end, head->scratchpad_bytes);
    kernel->workspace_bytes = end;
    kernel->held_bytes = sizeof *head;
    kernel->run = run_head;
    return NULL;
}
