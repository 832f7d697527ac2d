/*
 * Winograd's F(2x2, 3x3): a tile of 4 x 4 inputs and a 3 x 3 kernel make 2 x 2 outputs with 16
 * multiplications instead of 36 (Lavin and Gray, "Fast algorithms for convolutional neural
 * networks", 2016). Y = A^T [(G g G^T) * (B^T d B)] A, with
 *
 *         1  0 -1  0          1    0    0
 *   B^T = 0  1  1  0     G = 1/2  1/2  1/2     A^T = 1  1  1  0
 *         0 -1  1  0         1/2 -1/2  1/2           0  1 -1 -1
 *         0  1  0 -1          0    0    1
 *
 * The backward transforms are the transposes of these. A transform works on channels; the products
 * over all channels and many tiles are 16 matrix multiplications. Part of loops_body.h.
 */

#if defined(LOOPS_AVX512)
typedef __m512 wide;
enum { WIDE = 16 };
#define WIDE_LOAD(p) _mm512_loadu_ps(p)
#define WIDE_STORE(p, v) _mm512_storeu_ps(p, v)
#define WIDE_ALL(x) _mm512_set1_ps(x)
#define WIDE_RELU(v) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NLE_UQ), v)
#elif defined(LOOPS_AVX2)
typedef __m256 wide;
enum { WIDE = 8 };
#define WIDE_LOAD(p) _mm256_loadu_ps(p)
#define WIDE_STORE(p, v) _mm256_storeu_ps(p, v)
#define WIDE_ALL(x) _mm256_set1_ps(x)
#define WIDE_RELU(v) _mm256_and_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NLE_UQ), v)
#else
typedef float wide; /* for tests only: never selected */
enum { WIDE = 1 };
#define WIDE_LOAD(p) (*(p))
#define WIDE_STORE(p, v) (*(p) = (v))
#define WIDE_ALL(x) (x)
#define WIDE_RELU(v) ((v) <= 0 ? 0 : (v))
#endif

/* v = B^T x B */
LOOP loop_winograd_input(size_t n, float *v, size_t stride, float *const *x)
{
    for (size_t c = 0; c < n; c += WIDE) {
        wide t[4][4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            wide d0 = WIDE_LOAD(x[j] + c), d1 = WIDE_LOAD(x[4 + j] + c);
            wide d2 = WIDE_LOAD(x[8 + j] + c), d3 = WIDE_LOAD(x[12 + j] + c);
            t[0][j] = d0 - d2, t[1][j] = d1 + d2, t[2][j] = d2 - d1, t[3][j] = d1 - d3;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            float *row = v + (size_t)(4 * i) * stride + c;
            WIDE_STORE(row, t[i][0] - t[i][2]);
            WIDE_STORE(row + stride, t[i][1] + t[i][2]);
            WIDE_STORE(row + 2 * stride, t[i][2] - t[i][1]);
            WIDE_STORE(row + 3 * stride, t[i][1] - t[i][3]);
        }
    }
}

/* dx += B v B^T */
LOOP loop_winograd_input_backward(size_t n, float *const *dx, const float *v, size_t stride)
{
    for (size_t c = 0; c < n; c += WIDE) {
        wide t[4][4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const float *column = v + (size_t)j * stride + c;
            wide m0 = WIDE_LOAD(column), m1 = WIDE_LOAD(column + 4 * stride);
            wide m2 = WIDE_LOAD(column + 8 * stride), m3 = WIDE_LOAD(column + 12 * stride);
            t[0][j] = m0, t[1][j] = m1 - m2 + m3, t[2][j] = m1 + m2 - m0, t[3][j] = m3;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            wide r0 = t[i][0], r1 = t[i][1] - t[i][2] + t[i][3];
            wide r2 = t[i][1] + t[i][2] - t[i][0], r3 = t[i][3];
            float *const *to = dx + 4 * i;
            if (i < 3) {
                WIDE_STORE(to[0] + c, WIDE_LOAD(to[0] + c) + r0);
                WIDE_STORE(to[1] + c, WIDE_LOAD(to[1] + c) + r1);
                WIDE_STORE(to[2] + c, WIDE_LOAD(to[2] + c) + r2);
                WIDE_STORE(to[3] + c, WIDE_LOAD(to[3] + c) - r3);
            } else { /* B's last row has a minus, which t omits */
                WIDE_STORE(to[0] + c, WIDE_LOAD(to[0] + c) - r0);
                WIDE_STORE(to[1] + c, WIDE_LOAD(to[1] + c) - r1);
                WIDE_STORE(to[2] + c, WIDE_LOAD(to[2] + c) - r2);
                WIDE_STORE(to[3] + c, WIDE_LOAD(to[3] + c) + r3);
            }
        }
    }
}

