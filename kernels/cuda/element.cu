/* Ops on single elements: one pass over memory, 16 bytes at a time where everything is aligned. */
#include "kernels/cuda/draw.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"
#include "kernels/distance.h"

namespace fsdpd {

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
struct bf16_value {
    __device__ float operator()(float x) const
    {
        return to_float(rounded<bf16>(x));
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

/* The root of one half, in two parts: far from 0 the rounding error of the first product
 * matters. */
#define SQRT_HALF 0.70710678118654752440f
#define SQRT_HALF_REST 1.21016175e-8f
#define TWO_BY_ROOT_PI 1.12837916709551257390f

/* erfc(-x / sqrt(2)): twice the probability that a normal variable is below x. */
__device__ static float twice_below(float x)
{
    float z = -x * SQRT_HALF, density = TWO_BY_ROOT_PI * expf(-z * z);
    float away = fmaf(-x, SQRT_HALF, -z) - x * SQRT_HALF_REST;
    return density == 0 ? erfcf(z) : erfcf(z) - density * away;
}

/* __fdividef has an error of at most 2 units in the last place. It gives 0 where the divisor is
 * above 2^126; so does the result here. */

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
        float tail = density == 0 ? 0 : x * density; /* 0, not infinity times zero */
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
        float s = sigmoid(x), rest = sigmoid(-x); /* 1 - s */
        return s == 0 ? dy * 0 : dy * (s * (1 + (rest == 0 ? 0 : x * rest)));
    }
};

/* A gate, as silu, gelu_exact or gelu_tanh make it. */
template <typename F> struct gate_times {
    __device__ float operator()(float gate, float x) const
    {
        return F()(gate) * x;
    }
};

struct hyperbolic_tangent {
    __device__ float operator()(float x) const
    {
        return tanhf(x);
    }
};
struct hyperbolic_tangent_backward {
    __device__ float operator()(float dy, float y) const
    {
        return dy * fmaf(-y, y, 1);
    }
};

struct quotient {
    __device__ float operator()(float a, float b) const
    {
        return a / b;
    }
};
struct scaled {
    float factor, offset;
    __device__ float operator()(float x) const
    {
        return fmaf(x, factor, offset);
    }
};
struct reciprocal {
    float factor;
    __device__ float operator()(float x) const
    {
        return factor / x;
    }
};
/* expf(-x) is infinite far below 0, and so is the divisor. */
struct logistic {
    __device__ float operator()(float x) const
    {
        return 1 / (1 + expf(-x));
    }
};
struct logistic_backward {
    __device__ float operator()(float dy, float y) const
    {
        return dy * fmaf(-y, y, y);
    }
};
struct squared_relu {
    __device__ float operator()(float x) const
    {
        return x <= 0 ? 0 : x * x;
    }
};
struct squared_relu_backward {
    __device__ float operator()(float dy, float x) const
    {
        return x <= 0 ? 0 : 2 * x * dy;
    }
};

/* f(x) and its slope, by an enum op_function. */
struct function {
    op_function kind;
    float parameter;
    __device__ float operator()(float x) const
    {
        switch (kind) {
        case FUNCTION_LEAKY_RELU: return x > 0 ? x : parameter * x;
        case FUNCTION_ELU: return x > 0 ? x : parameter * expm1f(x);
        case FUNCTION_RELU6: return x < 0 ? 0 : x > 6 ? 6 : x;
        case FUNCTION_HARDSWISH: return x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6;
        case FUNCTION_HARDSIGMOID: return x <= -3 ? 0 : x >= 3 ? 1 : (x + 3) / 6;
        case FUNCTION_EXP: return expf(x);
        case FUNCTION_LOG: return logf(x);
        case FUNCTION_SQRT: return sqrtf(x);
        case FUNCTION_POW: return powf(x, parameter);
        case FUNCTION_ABOVE: return x > parameter ? 1 : 0;
        case FUNCTION_AT_LEAST: return x >= parameter ? 1 : 0;
        default: return fabsf(x);
        }
    }
};
struct function_backward {
    op_function kind;
    float parameter;
    __device__ float operator()(float dy, float x) const
    {
        switch (kind) {
        case FUNCTION_LEAKY_RELU: return x > 0 ? dy : parameter * dy;
        case FUNCTION_ELU: return x > 0 ? dy : dy * (parameter * expf(x));
        case FUNCTION_RELU6: return x > 0 && x < 6 ? dy : 0;
        case FUNCTION_HARDSWISH: return x < -3 ? 0 : x > 3 ? dy : dy * (x / 3 + 0.5F);
        case FUNCTION_HARDSIGMOID: return x > -3 && x < 3 ? dy / 6 : 0;
        case FUNCTION_EXP: return dy * expf(x);
        case FUNCTION_LOG: return dy / x;
        case FUNCTION_SQRT: return dy * 0.5F / sqrtf(x);
        case FUNCTION_POW: return parameter == 0 ? 0 : dy * parameter * powf(x, parameter - 1);
        case FUNCTION_ABOVE:
        case FUNCTION_AT_LEAST: return 0;
        default: return x > 0 ? dy : x < 0 ? -dy : 0;
        }
    }
};

/* ---- loops over elements ---- */

/* F::at<V>(i) handles elements i to i + V - 1. */
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
        for (int v = 0; v < V; v++) put(&out.at[v], f(to_float(in.at[v])), add);
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
        for (int v = 0; v < V; v++)
            put(&out.at[v], f(to_float(first.at[v]), to_float(second.at[v])), add);
        store(y + i, out);
    }
};

