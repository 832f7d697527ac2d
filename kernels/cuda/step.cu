/*
 * The end of a training step: optimizers over flat shards, the gradient's norm and the gate; and
 * helpers of communicators. The arithmetic of an element is the CPU's, so the results are the same
 * (these files are compiled without contraction).
 */
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/platform.h"
#include "kernels/muon.h"

namespace fsdpd {

/* How parameters and slots that are bf16 are rounded at random; the CPU's draws (kernels/halves.c).
 */
struct rounding {
    uint32_t key[2], parameter;
    uint64_t first, step;
    const uint64_t *live; /* replaces the step unless NULL */
};

static rounding rounding_of(const struct cuda_halves *halves)
{
    if (halves == nullptr) return {};
    return {{(uint32_t)halves->seed, (uint32_t)(halves->seed >> 32)},
            halves->parameter,
            halves->first,
            halves->step,
            halves->live};
}

/* Of the eight elements of an array that begin with the i-th one, a multiple of eight: 16 bits of a
 * word each. `array`: 0 is the parameter. */
enum { DRAWS = 8 };
__device__ inline void draw_halves(const rounding &how, uint64_t step, uint32_t array, int64_t i,
                                   uint32_t words[DRAWS / 2])
{
    uint64_t block = (how.first + (uint64_t)i) / DRAWS;
    const uint32_t counter[4] = {(uint32_t)block, how.parameter, (uint32_t)step,
                                 (uint32_t)(block >> 32) << 16 |
                                     (uint32_t)(step >> 32 & 0xfff) << 4 | array};
    philox_block(counter, how.key, words);
}

__device__ inline bf16 round_at_random(float value, uint32_t draw)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (!isfinite(value)) return rounded<bf16>(value);
    uint32_t moved = bits + draw;
    bool overflows = (moved & 0x7f800000) == 0x7f800000;
    return bf16{(uint16_t)((overflows ? bits : moved) >> 16)};
}

/* V values in accesses of 16 bytes, or one. */
template <int V, typename T>
__device__ inline void load_wide(const T *from, bool aligned, float (&to)[V])
{
    constexpr int full = (int)(16 / sizeof(T)), W = V < full ? V : full;
    UNROLLED for (int k = 0; k < V; k += W)
    {
        pack<T, W> some = load<W>(from + k, aligned);
        for (int w = 0; w < W; w++) to[k + w] = to_float(some.at[w]);
    }
}

/* The values of an array from the i-th on; `i` and the step are not needed for f32. */
template <int V>
__device__ inline void store_narrow(float *to, bool aligned, const float (&values)[V],
                                    const rounding &, uint64_t, uint32_t, int64_t i)
{
    constexpr int full = (int)(16 / sizeof(float)), W = V < full ? V : full;
    UNROLLED for (int k = 0; k < V; k += W)
    {
        pack<float, W> some;
        for (int w = 0; w < W; w++) some.at[w] = values[k + w];
        store(to + i + k, some, aligned);
    }
}

template <int V>
__device__ inline void store_narrow(bf16 *to, bool aligned, const float (&values)[V],
                                    const rounding &how, uint64_t step, uint32_t array, int64_t i)
{
    uint32_t words[DRAWS / 2];
    int64_t begin = i / DRAWS * DRAWS;
    draw_halves(how, step, array, begin, words);
    pack<bf16, V> some;
    UNROLLED for (int v = 0; v < V; v++)
    {
        int draw = V == 1 ? (int)(i - begin) : v;
        some.at[v] =
            round_at_random(values[v],
                            word_of(words, (uint64_t)draw / 2) >> (draw % 2 * 16) & 0xffff);
    }
    store(to + i, some, aligned);
}

/* What a step reads and writes: parameters of type P, and slots of type S. */
template <typename P, typename S> struct step_arrays {
    P *param;
    bf16 *copy; /* of the parameters; NULL: none */
    const float *grad;
    S *slots[2];
    int64_t n;
    bool aligned;
    rounding how;
};