/* u = G g G^T */
LOOP loop_winograd_weights(size_t n, float *u, size_t stride, const float *g, size_t g_stride)
{
    const wide half = WIDE_ALL(0.5f);
    for (size_t c = 0; c < n; c += WIDE) {
        wide t[4][3];
#pragma GCC unroll 4
        for (int j = 0; j < 3; j++) {
            const float *column = g + (size_t)j * g_stride + c;
            wide g0 = WIDE_LOAD(column), g1 = WIDE_LOAD(column + 3 * g_stride);
            wide g2 = WIDE_LOAD(column + 6 * g_stride);
            t[0][j] = g0, t[1][j] = (g0 + g2 + g1) * half;
            t[2][j] = (g0 + g2 - g1) * half, t[3][j] = g2;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            float *row = u + (size_t)(4 * i) * stride + c;
            WIDE_STORE(row, t[i][0]);
            WIDE_STORE(row + stride, (t[i][0] + t[i][2] + t[i][1]) * half);
            WIDE_STORE(row + 2 * stride, (t[i][0] + t[i][2] - t[i][1]) * half);
            WIDE_STORE(row + 3 * stride, t[i][2]);
        }
    }
}

/* dg = G^T du G */
LOOP loop_winograd_weights_backward(size_t n, float *dg, size_t g_stride, const float *du,
                                    size_t stride)
{
    const wide half = WIDE_ALL(0.5f);
    for (size_t c = 0; c < n; c += WIDE) {
        wide t[3][4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const float *column = du + (size_t)j * stride + c;
            wide u0 = WIDE_LOAD(column), u1 = WIDE_LOAD(column + 4 * stride);
            wide u2 = WIDE_LOAD(column + 8 * stride), u3 = WIDE_LOAD(column + 12 * stride);
            wide sum = (u1 + u2) * half;
            t[0][j] = u0 + sum, t[1][j] = (u1 - u2) * half, t[2][j] = sum + u3;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 3; i++) {
            float *row = dg + (size_t)(3 * i) * g_stride + c;
            wide sum = (t[i][1] + t[i][2]) * half;
            WIDE_STORE(row, t[i][0] + sum);
            WIDE_STORE(row + g_stride, (t[i][1] - t[i][2]) * half);
            WIDE_STORE(row + 2 * g_stride, sum + t[i][3]);
        }
    }
}

LOOP_INLINE void winograd_put(float *y, wide value, bool relu, bool add)
{
    if (relu) value = WIDE_RELU(value);
    if (add) value = WIDE_LOAD(y) + value;
    WIDE_STORE(y, value);
}

/* y = activation(A^T m A + bias) */
LOOP loop_winograd_output(size_t n, float *const *y, const float *m, size_t stride,
                          const float *bias, bool relu, bool add)
{
    for (size_t c = 0; c < n; c += WIDE) {
        wide t[2][4], b = bias != NULL ? WIDE_LOAD(bias + c) : WIDE_ALL(0.0f);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const float *column = m + (size_t)j * stride + c;
            wide m0 = WIDE_LOAD(column), m1 = WIDE_LOAD(column + 4 * stride);
            wide m2 = WIDE_LOAD(column + 8 * stride), m3 = WIDE_LOAD(column + 12 * stride);
            t[0][j] = m0 + m1 + m2, t[1][j] = m1 - m2 - m3;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 2; i++) {
            winograd_put(y[2 * i] + c, t[i][0] + t[i][1] + t[i][2] + b, relu, add);
            winograd_put(y[2 * i + 1] + c, t[i][1] - t[i][2] - t[i][3] + b, relu, add);
        }
    }
}

/* dm = A dy A^T */
LOOP loop_winograd_output_backward(size_t n, float *dm, size_t stride, float *const *dy)
{
    for (size_t c = 0; c < n; c += WIDE) {
        wide t[4][2];
#pragma GCC unroll 4
        for (int j = 0; j < 2; j++) {
            wide y0 = WIDE_LOAD(dy[j] + c), y1 = WIDE_LOAD(dy[2 + j] + c);
            t[0][j] = y0, t[1][j] = y0 + y1, t[2][j] = y0 - y1, t[3][j] = -y1;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            float *row = dm + (size_t)(4 * i) * stride + c;
            WIDE_STORE(row, t[i][0]);
            WIDE_STORE(row + stride, t[i][0] + t[i][1]);
            WIDE_STORE(row + 2 * stride, t[i][0] - t[i][1]);
            WIDE_STORE(row + 3 * stride, -t[i][1]);
        }
    }
}
