/*
 * Adafactor: the elements of kernels/adafactor.c. Sums are doubles, whose order depends on shapes
 * alone: a row's is that of a warp, a column's that of 32 threads, which have every 32nd row, and a
 * parameter's that of blocks whose number depends on its length.
 */
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/platform.h"

namespace fsdpd
{

/* Columns that a block sums at a time, 32 bytes of a row; and ranks' sums per launch. */
enum { STRIP = 8, WAYS = BLOCK / STRIP, SENT_MAX = 32 };

static inline int64_t first_row(const struct kernel_factor *of)
{
    return of->first / of->width;
}

static inline int64_t row_count(const struct kernel_factor *of)
{
    return (of->first + of->count - 1) / of->width + 1 - first_row(of);
}

__global__ void __launch_bounds__(BLOCK)
    row_sums(const struct kernel_factor of, int64_t first, int64_t rows, const float *grad,
             double *sums, cuda_gate_in gate)
{
    float scale;
    if (!read_gate(gate, &scale)) return;
    int64_t warp = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
    NOT_UNROLLED for (int64_t r = warp; r < rows; r += (int64_t)gridDim.x * (BLOCK / WARP))
    {
        int64_t from = (first + r) * of.width - of.first, end = from + of.width;
        if (from < 0) from = 0;
        if (end > of.count) end = of.count;
        double sum = 0;
        UNROLLED_4 for (int64_t i = from + threadIdx.x % WARP; i < end; i += WARP)
        {
            sum += (double)grad[i] * grad[i];
        }
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0) sums[first + r] = sum * scale * scale;
    }
}

/* The rows of the piece, and those of the matrix that a strip is of. */
__global__ void __launch_bounds__(BLOCK)
    column_sums(const struct kernel_factor of, int64_t first, int64_t rows, const float *grad,
                double *sums, cuda_gate_in gate)
{
    SHARED(double, ways, BLOCK);
    float scale;
    if (!read_gate(gate, &scale)) return;
    int64_t strips = (of.width + STRIP - 1) / STRIP, top = first / of.height;
    int64_t strip_count = ((first + rows - 1) / of.height + 1 - top) * strips;
    NOT_UNROLLED for (int64_t s = blockIdx.x; s < strip_count; s += gridDim.x)
    {
        int64_t matrix = top + s / strips, column = s % strips * STRIP + threadIdx.x % STRIP;
        int64_t row = matrix * of.height, last = row + of.height;
        if (row < first) row = first;
        if (last > first + rows) last = first + rows;
        double sum = 0;
        UNROLLED_4 for (row += threadIdx.x / STRIP; row < last; row += WAYS)
        {
            int64_t i = row * of.width + column - of.first;
            float value = column < of.width && i >= 0 && i < of.count ? grad[i] : 0;
            sum += (double)value * value;
        }
        __syncthreads(); /* the strip before was read */
        ways[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x >= STRIP || column >= of.width) continue;
        for (int way = 1; way < WAYS; way++) sum += ways[way * STRIP + threadIdx.x];
        sums[matrix * of.width + column] = sum * scale * scale;
    }
}

int cuda_factor_sums(const struct cuda_launch *launch, const struct kernel_factor *of,
                     const float *grad, double *rows, double *columns,
                     const struct cuda_gate_in *gate)
{
    int64_t first = first_row(of), count = row_count(of);
    int64_t matrices = (first + count - 1) / of->height + 1 - first / of->height;
    int64_t strips = (of->width + STRIP - 1) / STRIP * matrices;
    TRY_LAUNCH(start(launch, row_sums, grid_of_rows<WARP>(launch, count), BLOCK, *of, first, count,
                     grad, rows, *gate));
    return start(launch, column_sums, grid_of_rows<BLOCK>(launch, strips), BLOCK, *of, first, count,
                 grad, columns, *gate);
}

/* What some ranks sent, one behind the other. */
struct sent_sums {
    struct cuda_factor_part parts[SENT_MAX];
    int count;
    bool first;
};

__global__ void __launch_bounds__(BLOCK)
    add_sent(const sent_sums sent, const double *from, double *sums, int64_t rows, int64_t columns,
             cuda_gate_in gate)
{
    float scale;
    if (!read_gate(gate, &scale)) return;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < rows + columns;
         i += (int64_t)gridDim.x * BLOCK) {
        double sum = sent.first ? 0 : sums[i];
        const double *at = from;
        NOT_UNROLLED for (int p = 0; p < sent.count; p++)
        {
            const struct cuda_factor_part &part = sent.parts[p];
            int64_t row = i - part.first_row, column = i - rows - part.first_column;
            if (i < rows && row >= 0 && row < part.rows) sum += at[row];
            if (i >= rows && column >= 0 && column < part.columns) sum += at[part.rows + column];
            at += part.rows + part.columns;
        }
        sums[i] = sum;
    }
}