/* Updates V parameters from the i-th on, and their copies. */
template <int V, typename F, typename P, typename S, typename A>
__device__ inline void update(const step_arrays<P, S> &arrays, int64_t i, uint64_t step,
                              float scale, const A &args)
{
    float p[V], g[V], slots[F::SLOTS + 1][V];
    bool aligned = arrays.aligned;
    load_wide<V>(arrays.param + i, aligned, p);
    load_wide<V>(arrays.grad + i, aligned, g);
    UNROLLED for (int s = 0; s < F::SLOTS; s++)
        load_wide<V>(arrays.slots[s] + i, aligned, slots[s]);
    UNROLLED for (int v = 0; v < V; v++)
    {
        float values[F::SLOTS + 1];
        for (int s = 0; s < F::SLOTS; s++) values[s] = slots[s][v];
        F::value(args, g[v], scale, &p[v], values);
        for (int s = 0; s < F::SLOTS; s++) slots[s][v] = values[s];
    }
    store_narrow<V>(arrays.param, aligned, p, arrays.how, step, 0, i);
    UNROLLED for (int s = 0; s < F::SLOTS; s++)
        store_narrow<V>(arrays.slots[s], aligned, slots[s], arrays.how, step, (uint32_t)s + 1, i);
    if (arrays.copy == nullptr) return;
    pack<bf16, V> low;
    for (int v = 0; v < V; v++) low.at[v] = rounded<bf16>(p[v]);
    store(arrays.copy + i, low, aligned);
}

template <typename F, int V, typename P, typename S, typename A>
__global__ void __launch_bounds__(BLOCK)
    optimize(const step_arrays<P, S> arrays, const A given, const A *live, cuda_gate_in gate)
{
    const A args = live != nullptr ? *live : given;
    const uint64_t taken = arrays.how.live != nullptr ? *arrays.how.live : arrays.how.step;
    float scale;
    if (!read_gate(gate, &scale)) return;
    int64_t n = arrays.n, step = (int64_t)gridDim.x * BLOCK * V;
    NOT_UNROLLED for (int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V; i < n; i += step)
    {
        if (i + V <= n) update<V, F>(arrays, i, taken, scale, args);
        else
            for (int64_t j = i; j < n; j++) update<1, F>(arrays, j, taken, scale, args);
    }
}

template <typename F, int V, typename P, typename S, typename A>
static int run_arrays(const struct cuda_launch *launch, const step_arrays<P, S> &arrays,
                      const A *args, const struct cuda_gate_in *gate)
{
    return start(launch, optimize<F, V, P, S, A>, grid_of(launch, (arrays.n + V - 1) / V), BLOCK,
                 arrays, *args, (const A *)launch->live, *gate);
}

/* Arrays with some in bf16 have eight elements per thread, which have their draws in common. */
template <typename F, typename P, typename S, typename A>
static int run_halves(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
                      const float *grad, float *first, float *second, const A *args,
                      const struct cuda_gate_in *gate)
{
    const step_arrays<P, S> arrays = {(P *)param,
                                      (bf16 *)copy,
                                      grad,
                                      {(S *)first, (S *)second},
                                      (int64_t)n,
                                      is_aligned(param, copy, grad, first, second),
                                      rounding_of(launch->halves)};
    return run_arrays<F, DRAWS>(launch, arrays, args, gate);
}

/* `V`: elements of f32 per thread, where addresses allow it. */
template <typename F, int V = 4, typename A>
static int run_optimizer(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
                         const float *grad, float *first, float *second, const A *args,
                         const struct cuda_gate_in *gate)
{
    const struct cuda_halves *halves = launch->halves;
    if (halves != nullptr && halves->param)
        return run_halves<F, bf16, float>(launch, n, param, copy, grad, first, second, args, gate);
    const step_arrays<float, float> arrays = {param,      (bf16 *)copy, grad, {first, second},
                                              (int64_t)n, true,         {}};
    bool packs = (uintptr_t)copy % sizeof(pack<bf16, 4>) == 0;
    if (packs && is_aligned(param, grad, first, second))
        return run_arrays<F, V>(launch, arrays, args, gate);
    return run_arrays<F, 1>(launch, arrays, args, gate);
}

