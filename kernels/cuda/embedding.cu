/*
 * Embeddings. For every row of the table, the gradient sums the gradients of the tokens that name
 * it, in the order of the tokens. They are sorted by row first (a stable radix sort; Merrill and
 * Grimshaw, "High performance and scalable radix sorting", 2011). Then a block each adds up chunks
 * of the sorted tokens, and the sums of rows that several chunks share are added in the chunks'
 * order. A very frequent token costs no more than rare ones.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

namespace fsdpd {

template <typename T, int V>
__global__ void __launch_bounds__(BLOCK)
    embedding_kernel(const int32_t *indices, const T *weight, T *y, int64_t count, int64_t columns,
                     bool add)
{
    int64_t step = (int64_t)gridDim.x * BLOCK * V;
    for (int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V; i < count; i += step) {
        int64_t token = i / columns;
        pack<T, V> row = load<V>(weight + indices[token] * columns + i % columns);
        if (add) {
            pack<T, V> old = load<V>(y + i);
            for (int v = 0; v < V; v++)
                row.at[v] = rounded<T>(to_float(old.at[v]) + to_float(row.at[v]));
        }
        store(y + i, row);
    }
}

template <typename T>
static int run_embedding(const struct op_desc *desc, const struct kernel_call *call,
                         const struct cuda_launch *launch)
{
    constexpr int V = full_pack<T>();
    int64_t columns = desc->inputs[1].dims[1], count = count_of(&desc->inputs[0]) * columns;
    const int32_t *indices = input_of<int32_t>(call, 0);
    const T *weight = input_of<T>(call, 1);
    T *y = output_of<T>(call, 0);
    if (is_aligned(weight, y) && columns % V == 0)
        return start(launch, embedding_kernel<T, V>, grid_of(launch, count / V), BLOCK, indices,
                     weight, y, count, columns, desc->accumulate[0]);
    return start(launch, embedding_kernel<T, 1>, grid_of(launch, count), BLOCK, indices, weight, y,
                 count, columns, desc->accumulate[0]);
}

RUN_BY_TYPE(cuda_run_embedding, run_embedding, 1)

/* ---- sorting: a pass per digit ---- */

enum {
    DIGIT_BITS = 4,
    DIGITS = 1 << DIGIT_BITS,
    ITEMS = 8, /* per thread, contiguous */
    TILE = BLOCK * ITEMS,
    SHARE = BLOCK / DIGITS /* threads that share the counters of one digit */
};

struct tokens {
    const int32_t *keys, *places; /* places NULL: 0, 1, ... */
    int64_t count;
    int shift;
};

/* counters[digit * BLOCK + thread]: how many of the thread's items have the digit. */
__device__ inline void count_items(const tokens &t, int *counters)
{
    for (int d = 0; d < DIGITS; d++) counters[d * BLOCK + threadIdx.x] = 0;
    int64_t first = (int64_t)blockIdx.x * TILE + threadIdx.x * ITEMS;
    for (int64_t i = first; i < first + ITEMS && i < t.count; i++)
        counters[(t.keys[i] >> t.shift & (DIGITS - 1)) * BLOCK + threadIdx.x]++;
    __syncthreads();
}

/* This thread's part of the counters of a digit, which SHARE threads divide among them. */
__device__ inline int *shared_counters(int *counters)
{
    return counters + threadIdx.x / SHARE * BLOCK + threadIdx.x % SHARE * (BLOCK / SHARE);
}

__global__ void __launch_bounds__(BLOCK) count_digits(const tokens t, int *counts)
{
    SHARED(int, counters, DIGITS *BLOCK);
    count_items(t, counters);
    const int *mine = shared_counters(counters);
    int sum = 0;
    for (int i = 0; i < BLOCK / SHARE; i++) sum += mine[i];
    for (int distance = SHARE / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % SHARE == 0) counts[threadIdx.x / SHARE * gridDim.x + blockIdx.x] = sum;
}

/* One block: replaces each count by the sum of all counts before it. */
__global__ void __launch_bounds__(BLOCK) sum_before(int *counts, int n)
{
    SHARED(int, sums, BLOCK);
    int share = (n + BLOCK - 1) / BLOCK, first = threadIdx.x * share;
    int last = first + share < n ? first + share : n, sum = 0;
    for (int i = first; i < last; i++) sum += counts[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < (int)threadIdx.x; i++) sum += sums[i];
    for (int i = first; i < last; i++) {
        int count = counts[i];
        counts[i] = sum;
        sum += count;
    }
}

__global__ void __launch_bounds__(BLOCK)
    place_tokens(const tokens t, const int *starts, int32_t *keys, int32_t *places)
{
    SHARED(int, counters, DIGITS *BLOCK);
    SHARED(int, sums, BLOCK);
    count_items(t, counters);
    int *mine = shared_counters(counters), sum = 0;
    for (int i = 0; i < BLOCK / SHARE; i++) sum += mine[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = starts[threadIdx.x / SHARE * gridDim.x + blockIdx.x];
    for (int i = threadIdx.x / SHARE * SHARE; i < (int)threadIdx.x; i++) sum += sums[i];
    for (int i = 0; i < BLOCK / SHARE; i++) {
        int count = mine[i];
        mine[i] = sum;
        sum += count;
    }
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * TILE + threadIdx.x * ITEMS;
    for (int64_t i = first; i < first + ITEMS && i < t.count; i++) {
        int32_t key = t.keys[i];
        int to = counters[(key >> t.shift & (DIGITS - 1)) * BLOCK + threadIdx.x]++;
        keys[to] = key;
        places[to] = t.places != nullptr ? t.places[i] : (int32_t)i;
    }
}

/* ---- adding ---- */

enum { CHUNK = 32 };

template <typename T> struct gradient {
    const int32_t *keys, *places; /* sorted */
    int64_t count, columns, padding;
    const T *dy;
    /* heads: a chunk's sum for a row that began in an earlier chunk; tails: for a row that
     * continues in the next one. */
    float *dweight, *heads, *tails;
};

__global__ void __launch_bounds__(BLOCK) fill_zero(float *to, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK)
        to[i] = 0;
}

