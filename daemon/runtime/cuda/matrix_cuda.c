/*
 * Muon's whole matrices on CUDA: the momentum, and the iteration that makes an update nearly
 * orthogonal (kernels/muon.c), whose products are cuBLASLt's. A skipped step makes its gradient
 * orthogonal, too: the momentum and the optimizer read the gate, and nothing else reads the result.
 *
 * A device keeps the products of every size that it was asked for. They take the plan's scratch
 * memory: two squares of the smaller side, a matrix, and cuBLASLt's, at multiples of 256 bytes.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/muon.h"
#include "runtime/cuda/matmul.h"
#include "runtime/matrix_step.h"
#include "runtime/step_args.h"

enum { ALIGNMENT = CUDA_MATRIX_ALIGNMENT };

/* The products of an iteration, for matrices of that size. */
struct cuda_matrix {
    int64_t rows, columns;
    struct cuda_matmul gram; /* of the smaller side: g = x x', or x' x */
    struct cuda_matmul square;
    struct cuda_matmul whole; /* with x */
    struct cuda_matrix *next;
};

static int64_t side_of(const struct cuda_matrix *matrix)
{
    return matrix->rows < matrix->columns ? matrix->rows : matrix->columns;
}

static void free_matrix(struct cuda_matrix *matrix)
{
    cuda_matmul_deinit(&matrix->gram);
    cuda_matmul_deinit(&matrix->square);
    cuda_matmul_deinit(&matrix->whole);
    free(matrix);
}

void cuda_matrices_forget(struct cuda_device *device)
{
    for (struct cuda_matrix *matrix = device->matrices, *next; matrix != NULL; matrix = next) {
        next = matrix->next;
        free_matrix(matrix);
    }
    device->matrices = NULL;
}

/* x (rows, columns) is cuBLAS's (columns, rows). */
static status_t make_products(struct cuda_matrix *matrix, struct cuda_device *device)
{
    bool wide = matrix->rows <= matrix->columns;
    int64_t side = side_of(matrix), depth = wide ? matrix->columns : matrix->rows;
    const struct matmul_shape gram = {
        .m = side, .n = side, .k = depth, .a_transposed = wide, .b_transposed = !wide};
    const struct matmul_shape square = {.m = side, .n = side, .k = side};
    const struct matmul_shape whole = {.m = matrix->columns, .n = matrix->rows, .k = side};
    TRY(cuda_matmul_init(&matrix->gram, device, &gram));
    TRY(cuda_matmul_init(&matrix->square, device, &square));
    return cuda_matmul_init(&matrix->whole, device, &whole);
}

static struct cuda_matrix *find(const struct cuda_device *device, int64_t rows, int64_t columns)
{
    struct cuda_matrix *matrix = device->matrices;
    while (matrix != NULL && (matrix->rows != rows || matrix->columns != columns))
        matrix = matrix->next;
    return matrix;
}

status_t cuda_prepare_matrix(struct device *base, int64_t rows, int64_t columns)
{
    struct cuda_device *device = cuda_device(base);
    if (find(device, rows, columns) != NULL) return NULL;
    TRY(cuda_use(device));
    struct cuda_matrix *made = mem_alloc(sizeof *made);
    made->rows = rows, made->columns = columns;
    status_t status = make_products(made, device);
    if (status != NULL) {
        free_matrix(made);
        return status_wrap(status, "a matrix of %lld x %lld", (long long)rows, (long long)columns);
    }
    made->next = device->matrices;
    device->matrices = made;
    return NULL;
}

/* Parts of the scratch memory. */
struct matrix_scratch {
    float *gram, *sum, *other;
    void *workspace;
};

static struct matrix_scratch divide(const struct cuda_matrix *matrix, char *memory)
{
    size_t side = (size_t)side_of(matrix), count = (size_t)(matrix->rows * matrix->columns);
    size_t square = round_up(side * side * sizeof(float), ALIGNMENT);
    return (struct matrix_scratch){
        .gram = (float *)(void *)memory,
        .sum = (float *)(void *)(memory + square),
        .other = (float *)(void *)(memory + 2 * square),
        .workspace = memory + 2 * square + round_up(count * sizeof(float), ALIGNMENT),
    };
}