/* Defines the function of an optimizer that needs no other one; see OPTIMIZER_KERNELS. */
#define SLOTS_ONE first, nullptr
#define SLOTS_TWO first, second
#define RUN_OPTIMIZER(kernel, ARRAYS, V)                                                           \
    int cuda_##kernel(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,    \
                      const float *grad, OPTIMIZER_ARRAYS_##ARRAYS,                                \
                      const struct kernel##_args *args, const struct cuda_gate_in *gate)           \
    {                                                                                              \
        return run_optimizer<kernel, V>(launch, n, param, copy, grad, SLOTS_##ARRAYS, args, gate); \
    }

/* What an optimizer does to a parameter and its slots, given the gradient and its scale. */
struct adadelta {
    enum { SLOTS = 2 };
    static __device__ void value(const struct adadelta_args &args, float gradient, float scale,
                                 float *p, float *slots)
    {
        float rest = args.one_minus_rho, scaled = gradient * scale;
        float g = args.weight_decay == 0 ? scaled : fmaf(*p, args.weight_decay, scaled);
        float square = fmaf(rest * g, g, args.rho * slots[0]);
        float d = sqrtf(slots[1] + args.eps) / sqrtf(square + args.eps) * g;
        slots[0] = square;
        *p = fmaf(d, -args.lr, *p);
        slots[1] = fmaf(rest * d, d, args.rho * slots[1]);
    }
};

/* four values per thread would spill registers on sm_80 */
RUN_OPTIMIZER(adadelta, TWO, 1)

/* With momentum, or without. */
template <bool M> struct sgd {
    enum { SLOTS = M };
    static __device__ void value(const struct sgd_args &args, float gradient, float scale, float *p,
                                 float *slots)
    {
        float scaled = gradient * scale;
        float g = args.weight_decay == 0 ? scaled : fmaf(*p, args.weight_decay, scaled);
        float step = g;
        if (M) {
            slots[0] =
                args.first_step ? g : fmaf(g, args.one_minus_dampening, args.momentum * slots[0]);
            step = args.nesterov ? fmaf(slots[0], args.momentum, g) : slots[0];
        }
        *p = fmaf(step, -args.lr, *p);
    }
};

int cuda_sgd(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
             const float *grad, float *momentum_buffer, const struct sgd_args *args,
             const struct cuda_gate_in *gate)
{
    if (args->momentum == 0)
        return run_optimizer<sgd<false>>(launch, n, param, copy, grad, nullptr, nullptr, args,
                                         gate);
    return run_optimizer<sgd<true>>(launch, n, param, copy, grad, momentum_buffer, nullptr, args,
                                    gate);
}

struct adam {
    enum { SLOTS = 2 };
    static __device__ void value(const struct adam_args &args, float gradient, float scale,
                                 float *p, float *slots)
    {
        adam_value(args, gradient * scale, p, &slots[0], &slots[1]);
    }
};

int cuda_adam(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
              const float *grad, float *average, float *square_average,
              const struct adam_args *args, const struct cuda_gate_in *gate)
{
    const struct cuda_halves *halves = launch->halves;
    if (halves == nullptr || !halves->slots)
        return run_optimizer<adam>(launch, n, param, copy, grad, average, square_average, args,
                                   gate);
    if (halves->param)
        return run_halves<adam, bf16, bf16>(launch, n, param, copy, grad, average, square_average,
                                            args, gate);
    return run_halves<adam, float, bf16>(launch, n, param, copy, grad, average, square_average,
                                         args, gate);
}

struct lion {
    enum { SLOTS = 1 };
    static __device__ void value(const struct lion_args &args, float gradient, float scale,
                                 float *p, float *slots)
    {
        float g = gradient * scale;
        float mean = slots[0] * args.beta1 + g * args.one_minus_beta1;
        float sign = mean > 0 ? 1 : mean < 0 ? -1 : mean;
        *p = fmaf(sign, -args.lr, *p * args.shrink);
        slots[0] = fmaf(g, args.one_minus_beta2, args.beta2 * slots[0]);
    }
};

RUN_OPTIMIZER(lion, ONE, 4)

struct muon {
    enum { SLOTS = 0 };
    static __device__ void value(const struct muon_args &args, float update, float, float *p,
                                 float *)
    {
        *p = fmaf(update, -args.lr, *p * args.shrink);
    }
};

int cuda_muon(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
              const float *update, float *, const struct muon_args *args,
              const struct cuda_gate_in *gate)
{
    return run_optimizer<muon>(launch, n, param, copy, update, nullptr, nullptr, args, gate);
}

/* The gradient is the parameter. */
struct muon_momentum {
    enum { SLOTS = 1 };
    static __device__ void value(const struct muon_args &args, float gradient, float scale,
                                 float *p, float *slots)
    {
        float keep = args.momentum, rest = args.one_minus_momentum, scaled = gradient * scale;
        slots[0] = lerp(slots[0], scaled, rest, keep);
        *p = args.nesterov ? lerp(scaled, slots[0], keep, rest) : slots[0];
    }
};

int cuda_muon_momentum(const struct cuda_launch *launch, size_t n, float *grad, float *average,
                       const struct muon_args *args, const struct cuda_gate_in *gate)
{
    return run_optimizer<muon_momentum>(launch, n, grad, nullptr, grad, average, nullptr, args,
                                        gate);
}

__global__ void __launch_bounds__(BLOCK)
    normalize_kernel(float *to, const float *from, const double *squares, int64_t n)
{
    float norm = (float)sqrt(*squares);
    if (norm < KERNEL_MUON_EPS) norm = KERNEL_MUON_EPS;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK)
        to[i] = from[i] / norm;
}