/* y (rows, columns) = f(a, b (columns)). */
template <typename T, typename F> struct repeated {
    F f;
    const T *a, *b;
    T *y;
    int64_t rows, columns; /* a multiple of V */
    bool add;
};

/* blockIdx.x: BLOCK packs of columns, whose part of b stays in registers; blockIdx.y: a share of
 * the rows. */
template <typename T, typename F, int V>
__global__ void __launch_bounds__(BLOCK) repeated_kernel(const repeated<T, F> f)
{
    int64_t column = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V;
    if (column >= f.columns) return;
    pack<T, V> second = load<V>(f.b + column);
    for (int64_t row = blockIdx.y; row < f.rows; row += gridDim.y) {
        int64_t i = row * f.columns + column;
        pack<T, V> first = load<V>(f.a + i), out;
        if (f.add) out = load<V>(f.y + i);
        for (int v = 0; v < V; v++)
            put(&out.at[v], f.f(to_float(first.at[v]), to_float(second.at[v])), f.add);
        store(f.y + i, out);
    }
}

template <typename T, typename F>
static int run_repeated(const struct cuda_launch *launch, const repeated<T, F> &f)
{
    constexpr int V = full_pack<T>();
    bool packs = is_aligned(f.a, f.b, f.y) && f.columns % V == 0;
    int64_t wide = (f.columns / (packs ? V : 1) + BLOCK - 1) / BLOCK;
    int64_t high = ((int64_t)launch->processors * 8 + wide - 1) / wide;
    dim3 grid((unsigned)wide, (unsigned)(f.rows < high ? f.rows : high));
    if (packs) return start(launch, repeated_kernel<T, F, V>, grid, BLOCK, f);
    return start(launch, repeated_kernel<T, F, 1>, grid, BLOCK, f);
}

/* The gradient of a divisor whose elements may repeat. */
template <typename T> struct divisor_backward {
    const T *dy, *y, *b;
    T *db;
    int64_t period;
    bool add;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<T, V> first = load<V>(dy + i), second = load<V>(y + i), out;
        if (add) out = load<V>(db + i);
        int64_t place = i % period;
        for (int v = 0; v < V; v++) {
            float ratio = to_float(second.at[v]) / to_float(b[place]);
            if (++place == period) place = 0;
            put(&out.at[v], -to_float(first.at[v]) * ratio, add);
        }
        store(db + i, out);
    }
};

/* F: the gate; S: its derivative, times a gradient. */
template <typename T, typename F, typename S> struct gate_backward {
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
            float to_gate = S()(gradient * to_float(in.at[v]), open), to_x = gradient * F()(open);
            put(&og.at[v], to_gate, add_gate);
            put(&ox.at[v], to_x, add_x);
        }
        store(dgate + i, og);
        store(dx + i, ox);
    }
};

/* The random numbers of op.h: element i has word i % 4 of the block of counter i / 4. */
template <typename T> struct dropout {
    const T *x;
    T *y;
    bool add;
    cuda_draw random;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<T, V> in = load<V>(x + i), out;
        if (add) out = load<V>(y + i);
        float factors[V];
        draw_factors<V>(random, drawn_now(random), (uint64_t)i, factors);
        for (int v = 0; v < V; v++)
            put(&out.at[v], factors[v] != 0 ? to_float(in.at[v]) * factors[v] : 0, add);
        store(y + i, out);
    }
};

template <typename T> struct normal_draws {
    T *y;
    bool add;
    cuda_draw random;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<T, V> out;
        if (add) out = load<V>(y + i);
        drawn now = drawn_now(random);
        for (int v = 0; v < V; v++)
            put(&out.at[v], draw_normal(random, now, (uint64_t)(i + v)), add);
        store(y + i, out);
    }
};

