/*
 * The end of a training step: optimizers over flat shards, the gradient's norm and the gate; and
 * helpers of communicators. The arithmetic of an element is the CPU's, so the results are the same
 * (these files are compiled without contraction).
 */
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/platform.h"
#include "kernels/muon.h"

namespace fsdpd {

/* Updates V parameters from the i-th on, and their copies. */
template <int V, typename F, typename A>
__device__ inline void update(const F &f, bf16 *rounded_copy, int64_t i, float scale, const A &args)
{
    pack<float, V> p = f.template at<V>(i, scale, args);
    if (rounded_copy == nullptr) return;
    pack<bf16, V> low;
    for (int v = 0; v < V; v++) low.at[v] = rounded<bf16>(p.at[v]);
    store(rounded_copy + i, low);
}

template <typename F, int V>
__global__ void __launch_bounds__(BLOCK)
    optimize(const F f, bf16 *rounded_copy, cuda_gate_in gate, int64_t n)
{
    const auto args = f.live != nullptr ? *f.live : f.given;
    float scale;
    if (!read_gate(gate, &scale)) return;
    int64_t step = (int64_t)gridDim.x * BLOCK * V;
    NOT_UNROLLED for (int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V; i < n; i += step)
    {
        if (i + V <= n) update<V>(f, rounded_copy, i, scale, args);
        else
            for (int64_t j = i; j < n; j++) update<1>(f, rounded_copy, j, scale, args);
    }
}

template <typename F>
static int run_optimizer(const struct cuda_launch *launch, const F &f, uint16_t *copy,
                         const struct cuda_gate_in *gate, size_t n, bool aligned)
{
    if (aligned && (uintptr_t)copy % sizeof(pack<bf16, 4>) == 0)
        return start(launch, optimize<F, 4>, grid_of(launch, ((int64_t)n + 3) / 4), BLOCK, f,
                     (bf16 *)copy, *gate, (int64_t)n);
    return start(launch, optimize<F, 1>, grid_of(launch, (int64_t)n), BLOCK, f, (bf16 *)copy, *gate,
                 (int64_t)n);
}

struct adadelta {
    float *param, *square_avg, *acc_delta;
    const float *grad;
    struct adadelta_args given;
    const struct adadelta_args *live;
    template <int V>
    __device__ pack<float, V> at(int64_t i, float scale, const struct adadelta_args &args) const
    {
        pack<float, V> p = load<V>(param + i), s = load<V>(square_avg + i);
        pack<float, V> a = load<V>(acc_delta + i), gradient = load<V>(grad + i);
        float decay = args.weight_decay, rest = args.one_minus_rho;
        for (int v = 0; v < V; v++) {
            float scaled = gradient.at[v] * scale;
            float g = decay == 0 ? scaled : fmaf(p.at[v], decay, scaled);
            float square = fmaf(rest * g, g, args.rho * s.at[v]);
            float d = sqrtf(a.at[v] + args.eps) / sqrtf(square + args.eps) * g;
            s.at[v] = square;
            p.at[v] = fmaf(d, -args.lr, p.at[v]);
            a.at[v] = fmaf(rest * d, d, args.rho * a.at[v]);
        }
        store(param + i, p);
        store(square_avg + i, s);
        store(acc_delta + i, a);
        return p;
    }
};

int cuda_adadelta(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
                  const float *grad, float *square_avg, float *acc_delta,
                  const struct adadelta_args *args, const struct cuda_gate_in *gate)
{
    const adadelta f = {param, square_avg, acc_delta,
                        grad,  *args,      (const struct adadelta_args *)launch->live};
    return run_optimizer(launch, f, copy, gate, n, is_aligned(param, square_avg, acc_delta, grad));
}

struct sgd {
    float *param, *buffer; /* NULL without momentum */
    const float *grad;
    struct sgd_args given;
    const struct sgd_args *live;
    template <int V>
    __device__ pack<float, V> at(int64_t i, float scale, const struct sgd_args &args) const
    {
        pack<float, V> p = load<V>(param + i), gradient = load<V>(grad + i), b;
        if (buffer != nullptr) b = load<V>(buffer + i);
        for (int v = 0; v < V; v++) {
            float scaled = gradient.at[v] * scale;
            float g = args.weight_decay == 0 ? scaled : fmaf(p.at[v], args.weight_decay, scaled);
            float step = g;
            if (buffer != nullptr) {
                b.at[v] = args.first_step
                              ? g
                              : fmaf(g, args.one_minus_dampening, args.momentum * b.at[v]);
                step = args.nesterov ? fmaf(b.at[v], args.momentum, g) : b.at[v];
            }
            p.at[v] = fmaf(step, -args.lr, p.at[v]);
        }
        store(param + i, p);
        if (buffer != nullptr) store(buffer + i, b);
        return p;
    }
};

int cuda_sgd(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
             const float *grad, float *momentum_buffer, const struct sgd_args *args,
             const struct cuda_gate_in *gate)
{
    float *buffer = args->momentum != 0 ? momentum_buffer : nullptr;
    const sgd f = {param, buffer, grad, *args, (const struct sgd_args *)launch->live};
    return run_optimizer(launch, f, copy, gate, n, is_aligned(param, buffer, grad));
}

struct adam {
    float *param, *average, *square_average;
    const float *grad;
    struct adam_args given;
    const struct adam_args *live;
    template <int V>
    __device__ pack<float, V> at(int64_t i, float scale, const struct adam_args &args) const
    {
        pack<float, V> p = load<V>(param + i), m = load<V>(average + i);
        pack<float, V> s = load<V>(square_average + i), gradient = load<V>(grad + i);
        for (int v = 0; v < V; v++)
            adam_value(args, gradient.at[v] * scale, &p.at[v], &m.at[v], &s.at[v]);
        store(param + i, p);
        store(average + i, m);
        store(square_average + i, s);
        return p;
    }
};

int cuda_adam(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
              const float *grad, float *average, float *square_average,
              const struct adam_args *args, const struct cuda_gate_in *gate)
{
    const adam f = {param, average, square_average,
                    grad,  *args,   (const struct adam_args *)launch->live};
    return run_optimizer(launch, f, copy, gate, n,
                         is_aligned(param, average, square_average, grad));
}

struct lion {
    float *param, *average;
    const float *grad;
    struct lion_args given;
    const struct lion_args *live;
    template <int V>
    __device__ pack<float, V> at(int64_t i, float scale, const struct lion_args &args) const
    {
        pack<float, V> p = load<V>(param + i), m = load<V>(average + i);
        pack<float, V> gradient = load<V>(grad + i);
        for (int v = 0; v < V; v++) {
            float g = gradient.at[v] * scale;
            float mean = m.at[v] * args.beta1 + g * args.one_minus_beta1;
            float sign = mean > 0 ? 1 : mean < 0 ? -1 : mean;
            p.at[v] = fmaf(sign, -args.lr, p.at[v] * args.shrink);
            m.at[v] = fmaf(g, args.one_minus_beta2, args.beta2 * m.at[v]);
        }
        store(param + i, p);
        store(average + i, m);
        return p;
    }
};

int cuda_lion(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
              const float *grad, float *average, const struct lion_args *args,
              const struct cuda_gate_in *gate)
{
    const lion f = {param, average, grad, *args, (const struct lion_args *)launch->live};
    return run_optimizer(launch, f, copy, gate, n, is_aligned(param, average, grad));
}

struct muon {
    float *param;
    const float *update;
    struct muon_args given;
    const struct muon_args *live;
    template <int V>
    __device__ pack<float, V> at(int64_t i, float, const struct muon_args &args) const
    {
        pack<float, V> p = load<V>(param + i), update_at = load<V>(update + i);
        for (int v = 0; v < V; v++)
            p.at[v] = fmaf(update_at.at[v], -args.lr, p.at[v] * args.shrink);
        store(param + i, p);
        return p;
    }
};

int cuda_muon(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
              const float *update, float *, const struct muon_args *args,
              const struct cuda_gate_in *gate)
{
    const muon f = {param, update, *args, (const struct muon_args *)launch->live};
    return run_optimizer(launch, f, copy, gate, n, is_aligned(param, update));
}

struct muon_momentum {
    float *grad, *average;
    struct muon_args given;
    const struct muon_args *live;
    template <int V>
    __device__ pack<float, V> at(int64_t i, float scale, const struct muon_args &args) const
    {
        pack<float, V> g = load<V>(grad + i), m = load<V>(average + i);
        float keep = args.momentum, rest = args.one_minus_momentum;
        for (int v = 0; v < V; v++) {
            float scaled = g.at[v] * scale;
            m.at[v] = lerp(m.at[v], scaled, rest, keep);
            g.at[v] = args.nesterov ? lerp(scaled, m.at[v], keep, rest) : m.at[v];
        }
        store(grad + i, g);
        store(average + i, m);
        return g;
    }
};

int cuda_muon_momentum(const struct cuda_launch *launch, size_t n, float *grad, float *average,
                       const struct muon_args *args, const struct cuda_gate_in *gate)
{
    const muon_momentum f = {grad, average, *args, (const struct muon_args *)launch->live};
    return run_optimizer(launch, f, nullptr, gate, n, is_aligned(grad, average));
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

struct adagrad {
    float *param, *sum;
    const float *grad;
    struct adagrad_args given;
    const struct adagrad_args *live;
    template <int V>
    __device__ pack<float, V> at(int64_t i, float scale, const struct adagrad_args &args) const
    {
        pack<float, V> p = load<V>(param + i), s = load<V>(sum + i), gradient = load<V>(grad + i);
        for (int v = 0; v < V; v++) {
            float scaled = gradient.at[v] * scale;
            float g = args.weight_decay == 0 ? scaled : fmaf(p.at[v], args.weight_decay, scaled);
            s.at[v] = fmaf(g, g, s.at[v]);
            p.at[v] = p.at[v] + -args.decayed_lr * g / (sqrtf(s.at[v]) + args.eps);
        }
        store(param + i, p);
        store(sum + i, s);
        return p;
    }
};

int cuda_adagrad(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
                 const float *grad, float *sum, const struct adagrad_args *args,
                 const struct cuda_gate_in *gate)
{
    const adagrad f = {param, sum, grad, *args, (const struct adagrad_args *)launch->live};
    return run_optimizer(launch, f, copy, gate, n, is_aligned(param, sum, grad));
}

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

/* ---- flat memory ---- */

__global__ void __launch_bounds__(BLOCK) add_kernel(float *to, const float *from, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK)
        to[i] += from[i];
}

int cuda_add(const struct cuda_launch *launch, size_t n, float *to, const float *from)
{
    return start(launch, add_kernel, grid_of(launch, (int64_t)n), BLOCK, to, from, (int64_t)n);
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

/* n is a number of packs. */
template <int V>
__global__ void __launch_bounds__(BLOCK) round_kernel(bf16 *out, const float *in, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK) {
        pack<float, V> values = load<V>(in + i * V);
        pack<bf16, V> result;
        for (int v = 0; v < V; v++) result.at[v] = rounded<bf16>(values.at[v]);
        store(out + i * V, result);
    }
}

int cuda_f32_to_bf16(const struct cuda_launch *launch, size_t n, uint16_t *out, const float *in)
{
    constexpr int V = full_pack<float>();
    int64_t count = (int64_t)n, packs = count / V;
    if (count % V == 0 && is_aligned(in) && (uintptr_t)out % sizeof(pack<bf16, V>) == 0)
        return start(launch, round_kernel<V>, grid_of(launch, packs), BLOCK, (bf16 *)out, in,
                     packs);
    return start(launch, round_kernel<1>, grid_of(launch, count), BLOCK, (bf16 *)out, in, count);
}

__global__ void __launch_bounds__(BLOCK) round_in_place(float *values, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK)
        values[i] = to_float(rounded<bf16>(values[i]));
}

int cuda_round_in_place(const struct cuda_launch *launch, size_t n, float *values)
{
    return start(launch, round_in_place, grid_of(launch, (int64_t)n), BLOCK, values, (int64_t)n);
}

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

__global__ void progress_kernel(uint32_t *count, volatile uint32_t *host_count, bool begins)
{
    if (threadIdx.x != 0) return;
    uint32_t next = begins ? (*count + 1) | 1 : (*count + 1) & ~(uint32_t)1;
    *count = next;
    *host_count = next;
}

int cuda_count(const struct cuda_launch *launch, uint32_t *count, uint32_t *host_count, bool begins)
{
    return start(launch, progress_kernel, dim3(1), WARP, count, (volatile uint32_t *)host_count,
                 begins);
}

__global__ void delivery_kernel(uint32_t *count, volatile uint32_t *host_count)
{
    if (threadIdx.x != 0) return;
    uint32_t next = *count + 1;
    *count = next;
    __threadfence_system();
    *host_count = next;
}

int cuda_count_delivery(const struct cuda_launch *launch, uint32_t *count, uint32_t *host_count)
{
    return start(launch, delivery_kernel, dim3(1), WARP, count, (volatile uint32_t *)host_count);
}

} // namespace fsdpd
