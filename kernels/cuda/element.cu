/* Ops on single elements: one pass over memory, 16 bytes at a time where everything is aligned. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

/* ---- arithmetic of one element, in f32 ---- */

struct relu {
    __device__ float operator()(float x) const
    {
        return x <= 0 ? 0 : x;
    }
};
struct relu_backward {
    __device__ float operator()(float dy, float y) const
    {
        return y <= 0 ? 0 : dy;
    }
};
struct identity {
    __device__ float operator()(float x) const
    {
        return x;
    }
};
struct product {
    __device__ float operator()(float a, float b) const
    {
        return a * b;
    }
};
struct total {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

/* sqrt(2 / pi), and the coefficient of the cube in the approximation by tanh. */
#define GELU_ROOT 0.79788456080286535588f
#define GELU_CUBE 0.044715f

/* The root of a half, in two parts: what the first multiplication rounds away matters far out. */
#define SQRT_HALF 0.70710678118654752440f
#define SQRT_HALF_REST 1.21016175e-8f
#define TWO_BY_ROOT_PI 1.12837916709551257390f

/* erfc(-x / sqrt(2)): twice the part of a normal distribution that lies below x. */
__device__ static float twice_below(float x)
{
    float z = -x * SQRT_HALF, density = TWO_BY_ROOT_PI * expf(-z * z);
    float away = fmaf(-x, SQRT_HALF, -z) - x * SQRT_HALF_REST;
    return density == 0 ? erfcf(z) : erfcf(z) - density * away;
}

/* __fdividef is within 2 units of the last place, and 0 where the divisor is above 2^126: so is the
 * result then. */

/* 1 + tanh(z), without losing the small results of large negative z. */
__device__ static float one_plus_tanh(float z)
{
    return __fdividef(2, 1 + expf(-2 * z));
}

struct gelu_exact {
    __device__ float operator()(float x) const
    {
        return 0.5f * x * twice_below(x);
    }
};
struct gelu_tanh {
    __device__ float operator()(float x) const
    {
        float z = GELU_ROOT * (x + GELU_CUBE * x * x * x);
        return 0.5f * x * one_plus_tanh(z);
    }
};
struct gelu_exact_backward {
    __device__ float operator()(float dy, float x) const
    {
        float density = expf(-0.5f * x * x) * (0.5f * GELU_ROOT);
        float tail = density == 0 ? 0 : x * density; /* not infinity times zero */
        return dy * (0.5f * twice_below(x) + tail);
    }
};
struct gelu_tanh_backward {
    __device__ float operator()(float dy, float x) const
    {
        float z = GELU_ROOT * (x + GELU_CUBE * x * x * x);
        float up = one_plus_tanh(z), down = __fdividef(2, 1 + expf(2 * z));
        float slope = GELU_ROOT * (1 + 3 * GELU_CUBE * x * x);
        float bend = up * down; /* 1 - tanh(z)^2 */
        return dy * (0.5f * up + (bend == 0 ? 0 : 0.5f * x * bend * slope));
    }
};
__device__ static float sigmoid(float x)
{
    return __fdividef(1, 1 + expf(-x));
}
__device__ static float silu_slope(float x)
{
    float s = sigmoid(x), rest = sigmoid(-x); /* 1 - s */
    return s * (1 + (rest == 0 ? 0 : x * rest));
}
struct silu {
    /* -infinity gives -0, as the limit is */
    __device__ float operator()(float x) const
    {
        return __fdividef(x, 1 + expf(-x));
    }
};
struct silu_backward {
    __device__ float operator()(float dy, float x) const
    {
        float s = sigmoid(x);
        return s == 0 ? dy * 0 : dy * silu_slope(x);
    }
};
struct silu_times {
    __device__ float operator()(float gate, float x) const
    {
        return __fdividef(gate, 1 + expf(-gate)) * x;
    }
};

/* ---- how elements are gone through ---- */

/* F::at<V>(i) does elements i to i + V - 1. */
template <typename F, int V> __global__ void __launch_bounds__(BLOCK) map_kernel(F f, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * BLOCK * V;
    for (int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V; i < n; i += step) {
        if (i + V <= n) f.template at<V>(i);
        else
            for (int64_t j = i; j < n; j++) f.template at<1>(j);
    }
}

template <typename T, typename F>
static int map(const struct cuda_launch *launch, const F &f, int64_t n, bool aligned)
{
    if (n == 0) return 0;
    constexpr int V = full_pack<T>();
    if (aligned)
        return start(launch, map_kernel<F, V>, grid_of(launch, (n + V - 1) / V), BLOCK, f, n);
    return start(launch, map_kernel<F, 1>, grid_of(launch, n), BLOCK, f, n);
}

template <typename T, typename F> struct unary {
    F f;
    const T *x;
    T *y;
    bool add;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<T, V> in = load<V>(x + i), out;
        if (add) out = load<V>(y + i);
        for (int v = 0; v < V; v++) {
            float value = f(to_float(in.at[v]));
            out.at[v] = rounded<T>(add ? to_float(out.at[v]) + value : value);
        }
        store(y + i, out);
    }
};