/* Which probabilities dropout keeps, for attention by a library. */
struct kept_probabilities {
    bf16 *y;
    cuda_draw random;
    uint64_t start;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<bf16, V> out;
        float factors[V];
        draw_factors<V>(random, drawn_now(random, start), (uint64_t)i, factors);
        for (int v = 0; v < V; v++) out.at[v] = rounded<bf16>(factors[v] != 0 ? 1 : 0);
        store(y + i, out);
    }
};

/* What hides keys in the scores of attention by a library. Not -infinity, which makes a row that
 * sees none of the first keys NaN in some libraries. */
struct hidden_keys {
    const uint8_t *mask;
    bf16 *y;
    int64_t time, row;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<bf16, V> out;
        int64_t key = i % row;
        const uint8_t *seen = mask + i / row * time + key;
        for (int v = 0; v < V; v++)
            out.at[v] = rounded<bf16>(key + v < time && seen[v] != 0 ? 0 : -0x1p100f);
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
        for (int v = 0; v < V; v++) put(&out.at[v], to_float(in.at[v]), add);
        store(y + i, out);
    }
};

struct positions {
    int32_t *y;
    const int32_t *starts; /* of a row's documents; NULL: one row, and it is one document */
    int64_t time, first, step;
    template <int V> __device__ void at(int64_t i) const
    {
        for (int v = 0; v < V; v++) {
            int64_t position = (i + v) % time - (starts != nullptr ? starts[i + v] : 0);
            y[i + v] = (int32_t)(first + position * step);
        }
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

/* A thread numbers a row: there are few rows, and they are short. */
struct token_positions {
    const int32_t *tokens;
    int32_t *y;
    int64_t time;
    int32_t id;
    template <int V> __device__ void at(int64_t i) const
    {
        for (int64_t row = i; row < i + V; row++) {
            int32_t seen = 0;
            for (int64_t at = row * time; at < (row + 1) * time; at++)
                y[at] = tokens[at] != id ? id + ++seen : id;
        }
    }
};

struct row_tokens {
    const float *x; /* at the first column */
    int32_t *y;
    int64_t columns, time;
    float count;
    template <int V> __device__ void at(int64_t i) const
    {
        for (int64_t j = i; j < i + V; j++) {
            float id = x[j / time * columns + j % time];
            y[j] = id >= 0 && id < count ? (int32_t)id : 0;
        }
    }
};

struct distance_buckets {
    int32_t *y;
    int64_t time;
    int32_t count, far;
    template <int V> __device__ void at(int64_t i) const
    {
        for (int64_t j = i; j < i + V; j++) y[j] = distance_bucket(count, far, j - (time - 1));
    }
};

/* ---- ops ---- */

/* The operands of a run. */
struct operands {
    const struct op_desc *desc;
    const struct kernel_call *call;
    const struct cuda_launch *launch;
    int64_t n;
};

template <typename T, typename F> static int run_unary(const operands &o, F f)
{
    const T *x = input_of<T>(o.call, 0);
    T *y = output_of<T>(o.call, 0);
    return map<T>(o.launch, unary<T, F>{f, x, y, o.desc->accumulate[0]}, o.n, is_aligned(x, y));
}

template <typename T, typename F> static int run_binary(const operands &o, F f)
{
    const T *a = input_of<T>(o.call, 0), *b = input_of<T>(o.call, 1);
    T *y = output_of<T>(o.call, 0);
    return map<T>(o.launch, binary<T, F>{f, a, b, y, o.desc->accumulate[0]}, o.n,
                  is_aligned(a, b, y));
}

/* For ops whose second operand may repeat. */
template <typename T, typename F> static int run_broadcast(const operands &o, F f)
{
    int64_t period = count_of(&o.desc->inputs[1]);
    if (period == o.n) return run_binary<T>(o, f);
    const T *a = input_of<T>(o.call, 0), *b = input_of<T>(o.call, 1);
    T *y = output_of<T>(o.call, 0);
    repeated<T, F> job = {f, a, b, y, o.n / period, period, o.desc->accumulate[0]};
    return run_repeated(o.launch, job);
}

template <typename T> static int run_div_backward(const operands &o)
{
    const struct op_desc *desc = o.desc;
    divisor_backward<T> f = {input_of<T>(o.call, 0),     input_of<T>(o.call, 1),
                             input_of<T>(o.call, 2),     output_of<T>(o.call, 0),
                             count_of(&desc->inputs[2]), desc->accumulate[0]};
    return map<T>(o.launch, f, o.n, is_aligned(f.dy, f.y, f.db));
}

template <typename T, typename F, typename S> static int run_gate_backward(const operands &o)
{
    const struct op_desc *desc = o.desc;
    gate_backward<T, F, S> f = {input_of<T>(o.call, 0),  input_of<T>(o.call, 1),
                                input_of<T>(o.call, 2),  output_of<T>(o.call, 0),
                                output_of<T>(o.call, 1), desc->accumulate[0],
                                desc->accumulate[1]};
    return map<T>(o.launch, f, o.n, is_aligned(f.dy, f.gate, f.x, f.dgate, f.dx));
}

template <typename T>
static int run_element(const struct op_desc *desc, const struct kernel_call *call,
                       const struct cuda_launch *launch)
{
    const operands o = {desc, call, launch, count_of(&desc->inputs[0])};
    const op_attrs &attrs = desc->attrs; /* other ops' have no flag where GELU's is */
    float factor = (float)attrs.scale.factor, offset = (float)attrs.scale.offset;
    switch (desc->kind) {
    case OP_RELU: return run_unary<T>(o, relu());
    case OP_RELU_BACKWARD: return run_binary<T>(o, relu_backward());
    case OP_RESHAPE: return run_unary<T>(o, identity());
    case OP_ADD: return run_broadcast<T>(o, total());
    case OP_MUL: return run_broadcast<T>(o, product());
    case OP_DIV: return run_broadcast<T>(o, quotient());
    case OP_DIV_BACKWARD: return run_div_backward<T>(o);
    case OP_SCALE: return run_unary<T>(o, scaled{factor, offset});
    case OP_RECIPROCAL: return run_unary<T>(o, reciprocal{factor});
    case OP_SIGMOID: return run_unary<T>(o, logistic());
    case OP_SIGMOID_BACKWARD: return run_binary<T>(o, logistic_backward());
    case OP_SQUARED_RELU: return run_unary<T>(o, squared_relu());
    case OP_SQUARED_RELU_BACKWARD: return run_binary<T>(o, squared_relu_backward());
    case OP_GELU:
        return attrs.gelu.tanh ? run_unary<T>(o, gelu_tanh()) : run_unary<T>(o, gelu_exact());
    case OP_GELU_BACKWARD:
        return attrs.gelu.tanh ? run_binary<T>(o, gelu_tanh_backward())
                               : run_binary<T>(o, gelu_exact_backward());
    case OP_TANH: return run_unary<T>(o, hyperbolic_tangent());
    case OP_TANH_BACKWARD: return run_binary<T>(o, hyperbolic_tangent_backward());
    case OP_FUNCTION:
        return run_unary<T>(o, function{attrs.function.kind, (float)attrs.function.parameter});
    case OP_FUNCTION_BACKWARD:
        return run_binary<T>(o, function_backward{attrs.function.kind,
                                                  (float)attrs.function.parameter});
    case OP_SILU: return run_unary<T>(o, silu());
    case OP_SILU_BACKWARD: return run_binary<T>(o, silu_backward());
    case OP_SILU_MUL: return run_binary<T>(o, gate_times<silu>());
    case OP_GELU_MUL:
        return attrs.gelu.tanh ? run_binary<T>(o, gate_times<gelu_tanh>())
                               : run_binary<T>(o, gate_times<gelu_exact>());
    case OP_GELU_MUL_BACKWARD:
        return attrs.gelu.tanh ? run_gate_backward<T, gelu_tanh, gelu_tanh_backward>(o)
                               : run_gate_backward<T, gelu_exact, gelu_exact_backward>(o);
    default: return run_gate_backward<T, silu, silu_backward>(o);
    }
}

RUN_BY_TYPE(cuda_run_element, run_element, 0)

template <typename T>
static int run_dropout(const struct op_desc *desc, const struct kernel_call *call,
                       const struct cuda_launch *launch)
{
    cuda_draw random = draw_of(call, launch, desc->attrs.dropout.stream, desc->attrs.dropout.p);
    dropout<T> f = {input_of<T>(call, 0), output_of<T>(call, 0), desc->accumulate[0], random};
    normal_draws<T> draws = {f.y, f.add, random};
    int64_t n = count_of(&desc->inputs[0]);
    if (desc->attrs.dropout.normal) return map<T>(launch, draws, n, is_aligned(f.y));
    return map<T>(launch, f, n, is_aligned(f.x, f.y));
}

RUN_BY_TYPE(cuda_run_dropout, run_dropout, 0)

int cuda_attention_kept(const struct cuda_launch *launch, const struct op_desc *desc,
                        const struct kernel_call *call, int64_t start, int64_t count, void *to)
{
    const kept_probabilities f = {(bf16 *)to,
                                  draw_of(call, launch, desc->attrs.attention.stream,
                                          desc->attrs.attention.p),
                                  (uint64_t)start};
    return map<bf16>(launch, f, count, true);
}

int cuda_attention_hide(const struct cuda_launch *launch, const uint8_t *mask, int64_t samples,
                        int64_t time, int64_t row, void *hiding)
{
    return map<bf16>(launch, hidden_keys{mask, (bf16 *)hiding, time, row}, samples * row, true);
}

template <typename From, typename To> static int run_cast(const operands &o)
{
    cast<From, To> f = {input_of<From>(o.call, 0), output_of<To>(o.call, 0),
                        o.desc->accumulate[0]};
    /* packs of the narrower type have 16 bytes; a warp still accesses whole lines of the other */
    return map<bf16>(o.launch, f, o.n,
                     is_aligned(f.x, f.y) && sizeof(pack<float, 8>) == 32 &&
                         (uintptr_t)f.x % 32 == 0 && (uintptr_t)f.y % 32 == 0);
}

int cuda_run_cast(const struct cuda_op *op, const struct kernel_call *call,
                  const struct cuda_launch *launch)
{
    operands o = {&op->desc, call, launch, count_of(&op->desc.inputs[0])};
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
                          positions{output_of<int32_t>(call, 0),
                                    desc->input_present[1] ? input_of<int32_t>(call, 1) : nullptr,
                                    desc->outputs[0].dims[desc->outputs[0].dim_count - 1],
                                    desc->attrs.arange.start, desc->attrs.arange.step},
                          count_of(&desc->outputs[0]), false);
    if (desc->kind == OP_TOKEN_POSITIONS)
        return map<float>(launch,
                          token_positions{input_of<int32_t>(call, 0), output_of<int32_t>(call, 0),
                                          desc->inputs[0].dims[1], desc->attrs.padding_mask.id},
                          desc->inputs[0].dims[0], false);
    if (desc->kind == OP_TOKENS)
        return map<float>(launch,
                          row_tokens{input_of<float>(call, 0) + desc->attrs.tokens.start,
                                     output_of<int32_t>(call, 0), desc->inputs[0].dims[1],
                                     desc->outputs[0].dims[1], (float)desc->attrs.tokens.count},
                          count_of(&desc->outputs[0]), false);
    if (desc->kind == OP_DISTANCE_BUCKETS) {
        int64_t distances = count_of(&desc->outputs[0]);
        return map<float>(launch,
                          distance_buckets{output_of<int32_t>(call, 0), (distances + 1) / 2,
                                           desc->attrs.buckets.count,
                                           desc->attrs.buckets.max_distance},
                          distances, false);
    }
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

/* ---- flat memory ---- */

int cuda_add(const struct cuda_launch *launch, size_t n, float *to, const float *from)
{
    return map_binary<float, total>(launch, to, to, from, (int64_t)n);
}

int cuda_round_in_place(const struct cuda_launch *launch, size_t n, float *values)
{
    return map_unary<float, bf16_value>(launch, values, values, (int64_t)n);
}

/* Packs of 16 bytes of f32. */
template <typename From, typename To>
static int convert(const struct cuda_launch *launch, size_t n, To *y, const From *x)
{
    constexpr int V = full_pack<float>();
    bool aligned =
        (uintptr_t)x % sizeof(pack<From, V>) == 0 && (uintptr_t)y % sizeof(pack<To, V>) == 0;
    return map<float>(launch, cast<From, To>{x, y, false}, (int64_t)n, aligned);
}

int cuda_f32_to_bf16(const struct cuda_launch *launch, size_t n, uint16_t *out, const float *in)
{
    return convert(launch, n, (bf16 *)out, in);
}

int cuda_bf16_to_f32(const struct cuda_launch *launch, size_t n, float *out, const uint16_t *in)
{
    return convert(launch, n, out, (const bf16 *)in);
}

template <typename T>
static int add_bias(const struct cuda_launch *launch, T *y, const T *bias, int64_t rows,
                    int64_t columns)
{
    return run_repeated(launch, repeated<T, total>{total(), y, bias, y, rows, columns, false});
}

int cuda_add_bias(const struct cuda_launch *launch, enum dtype dtype, void *y, const void *bias,
                  int64_t rows, int64_t columns)
{
    if (dtype == DTYPE_BF16) return add_bias(launch, (bf16 *)y, (const bf16 *)bias, rows, columns);
    return add_bias(launch, (float *)y, (const float *)bias, rows, columns);
}

} // namespace fsdpd