int cuda_factor_collect(const struct cuda_launch *launch, const struct cuda_factor_part *parts,
                        int count, const double *from, double *sums, int64_t rows, int64_t columns,
                        const struct cuda_gate_in *gate)
{
    for (int done = 0; done < count; done += SENT_MAX) {
        sent_sums sent = {};
        sent.first = done == 0;
        sent.count = count - done < SENT_MAX ? count - done : (int)SENT_MAX;
        const double *begin = from;
        for (int p = 0; p < sent.count; p++) {
            sent.parts[p] = parts[done + p];
            from += sent.parts[p].rows + sent.parts[p].columns;
        }
        TRY_LAUNCH(start(launch, add_sent, grid_of(launch, rows + columns), BLOCK, sent, begin,
                         sums, rows, columns, *gate));
    }
    return 0;
}

__global__ void __launch_bounds__(BLOCK)
    move_state(const double *sums, float *state, float *factors, int64_t rows, int64_t columns,
               double width, double height, const struct factor_args given,
               const struct factor_args *live, cuda_gate_in gate)
{
    const struct factor_args args = live != nullptr ? *live : given;
    float scale;
    if (!read_gate(gate, &scale)) return;
    int64_t step = (int64_t)gridDim.x * BLOCK;
    NOT_UNROLLED for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < rows + columns;
                      i += step)
    {
        float mean = (float)(sums[i] / (i < rows ? width : height));
        factors[i] = state[i] = lerp(state[i], mean, args.weight, args.rest);
    }
}

/* A block per matrix. */
__global__ void __launch_bounds__(BLOCK)
    divide_rows(const float *state, float *factors, int64_t matrices, int64_t height,
                const struct factor_args given, const struct factor_args *live, cuda_gate_in gate)
{
    SHARED(double, scratch, BLOCK / WARP);
    const struct factor_args args = live != nullptr ? *live : given;
    float scale;
    if (!read_gate(gate, &scale)) return;
    NOT_UNROLLED for (int64_t m = blockIdx.x; m < matrices; m += gridDim.x)
    {
        double sum = 0;
        for (int64_t i = threadIdx.x; i < height; i += BLOCK) sum += state[m * height + i];
        float mean = (float)(group_sum<BLOCK>(sum, scratch) / (double)height);
        if (mean < args.least_mean) mean = args.least_mean;
        for (int64_t i = threadIdx.x; i < height; i += BLOCK) factors[m * height + i] /= mean;
    }
}

int cuda_factor_renew(const struct cuda_launch *launch, const struct kernel_factor *of,
                      const double *sums, float *state, float *factors,
                      const struct factor_args *args, const struct cuda_gate_in *gate)
{
    int64_t rows = of->count / of->width, columns = of->count / of->height;
    const struct factor_args *live = (const struct factor_args *)launch->live;
    TRY_LAUNCH(start(launch, move_state, grid_of(launch, rows + columns), BLOCK, sums, state,
                     factors, rows, columns, (double)of->width, (double)of->height, *args, live,
                     *gate));
    return start(launch, divide_rows, grid_of_rows<BLOCK>(launch, rows / of->height), BLOCK,
                 (const float *)state, factors, rows / of->height, of->height, *args, live, *gate);
}

__device__ inline float over_root(float value, float variance, float least)
{
    return value / sqrtf(variance > least ? variance : least);
}

/* The updates of V elements from the piece's i-th on, of which `count` exist. */
struct matrix_update {
    struct kernel_factor of;
    const float *rows, *columns;
    template <int V>
    __device__ void at(int64_t i, int count, float scale, const struct factor_args &args,
                       pack<float, V> &values) const
    {
        int64_t row = (of.first + i) / of.width, column = of.first + i - row * of.width;
        const float *of_matrix = columns + row / of.height * of.width;
        float factor = rows[row];
        for (int v = 0; v < V && v < count; v++) {
            if (column == of.width) {
                column = 0;
                if (++row % of.height == 0) of_matrix += of.width;
                factor = rows[row];
            }
            values.at[v] *= over_root(scale, factor * of_matrix[column++], args.least);
        }
    }
};

struct vector_update {
    float *variance;
    template <int V>
    __device__ void at(int64_t i, int count, float scale, const struct factor_args &args,
                       pack<float, V> &values) const
    {
        for (int v = 0; v < V && v < count; v++) {
            float g = values.at[v] * scale;
            float moved = lerp(variance[i + v], g * g, args.weight, args.rest);
            variance[i + v] = moved;
            values.at[v] = over_root(g, moved, args.least);
        }
    }
};