template <typename T, typename F> struct binary {
    F f;
    const T *a, *b;
    T *y;
    bool add;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<T, V> first = load<V>(a + i), second = load<V>(b + i), out;
        if (add) out = load<V>(y + i);
        for (int v = 0; v < V; v++) {
            float value = f(to_float(first.at[v]), to_float(second.at[v]));
            out.at[v] = rounded<T>(add ? to_float(out.at[v]) + value : value);
        }
        store(y + i, out);
    }
};

/* y (rows, columns) = a + b (columns). */
template <typename T> struct repeated {
    const T *a, *b;
    T *y;
    int64_t rows, columns; /* a multiple of V */
    bool add;
};

/* blockIdx.x: BLOCK packs of columns, whose part of b stays in registers; the rest is rows. */
template <typename T, int V>
__global__ void __launch_bounds__(BLOCK) repeated_kernel(const repeated<T> f)
{
    int64_t column = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V;
    if (column >= f.columns) return;
    pack<T, V> second = load<V>(f.b + column);
    for (int64_t row = blockIdx.y; row < f.rows; row += gridDim.y) {
        int64_t i = row * f.columns + column;
        pack<T, V> first = load<V>(f.a + i), out;
        if (f.add) out = load<V>(f.y + i);
        for (int v = 0; v < V; v++) {
            float value = to_float(first.at[v]) + to_float(second.at[v]);
            out.at[v] = rounded<T>(f.add ? to_float(out.at[v]) + value : value);
        }
        store(f.y + i, out);
    }
}

template <typename T>
static int add_repeated(const struct cuda_launch *launch, const repeated<T> &f)
{
    constexpr int V = full_pack<T>();
    bool packs = is_aligned(f.a, f.b, f.y) && f.columns % V == 0;
    int64_t wide = (f.columns / (packs ? V : 1) + BLOCK - 1) / BLOCK;
    int64_t high = ((int64_t)launch->processors * 8 + wide - 1) / wide;
    dim3 grid((unsigned)wide, (unsigned)(f.rows < high ? f.rows : high));
    if (packs) return start(launch, repeated_kernel<T, V>, grid, BLOCK, f);
    return start(launch, repeated_kernel<T, 1>, grid, BLOCK, f);
}

template <typename T> struct silu_mul_backward {
    const T *dy, *gate, *x;
    T *dgate, *dx;
    bool add_gate, add_x;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<T, V> d = load<V>(dy + i), g = load<V>(gate + i), in = load<V>(x + i), og, ox;
        if (add_gate) og = load<V>(dgate + i);
        if (add_x) ox = load<V>(dx + i);
        for (int v = 0; v < V; v++) {
            float gradient = to_float(d.at[v]), open = to_float(g.at[v]);
            float to_gate = gradient * to_float(in.at[v]) * silu_slope(open);
            float to_x = gradient * __fdividef(open, 1 + expf(-open));
            og.at[v] = rounded<T>(add_gate ? to_float(og.at[v]) + to_gate : to_gate);
            ox.at[v] = rounded<T>(add_x ? to_float(ox.at[v]) + to_x : to_x);
        }
        store(dgate + i, og);
        store(dx + i, ox);
    }
};

/* The numbers of op.h: element i has word i % 4 of the block of counter i / 4. */
template <typename T> struct dropout {
    const T *x;
    T *y;
    bool add;
    uint64_t threshold;
    float scale;
    uint32_t key[2], stream, step, rank;
    const uint64_t *live; /* the step, where it is not `step`; NULL */
    template <int V> __device__ void at(int64_t i) const
    {
        pack<T, V> in = load<V>(x + i), out;
        if (add) out = load<V>(y + i);
        uint32_t words[4], now = live != nullptr ? (uint32_t)*live : step;
        for (int v = 0; v < V; v++) {
            if (v % 4 == 0) {
                uint32_t counter[4] = {(uint32_t)((i + v) / 4), stream, now, rank};
                philox_block(counter, key, words);
            }
            uint32_t word = V == 1 ? word_of(words, (uint64_t)i) : words[v % 4];
            float value = word >= threshold ? to_float(in.at[v]) * scale : 0;
            out.at[v] = rounded<T>(add ? to_float(out.at[v]) + value : value);
        }
        store(y + i, out);
    }
};