/* blockIdx.x: chunk; blockIdx.y: BLOCK columns. */
template <typename T> __global__ void __launch_bounds__(BLOCK) add_chunk(const gradient<T> g)
{
    int64_t column = (int64_t)blockIdx.y * BLOCK + threadIdx.x, chunk = blockIdx.x;
    int64_t first = chunk * CHUNK, last = first + CHUNK < g.count ? first + CHUNK : g.count;
    if (column >= g.columns) return;
    bool begun = first > 0 && g.keys[first - 1] == g.keys[first]; /* in an earlier chunk */
    float sum = 0;
    for (int64_t i = first; i < last; i++) {
        int32_t key = g.keys[i];
        sum += to_float(g.dy[g.places[i] * g.columns + column]);
        bool ends = i + 1 == g.count || g.keys[i + 1] != key;
        if (!ends && i + 1 < last) continue;
        if (begun) g.heads[chunk * g.columns + column] = sum;
        else if (!ends) g.tails[chunk * g.columns + column] = sum;
        else if (key != g.padding) g.dweight[key * g.columns + column] += sum;
        sum = 0;
        begun = false;
    }
}

/* Adds up rows that begin in a chunk and continue in the next. */
template <typename T> __global__ void __launch_bounds__(BLOCK) join_chunks(const gradient<T> g)
{
    int64_t column = (int64_t)blockIdx.y * BLOCK + threadIdx.x, chunk = blockIdx.x;
    int64_t first = chunk * CHUNK, next = first + CHUNK;
    if (column >= g.columns || next >= g.count) return;
    int32_t key = g.keys[next - 1];
    if (g.keys[next] != key || (first > 0 && g.keys[first - 1] == key) || key == g.padding) return;
    float sum = g.tails[chunk * g.columns + column];
    for (int64_t c = chunk + 1; c * CHUNK < g.count && g.keys[c * CHUNK] == key; c++)
        sum += g.heads[c * g.columns + column];
    g.dweight[key * g.columns + column] += sum;
}

/* The contents of the workspace, in this order. */
struct embedding_space {
    int64_t tokens, columns, tiles, chunks;
};

static struct embedding_space space_of(const struct op_desc *desc)
{
    struct embedding_space s;
    s.tokens = count_of(&desc->inputs[0]);
    s.columns = desc->outputs[0].dims[1];
    s.tiles = (s.tokens + TILE - 1) / TILE;
    s.chunks = (s.tokens + CHUNK - 1) / CHUNK;
    return s;
}

uint64_t cuda_embedding_backward_bytes(const struct op_desc *desc)
{
    struct embedding_space s = space_of(desc);
    return (uint64_t)(4 * s.tokens + DIGITS * s.tiles + 2 * s.chunks * s.columns) * 4;
}

/* Of tokens in the order of `t`. */
template <typename T>
static int add_gradients(const struct op_desc *desc, const struct kernel_call *call,
                         const struct cuda_launch *launch, const tokens &t,
                         const struct embedding_space &s)
{
    float *heads = (float *)call->workspace, *tails = heads + s.chunks * s.columns;
    const gradient<T> g = {t.keys,
                           t.places,
                           s.tokens,
                           s.columns,
                           desc->attrs.embedding.padding_index,
                           input_of<T>(call, 1),
                           output_of<float>(call, 0),
                           heads,
                           tails};
    int64_t count = count_of(&desc->outputs[0]);
    if (!desc->accumulate[0])
        TRY_LAUNCH(start(launch, fill_zero, grid_of(launch, count), BLOCK, g.dweight, count));
    dim3 grid((unsigned)s.chunks, (unsigned)((g.columns + BLOCK - 1) / BLOCK));
    TRY_LAUNCH(start(launch, add_chunk<T>, grid, BLOCK, g));
    return start(launch, join_chunks<T>, grid, BLOCK, g);
}

int cuda_run_embedding_backward(const struct cuda_op *op, const struct kernel_call *call,
                                const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    struct embedding_space s = space_of(desc);
    int32_t *keys[2], *places[2];
    int32_t *counts = (int32_t *)call->workspace + 2 * s.chunks * s.columns;
    keys[0] = counts + DIGITS * s.tiles, keys[1] = keys[0] + s.tokens;
    places[0] = keys[1] + s.tokens, places[1] = places[0] + s.tokens;
    tokens t = {input_of<int32_t>(call, 0), nullptr, s.tokens, 0};
    dim3 tiles((unsigned)s.tiles);
    int pass = 0;
    do { /* at least one pass, which fills in the places */
        TRY_LAUNCH(start(launch, count_digits, tiles, BLOCK, t, counts));
        TRY_LAUNCH(start(launch, sum_before, dim3(1), BLOCK, counts, (int)(DIGITS * s.tiles)));
        TRY_LAUNCH(start(launch, place_tokens, tiles, BLOCK, t, (const int *)counts, keys[pass % 2],
                         places[pass % 2]));
        t.keys = keys[pass % 2], t.places = places[pass % 2];
        t.shift += DIGIT_BITS;
        pass++;
    } while ((desc->outputs[0].dims[0] - 1) >> t.shift > 0);
    return desc->inputs[1].dtype == DTYPE_BF16 ? add_gradients<bf16>(desc, call, launch, t, s)
                                               : add_gradients<float>(desc, call, launch, t, s);
}

} // namespace fsdpd