/* parts[2 b] and the next one: the sums of squares of block b's updates and of their parameters. */
template <int V, typename F>
__global__ void __launch_bounds__(BLOCK)
    make_updates(const F f, float *values, const float *param, bool aligned, int64_t n,
                 double *parts, const struct factor_args given, const struct factor_args *live,
                 cuda_gate_in gate)
{
    SHARED(double, scratch, BLOCK / WARP);
    const struct factor_args args = live != nullptr ? *live : given;
    float scale;
    if (!read_gate(gate, &scale)) return;
    double sums[2] = {0, 0};
    int64_t step = (int64_t)gridDim.x * BLOCK * V;
    NOT_UNROLLED for (int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V; i < n; i += step)
    {
        int count = n - i < V ? (int)(n - i) : V;
        pack<float, V> v = {}, p = {};
        if (count == V) {
            v = load<V>(values + i, aligned);
            p = load<V>(param + i, aligned);
        } else {
            for (int k = 0; k < V; k++)
                if (k < count) v.at[k] = values[i + k], p.at[k] = param[i + k];
        }
        f.template at<V>(i, count, scale, args, v);
        for (int k = 0; k < V; k++) {
            sums[0] += (double)v.at[k] * v.at[k];
            sums[1] += (double)p.at[k] * p.at[k];
        }
        if (count == V) store(values + i, v, aligned);
        else
            for (int k = 0; k < V; k++)
                if (k < count) values[i + k] = v.at[k];
    }
    for (int k = 0; k < 2; k++) {
        double sum = group_sum<BLOCK>(sums[k], scratch);
        if (threadIdx.x == 0) parts[2 * blockIdx.x + k] = sum;
    }
}

__global__ void __launch_bounds__(BLOCK)
    add_update_parts(const double *parts, int count, double *totals, cuda_gate_in gate)
{
    SHARED(double, scratch, BLOCK / WARP);
    float scale;
    if (!read_gate(gate, &scale)) return;
    for (int k = 0; k < 2; k++) {
        double sum = 0;
        for (int i = (int)threadIdx.x; i < count; i += BLOCK) sum += parts[2 * i + k];
        sum = group_sum<BLOCK>(sum, scratch);
        if (threadIdx.x == 0) totals[k] = sum;
    }
}

template <typename F>
static int update(const struct cuda_launch *launch, const F &f, int64_t n, float *values,
                  const float *param, const struct factor_args *args, double *parts, double *totals,
                  const struct cuda_gate_in *gate)
{
    constexpr int V = full_pack<float>();
    int64_t blocks = (n + V * BLOCK - 1) / (V * BLOCK), most = CUDA_NORM_PARTS / 2;
    int count = (int)(blocks < most ? blocks : most);
    TRY_LAUNCH(start(launch, make_updates<V, F>, dim3((unsigned)count), BLOCK, f, values, param,
                     is_aligned(values, param), n, parts, *args,
                     (const struct factor_args *)launch->live, *gate));
    return start(launch, add_update_parts, dim3(1), BLOCK, (const double *)parts, count, totals,
                 *gate);
}

int cuda_factor_update(const struct cuda_launch *launch, const struct kernel_factor *of,
                       float *values, const float *param, const float *rows, const float *columns,
                       const struct factor_args *args, double *parts, double *totals,
                       const struct cuda_gate_in *gate)
{
    return update(launch, matrix_update{*of, rows, columns}, of->count, values, param, args, parts,
                  totals, gate);
}

int cuda_variance_update(const struct cuda_launch *launch, size_t n, float *values,
                         const float *param, float *variance, const struct factor_args *args,
                         double *parts, double *totals, const struct cuda_gate_in *gate)
{
    return update(launch, vector_update{variance}, (int64_t)n, values, param, args, parts, totals,
                  gate);
}

__global__ void __launch_bounds__(BLOCK)
    scale_updates(float *values, int64_t n, const struct cuda_factor_totals totals,
                  const struct factor_args given, const struct factor_args *live, cuda_gate_in gate)
{
    SHARED(float, rate, 1);
    const struct factor_args args = live != nullptr ? *live : given;
    float scale;
    if (!read_gate(gate, &scale)) return;
    if (threadIdx.x == 0) {
        double update = 0, parameter = 0;
        for (int r = 0; r < totals.ranks; r++) {
            update += totals.first[(int64_t)r * totals.stride];
            parameter += totals.first[(int64_t)r * totals.stride + 1];
        }
        update = sqrt(update / (double)totals.elements);
        parameter = sqrt(parameter / (double)totals.elements);
        rate[0] = (float)(fmax(args.eps2, parameter) * args.rate / fmax(1.0, update / args.clip));
    }
    __syncthreads();
    float factor = rate[0];
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK)
        values[i] *= factor;
}

int cuda_factor_scale(const struct cuda_launch *launch, size_t n, float *values,
                      const struct cuda_factor_totals *totals, const struct factor_args *args,
                      const struct cuda_gate_in *gate)
{
    return start(launch, scale_updates, grid_of(launch, (int64_t)n), BLOCK, values, (int64_t)n,
                 *totals, *args, (const struct factor_args *)launch->live, *gate);
}

} // namespace fsdpd