template <typename From, typename To> struct cast {
    const From *x;
    To *y;
    bool add;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<From, V> in = load<V>(x + i);
        pack<To, V> out;
        if (add) out = load<V>(y + i);
        for (int v = 0; v < V; v++) {
            float value = to_float(in.at[v]);
            out.at[v] = rounded<To>(add ? to_float(out.at[v]) + value : value);
        }
        store(y + i, out);
    }
};

struct positions {
    int32_t *y;
    int64_t first, step;
    template <int V> __device__ void at(int64_t i) const
    {
        for (int v = 0; v < V; v++) y[i + v] = (int32_t)(first + (i + v) * step);
    }
};

struct padding_mask {
    const int32_t *tokens;
    uint8_t *mask;
    int32_t id;
    template <int V> __device__ void at(int64_t i) const
    {
        for (int v = 0; v < V; v++) mask[i + v] = tokens[i + v] != id;
    }
};

/* ---- ops ---- */

/* The operands of a run. */
struct operands {
    const struct cuda_op *op;
    const struct kernel_call *call;
    const struct cuda_launch *launch;
    int64_t n;
};

template <typename T, typename F> static int run_unary(const operands &o, F f)
{
    const T *x = input_of<T>(o.call, 0);
    T *y = output_of<T>(o.call, 0);
    return map<T>(o.launch, unary<T, F>{f, x, y, o.op->desc.accumulate[0]}, o.n, is_aligned(x, y));
}

template <typename T, typename F> static int run_binary(const operands &o, F f)
{
    const T *a = input_of<T>(o.call, 0), *b = input_of<T>(o.call, 1);
    T *y = output_of<T>(o.call, 0);
    return map<T>(o.launch, binary<T, F>{f, a, b, y, o.op->desc.accumulate[0]}, o.n,
                  is_aligned(a, b, y));
}

template <typename T> static int run_add(const operands &o)
{
    const struct op_desc *desc = &o.op->desc;
    int64_t period = count_of(&desc->inputs[1]);
    if (period == o.n) return run_binary<T>(o, total());
    const T *a = input_of<T>(o.call, 0), *b = input_of<T>(o.call, 1);
    T *y = output_of<T>(o.call, 0);
    return add_repeated(o.launch, repeated<T>{a, b, y, o.n / period, period, desc->accumulate[0]});
}

template <typename T> static int run_silu_mul_backward(const operands &o)
{
    const struct op_desc *desc = &o.op->desc;
    silu_mul_backward<T> f = {input_of<T>(o.call, 0),  input_of<T>(o.call, 1),
                              input_of<T>(o.call, 2),  output_of<T>(o.call, 0),
                              output_of<T>(o.call, 1), desc->accumulate[0],
                              desc->accumulate[1]};
    return map<T>(o.launch, f, o.n, is_aligned(f.dy, f.gate, f.x, f.dgate, f.dx));
}

template <typename T> static int run_element(const operands &o)
{
    const struct op_desc *desc = &o.op->desc;
    bool tanh = desc->attrs.gelu.tanh;
    switch (desc->kind) {
    case OP_RELU: return run_unary<T>(o, relu());
    case OP_RELU_BACKWARD: return run_binary<T>(o, relu_backward());
    case OP_RESHAPE: return run_unary<T>(o, identity());
    case OP_ADD: return run_add<T>(o);
    case OP_MUL: return run_binary<T>(o, product());
    case OP_GELU: return tanh ? run_unary<T>(o, gelu_tanh()) : run_unary<T>(o, gelu_exact());
    case OP_GELU_BACKWARD:
        return tanh ? run_binary<T>(o, gelu_tanh_backward())
                    : run_binary<T>(o, gelu_exact_backward());
    case OP_SILU: return run_unary<T>(o, silu());
    case OP_SILU_BACKWARD: return run_binary<T>(o, silu_backward());
    case OP_SILU_MUL: return run_binary<T>(o, silu_times());
    default: return run_silu_mul_backward<T>(o);
    }
}

int cuda_run_element(const struct cuda_op *op, const struct kernel_call *call,
                     const struct cuda_launch *launch)
{
    operands o = {op, call, launch, count_of(&op->desc.inputs[0])};
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_element<bf16>(o) : run_element<float>(o);
}