/* One step of the iteration, from `x` to `next`, which is multiplied by `scale`. */
static status_t iterate(struct cuda_lane *lane, struct cuda_matrix *matrix,
                        const struct matrix_scratch *scratch, const float *x, float scale,
                        float *next)
{
    bool wide = matrix->rows <= matrix->columns;
    const float *gram = scratch->gram, *sum = scratch->sum;
    const struct matmul_sum polynomial = {KERNEL_MUON_C, KERNEL_MUON_B, gram};
    const struct matmul_sum last = {scale, scale * KERNEL_MUON_A, x};
    TRY(cuda_matmul_run(&matrix->gram, lane, x, x, scratch->gram, NULL, scratch->workspace));
    TRY(cuda_matmul_run_sum(&matrix->square, lane, gram, gram, &polynomial, scratch->sum,
                            scratch->workspace));
    return cuda_matmul_run_sum(&matrix->whole, lane, wide ? x : sum, wide ? sum : x, &last, next,
                               scratch->workspace);
}

/* In place: the first step reads where the last one does not write, and that reads the other. */
static status_t make_orthogonal(struct cuda_lane *lane, struct cuda_matrix *matrix, int steps,
                                float scale, float *values, char *memory)
{
    struct cuda_launch launch = cuda_launch_of(lane);
    const struct matrix_scratch scratch = divide(matrix, memory);
    size_t count = (size_t)(matrix->rows * matrix->columns);
    double *squares = lane->norm_parts + CUDA_NORM_PARTS;
    float *x = steps % 2 == 0 ? values : scratch.other;
    TRY_CUDA(cudaMemsetAsync(squares, 0, sizeof *squares, lane->stream));
    int error = cuda_norm(&launch, false, count, values, lane->norm_parts, squares);
    if (error == 0) error = cuda_muon_normalize(&launch, count, x, values, squares);
    TRY(cuda_status((cudaError_t)error, "the norm of a matrix"));
    for (int step = 0; step < steps; step++) {
        float *next = x == values ? scratch.other : values;
        TRY(iterate(lane, matrix, &scratch, x, step == steps - 1 ? scale : 1, next));
        x = next;
    }
    return NULL;
}

static status_t orthogonalize(struct cuda_lane *lane, const struct matrix_work *work)
{
    const struct optimizer_step *step = &work->step;
    for (int m = 0; m < work->matrix_count; m++) {
        const struct plan_matrix *it = &work->matrices[m];
        if (it->owner != work->rank) continue;
        TRY(cuda_prepare_matrix(lane->base.device, it->rows, it->columns)); /* nothing to do */
        TRY(make_orthogonal(lane, find(cuda_device(lane->base.device), it->rows, it->columns),
                            step->ns_steps, step_muon_scale(step, it->rows, it->columns),
                            work->values + (work->gathered ? it->place : it->offset),
                            work->scratch));
    }
    return NULL;
}

static status_t move(struct cuda_lane *lane, const struct matrix_work *work,
                     const struct muon_args *args, const struct cuda_launch *launch)
{
    const struct cuda_gate_in gate = cuda_gate_of(work->stats, work->gated);
    int error = 0;
    for (int r = 0; r < work->range_count && error == 0; r++) {
        const struct plan_range *range = &work->ranges[r];
        if (range->matrix)
            error = cuda_muon_momentum(launch, (size_t)range->count, work->values + range->from,
                                       work->average + range->from, args, &gate);
    }
    return cuda_enqueued(lane, error, "the momentum");
}

status_t cuda_lane_matrices(struct lane_queue *base, const struct matrix_work *work)
{
    struct cuda_lane *lane = cuda_lane(base);
    struct cuda_launch launch = cuda_launch_of(lane);
    const struct muon_args args = step_muon_args(&work->step, 1); /* the scale is the device's */
    bool moves = work->kind == INSTRUCTION_MOMENTUM;
    if (moves) TRY(cuda_take_value(lane, &args, sizeof args, &launch.live));
    if (!cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    if (moves) return move(lane, work, &args, &launch);
    status_t status = orthogonalize(lane, work);
    if (status != NULL) return cuda_named(lane, status);
    return cuda_enqueued(lane, cudaSuccess, "products of matrices");
}