int cuda_muon_normalize(const struct cuda_launch *launch, size_t n, float *to, const float *from,
                        const double *squares)
{
    return start(launch, normalize_kernel, grid_of(launch, (int64_t)n), BLOCK, to, from, squares,
                 (int64_t)n);
}

struct radam {
    enum { SLOTS = 2 };
    static __device__ void value(const struct radam_args &args, float gradient, float scale,
                                 float *p, float *slots)
    {
        float scaled = gradient * scale;
        float g = args.weight_decay == 0 ? scaled : fmaf(*p, args.weight_decay, scaled);
        float m = fmaf(g, args.one_minus_beta1, args.beta1 * slots[0]);
        float v = fmaf(args.one_minus_beta2 * g, g, args.beta2 * slots[1]);
        float step = m / args.correction * args.lr;
        float adapted = step * (1 / (sqrtf(v) + args.eps) * args.root) * args.rectified;
        slots[0] = m, slots[1] = v;
        *p = *p - (args.rectified == 0 ? step : adapted);
    }
};

RUN_OPTIMIZER(radam, TWO, 4)

struct adagrad {
    enum { SLOTS = 1 };
    static __device__ void value(const struct adagrad_args &args, float gradient, float scale,
                                 float *p, float *slots)
    {
        float scaled = gradient * scale;
        float g = args.weight_decay == 0 ? scaled : fmaf(*p, args.weight_decay, scaled);
        slots[0] = fmaf(g, g, slots[0]);
        *p = *p + -args.decayed_lr * g / (sqrtf(slots[0]) + args.eps);
    }
};

RUN_OPTIMIZER(adagrad, ONE, 4)

/* One value per thread: four take more registers than an SM of sm_90 has for all its threads. */
__global__ void __launch_bounds__(BLOCK)
    running_average_kernel(float *average, const float *param, struct average_args given,
                           const struct average_args *live, cuda_gate_in gate, int64_t n)
{
    float weight = live != nullptr ? live->weight : given.weight, scale;
    if (!read_gate(gate, &scale)) return;
    bool far = weight >= 0.5f; /* as torch.lerp, from the nearer end */
    float share = far ? weight - 1 : weight;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK) {
        float a = average[i], p = param[i];
        average[i] = fmaf(p - a, share, far ? p : a);
    }
}