template <typename T> static int run_dropout(const operands &o)
{
    const struct op_desc *desc = &o.op->desc;
    double p = desc->attrs.dropout.p;
    dropout<T> f = {input_of<T>(o.call, 0),
                    output_of<T>(o.call, 0),
                    desc->accumulate[0],
                    philox_threshold(p),
                    (float)(1 / (1 - p)),
                    {(uint32_t)o.call->seed, (uint32_t)(o.call->seed >> 32)},
                    desc->attrs.dropout.stream,
                    (uint32_t)o.call->step,
                    o.call->rank,
                    (const uint64_t *)o.launch->live};
    return map<T>(o.launch, f, o.n, is_aligned(f.x, f.y));
}

int cuda_run_dropout(const struct cuda_op *op, const struct kernel_call *call,
                     const struct cuda_launch *launch)
{
    operands o = {op, call, launch, count_of(&op->desc.inputs[0])};
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_dropout<bf16>(o) : run_dropout<float>(o);
}

template <typename From, typename To> static int run_cast(const operands &o)
{
    cast<From, To> f = {input_of<From>(o.call, 0), output_of<To>(o.call, 0),
                        o.op->desc.accumulate[0]};
    /* the narrower one in 16 bytes; a warp's accesses to the other are still whole lines */
    return map<bf16>(o.launch, f, o.n,
                     is_aligned(f.x, f.y) && sizeof(pack<float, 8>) == 32 &&
                         (uintptr_t)f.x % 32 == 0 && (uintptr_t)f.y % 32 == 0);
}

int cuda_run_cast(const struct cuda_op *op, const struct kernel_call *call,
                  const struct cuda_launch *launch)
{
    operands o = {op, call, launch, count_of(&op->desc.inputs[0])};
    bool from = op->desc.inputs[0].dtype == DTYPE_BF16,
         to = op->desc.outputs[0].dtype == DTYPE_BF16;
    if (from) return to ? run_cast<bf16, bf16>(o) : run_cast<bf16, float>(o);
    return to ? run_cast<float, bf16>(o) : run_cast<float, float>(o);
}

int cuda_run_tokens(const struct cuda_op *op, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    if (desc->kind == OP_ARANGE)
        return map<float>(launch,
                          positions{output_of<int32_t>(call, 0), desc->attrs.arange.start,
                                    desc->attrs.arange.step},
                          count_of(&desc->outputs[0]), false);
    return map<float>(launch,
                      padding_mask{input_of<int32_t>(call, 0), output_of<uint8_t>(call, 0),
                                   desc->attrs.padding_mask.id},
                      count_of(&desc->inputs[0]), false);
}

template <typename T, typename F>
static int map_unary(const struct cuda_launch *launch, void *y, const void *x, int64_t n)
{
    unary<T, F> f = {F(), (const T *)x, (T *)y, false};
    return map<T>(launch, f, n, is_aligned(f.x, f.y));
}

template <typename T, typename F>
static int map_binary(const struct cuda_launch *launch, void *y, const void *a, const void *b,
                      int64_t n)
{
    binary<T, F> f = {F(), (const T *)a, (const T *)b, (T *)y, false};
    return map<T>(launch, f, n, is_aligned(f.a, f.b, f.y));
}

int cuda_relu_in_place(const struct cuda_launch *launch, enum dtype dtype, void *y, int64_t n)
{
    if (dtype == DTYPE_BF16) return map_unary<bf16, relu>(launch, y, y, n);
    return map_unary<float, relu>(launch, y, y, n);
}

int cuda_gelu(const struct cuda_launch *launch, enum dtype dtype, void *y, const void *x, int64_t n)
{
    if (dtype == DTYPE_BF16) return map_unary<bf16, gelu_tanh>(launch, y, x, n);
    return map_unary<float, gelu_tanh>(launch, y, x, n);
}

int cuda_gelu_backward(const struct cuda_launch *launch, enum dtype dtype, void *dx, const void *dy,
                       const void *x, int64_t n)
{
    if (dtype == DTYPE_BF16) return map_binary<bf16, gelu_tanh_backward>(launch, dx, dy, x, n);
    return map_binary<float, gelu_tanh_backward>(launch, dx, dy, x, n);
}

template <typename T>
static int add_bias(const struct cuda_launch *launch, T *y, const T *bias, int64_t rows,
                    int64_t columns)
{
    return add_repeated(launch, repeated<T>{y, bias, y, rows, columns, false});
}

int cuda_add_bias(const struct cuda_launch *launch, enum dtype dtype, void *y, const void *bias,
                  int64_t rows, int64_t columns)
{
    if (dtype == DTYPE_BF16) return add_bias(launch, (bf16 *)y, (const bf16 *)bias, rows, columns);
    return add_bias(launch, (float *)y, (const float *)bias, rows, columns);
}