int cuda_average(const struct cuda_launch *launch, size_t n, float *average, const float *param,
                 const struct average_args *args, const struct cuda_gate_in *gate)
{
    return start(launch, running_average_kernel, grid_of(launch, (int64_t)n), BLOCK, average, param,
                 *args, (const struct average_args *)launch->live, *gate, (int64_t)n);
}

/* ---- norms ---- */

__device__ inline double larger_of(double a, double b)
{
    return a > b || a != a ? a : b;
}

/* Combines the values of a block's threads. */
__device__ inline double gather_block(double value, bool largest, double *scratch)
{
    scratch[threadIdx.x] = value;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            double other = scratch[threadIdx.x + half], mine = scratch[threadIdx.x];
            scratch[threadIdx.x] = largest ? larger_of(other, mine) : mine + other;
        }
    }
    __syncthreads();
    return scratch[0];
}

/* What a thread has so far, and one more; squares of floats are exact in double. */
__device__ inline double with_value(double mine, float value, bool largest)
{
    double wide = value;
    return largest ? larger_of(fabs(wide), mine) : mine + wide * wide;
}

/* parts[b] is the result of block b. Reads 4 bytes an element, V of them at a time. */
template <int V>
__global__ void __launch_bounds__(BLOCK)
    norm_parts(bool largest, const float *values, bool aligned, int64_t n, double *parts)
{
    SHARED(double, scratch, BLOCK);
    double mine = 0;
    int64_t step = (int64_t)gridDim.x * BLOCK * V;
    for (int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V; i < n; i += step) {
        if (i + V > n) {
            NOT_UNROLLED for (int64_t j = i; j < n; j++)
            {
                mine = with_value(mine, values[j], largest);
            }
            break;
        }
        pack<float, V> x = load<V>(values + i, aligned);
        for (int v = 0; v < V; v++) mine = with_value(mine, x.at[v], largest);
    }
    mine = gather_block(mine, largest, scratch);
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

__global__ void __launch_bounds__(BLOCK)
    norm_total(bool largest, const double *parts, int count, double *total)
{
    SHARED(double, scratch, BLOCK);
    double mine = 0;
    for (int i = (int)threadIdx.x; i < count; i += BLOCK)
        mine = largest ? larger_of(parts[i], mine) : mine + parts[i];
    mine = gather_block(mine, largest, scratch);
    if (threadIdx.x == 0) *total = largest ? larger_of(mine, *total) : *total + mine;
}

/* The number of parts depends on n alone, not on the device or the address, so the sums always have
 * the same bits. 1,024 blocks of 256 threads are about what an H100 runs at once, and have 4 MiB of
 * loads under way. */
int cuda_norm(const struct cuda_launch *launch, bool largest, size_t n, const float *values,
              double *parts, double *total)
{
    constexpr int V = full_pack<float>();
    int64_t blocks = ((int64_t)n + V * BLOCK - 1) / (V * BLOCK);
    int count = (int)(blocks < 1                 ? 1
                      : blocks < CUDA_NORM_PARTS ? blocks
                                                 : (int64_t)CUDA_NORM_PARTS);
    TRY_LAUNCH(start(launch, norm_parts<V>, dim3((unsigned)count), BLOCK, largest, values,
                     is_aligned(values), (int64_t)n, parts));
    return start(launch, norm_total, dim3(1), BLOCK, largest, (const double *)parts, count, total);
}

/* Avoids division by a norm of zero; PyTorch's value. */
#define CLIP_EPSILON 1e-6f

__global__ void gate_kernel(cuda_gate_args given, const cuda_gate_args *live, const double *totals,
                            int count, cuda_gate_stats stats)
{
    if (threadIdx.x != 0) return;
    const cuda_gate_args args = live != nullptr ? *live : given;
    bool counts = stats.counted[0] != 0;
    double total = 0, scale = counts ? mean_scale(stats.targets, stats.counted) : 0;
    for (int i = 0; i < count; i++)
        total = args.largest ? larger_of(totals[i], total) : total + totals[i];
    float norm = (float)((args.largest ? total : sqrt(total)) * scale);
    bool skip = args.skip || !counts || !isfinite(norm) || !isfinite(stats.loss[0]);
    if (args.max_norm > 0) {
        /* the rounding of torch.nn.utils.clip_grad_norm_ */
        float coefficient = 1 / (norm + CLIP_EPSILON) * (float)args.max_norm;
        if (coefficient < 1) scale *= coefficient;
    }
    stats.norm[0] = norm;
    stats.scale[0] = skip ? 0 : (float)scale;
    stats.skipped[0] = skip ? 1.0f : 0.0f;
}

int cuda_gate(const struct cuda_launch *launch, const struct cuda_gate_args *args,
              const double *totals, int count, const struct cuda_gate_stats *stats)
{
    return start(launch, gate_kernel, dim3(1), WARP, *args,
                 (const struct cuda_gate_args *)launch->live, totals, count, *stats);
}

/* ---- bf16 for communicators ---- */

__global__ void __launch_bounds__(BLOCK)
    sum_parts(float *out, const bf16 *parts, int count, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK) {
        float sum = to_float(parts[i]);
        for (int p = 1; p < count; p++) sum += to_float(parts[p * n + i]);
        out[i] = sum;
    }
}

int cuda_sum_parts_bf16(const struct cuda_launch *launch, size_t n, float *out,
                        const uint16_t *parts, int count)
{
    return start(launch, sum_parts, grid_of(launch, (int64_t)n), BLOCK, out, (const bf16 *)parts,
                 count, (int64_t)n);
}

/* The number of values that one block holds in registers: where source and target overlap, it reads
 * all of them before it writes. */
enum { HELD = 8, HELD_BY_BLOCK = HELD * BLOCK };

__global__ void __launch_bounds__(BLOCK) pack_start(float *values, int n)
{
    float held[HELD];
    bf16 *to = (bf16 *)values;
    for (int k = 0; k < HELD; k++) {
        int i = k * BLOCK + (int)threadIdx.x;
        held[k] = i < n ? values[i] : 0;
    }
    __syncthreads();
    for (int k = 0; k < HELD; k++) {
        int i = k * BLOCK + (int)threadIdx.x;
        if (i < n) to[i] = rounded<bf16>(held[k]);
    }
}

/*
 * Values i to 2 i - 1, as floats in bytes 4 i to 8 i, become bf16 in bytes 2 i to 4 i: the two
 * ranges do not overlap. So each launch can convert as many values as all launches before it
 * together.
 */
int cuda_pack_bf16(const struct cuda_launch *launch, size_t n, float *values)
{
    size_t done = n < HELD_BY_BLOCK ? n : (size_t)HELD_BY_BLOCK;
    TRY_LAUNCH(start(launch, pack_start, dim3(1), BLOCK, values, (int)done));
    while (done < n) {
        size_t count = n - done < done ? n - done : done;
        TRY_LAUNCH(cuda_f32_to_bf16(launch, count, (uint16_t *)values + done, values + done));
        done += count;
    }
    return 0;
}

__global__ void progress_kernel(uint32_t *count, volatile uint32_t *host_count,
                                enum cuda_progress_kind kind)
{
    if (threadIdx.x != 0) return;
    uint32_t next = *count + 1;
    if (kind == CUDA_BEGINS) next |= 1;
    if (kind == CUDA_ENDS) next &= ~(uint32_t)1;
    *count = next;
    if (kind == CUDA_DELIVERS) __threadfence_system();
    *host_count = next;
}

int cuda_count(const struct cuda_launch *launch, uint32_t *count, uint32_t *host_count,
               enum cuda_progress_kind kind)
{
    return start(launch, progress_kernel, dim3(1), WARP, count, (volatile uint32_t *)host_count,
                 kind);
}

} // namespace fsdpd
