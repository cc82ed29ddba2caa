/* Compiled forms of the encoder's convolutions and of MQTransformer's decoder, for a CPU. kernels.py calls them.
 *
 * Three steps, each with a forward and a backward pass:
 *   stack_*    causal convolutions of two taps, series by series, so that each layer finds its input in the cache;
 *   align_*    sums over the past with weights softmax_s(G[t,s] + E[t+h,s]);
 *   decoder_*  everything from those sums to the quantiles, target by target, so that the forecasts of one target stay in
 *              the cache; the backward pass computes them again.
 * They compute what encoder.py, alignment.py, attention.py and decoder.py do. The order of every sum depends neither on
 * the rest of the batch nor on anything that a step or a forecast may not see.
 *
 * Axes as in attention.py: b series, t creation time, h horizon, u target, s source step; a channels of a head, c of a
 * context, d of the encoder; l layer. All numbers are float32, all arrays contiguous; a, c and d are multiples of 8.
 * Gradients are added to, so they must start at zero. Only `d_x` of the stack and `d_attended` are overwritten.
 *
 * Nothing is checked here. The arguments of each step are one list of sizes and arrays (STACK, ALIGN, DECODER below). It
 * defines both the C structure and the layout that arguments.py reads and checks every call against, so no name, type or
 * shape is written twice.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef DIGEST
#define DIGEST ""
#endif

typedef int64_t num;
typedef uint8_t byte;
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v8i __attribute__((vector_size(32), aligned(4), may_alias));

#define A_SIZE(of, name) num name;
#define AN_ARRAY(of, when, type, name, shape) type *name;

#define INLINE static inline __attribute__((always_inline))
#define V(p) (*(v8 *)(p))
#define CV(p) (*(const v8 *)(p))

static num padded(num n) { return (n + 7) / 8 * 8; }
static num max_num(num x, num y) { return x > y ? x : y; }
static num min_num(num x, num y) { return x < y ? x : y; }

INLINE float sum8(v8 x) {
    v4 halves[2];
    memcpy(halves, &x, sizeof x);
    v4 half = halves[0] + halves[1];
    return (half[0] + half[2]) + (half[1] + half[3]);
}

INLINE float max8(v8 x) {
    float largest = x[0];
    for (int i = 1; i < 8; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

INLINE v8 blend(v8i which, v8 x, v8 y) { return (v8)((which & (v8i)x) | (~which & (v8i)y)); }
INLINE v8 at_least(v8 x, float bound) { return blend(x < bound, (v8){0} + bound, x); }
INLINE v8 at_most(v8 x, float bound) { return blend(x > bound, (v8){0} + bound, x); }

/* e^x with a relative error of about 1e-7; 0 below −87, e^88 above 88, NaN stays NaN */
INLINE v8 exp8(v8 x) {
    v8 in = at_most(at_least(x, -87.0f), 88.0f);
    v8 n = in * 1.44269504088896341f + 12582912.0f; /* rounds to an integer, in the low bits */
    v8i power = (v8i)n << 23;
    n -= 12582912.0f;
    v8 r = in - n * 0.693359375f + n * 2.12194440e-4f;
    v8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    p = (v8)((v8i)p + power);
    return blend(x < -87.0f, (v8){0}, blend(x == x, p, x));
}

/* A tile of R rows and W × 8 columns of C (+)= A·B, where A[i,k] = a[i·ra + k·ca]. */
INLINE void tile(const int R, const int W, num depth, const float *a, num ra, num ca, const float *b, num ldb, float *c,
                 num ldc, int add) {
    v8 sum[6][2], right[2];
#pragma GCC unroll 6
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) sum[i][w] = add ? CV(c + i * ldc + 8 * w) : (v8){0};
    for (num k = 0; k < depth; k++) {
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) right[w] = CV(b + k * ldb + 8 * w);
#pragma GCC unroll 6
        for (int i = 0; i < R; i++)
#pragma GCC unroll 2
            for (int w = 0; w < W; w++) sum[i][w] += a[i * ra + k * ca] * right[w];
    }
#pragma GCC unroll 6
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) V(c + i * ldc + 8 * w) = sum[i][w];
}

#define TILES(W)                                                                             \
    switch (min_num(rows - i, 6)) {                                                            \
    case 6: tile(6, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 5: tile(5, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 4: tile(4, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 3: tile(3, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 2: tile(2, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 1: tile(1, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    }

/* C (+)= A·B; `columns` is a multiple of 8. Every sum runs over k in order, whatever the tiles. */
static void product(num rows, num columns, num depth, const float *a, num ra, num ca, const float *b, num ldb, float *c,
                    num ldc, int add) {
    num j = 0;
    for (; j + 16 <= columns; j += 16)
        for (num i = 0; i < rows; i += 6) TILES(2)
    if (j < columns)
        for (num i = 0; i < rows; i += 6) TILES(1)
}

/* to[j·ldt + i] = from[i·ldf + j], and zeros up to a multiple of 8 */
static void transpose(num rows, num columns, const float *from, num ldf, float *to, num ldt) {
    for (num j = 0; j < columns; j++) {
        for (num i = 0; i < rows; i++) to[j * ldt + i] = from[i * ldf + j];
        for (num i = rows; i < padded(rows); i++) to[j * ldt + i] = 0;
    }
}

static float *buffer(num count) { /* aligned to cache lines */
    void *memory = NULL;
    return posix_memalign(&memory, 64, (size_t)(count + 16) * sizeof(float)) ? NULL : memory;
}

/* ---------------------------------------------------------------------------------------- the encoder's convolutions */

/* `begun`: inputs before a series' first step count as zeros; `weight`: the taps at t − dilation and at t; `d_out`: the
 * gradient of the last layer's output */
#define STACK(SIZE, ARRAY)                                                                                    \
    SIZE(Stack, batch) SIZE(Stack, steps) SIZE(Stack, channels) SIZE(Stack, layers)                           \
    ARRAY(Stack, always, const byte, begun, "batch steps")                                                    \
    ARRAY(Stack, always, const num, dilations, "layers")                                                      \
    ARRAY(Stack, always, const float, x, "batch steps channels")                                              \
    ARRAY(Stack, always, const float, weight, "layers 2 channels channels") /* out, in */                     \
    ARRAY(Stack, always, const float, weight_T, "layers 2 channels channels")                                 \
    ARRAY(Stack, always, const float, bias, "layers channels")                                                \
    ARRAY(Stack, always, float, out, "layers batch steps channels")                                           \
    ARRAY(Stack, backward, const float, d_out, "batch steps channels")                                        \
    ARRAY(Stack, backward, float, d_x, "batch steps channels")                                                \
    ARRAY(Stack, backward, float, d_weight_T, "layers 2 channels channels")                                   \
    ARRAY(Stack, backward, float, d_bias, "layers channels")

typedef struct {
    STACK(A_SIZE, AN_ARRAY)
} Stack;

static num first_begun(const byte *begun, num steps) {
    num first = 0;
    while (first < steps && !begun[first]) first++;
    return first;
}

/* out_t = ReLU(W_0 x_{t − dilation} + W_1 x_t + b) */
int stack_forward(const Stack *o) {
    num d = o->channels, T = o->steps;
    for (num b = 0; b < o->batch; b++) {
        num first = first_begun(o->begun + b * T, T);
        const float *x = o->x + b * T * d;
        for (num l = 0; l < o->layers; l++) {
            float *out = o->out + (l * o->batch + b) * T * d;
            const float *weight = o->weight_T + 2 * l * d * d;
            num late = min_num(first + o->dilations[l], T);
            for (num t = 0; t < T; t++) memcpy(out + t * d, o->bias + l * d, (size_t)d * sizeof(float));
            product(T - first, d, d, x + first * d, d, 1, weight + d * d, d, out + first * d, d, 1);
            product(T - late, d, d, x + first * d, d, 1, weight, d, out + late * d, d, 1);
            for (num k = 0; k < T * d; k += 8) V(out + k) = at_least(CV(out + k), 0.0f);
            x = out;
        }
    }
    return 0;
}

int stack_backward(const Stack *o) {
    num d = o->channels, T = o->steps;
    float *g = buffer(T * d), *d_below = buffer(T * d);
    int failed = !(g && d_below);
    for (num b = 0; b < o->batch && !failed; b++) {
        num first = first_begun(o->begun + b * T, T);
        for (num l = o->layers - 1; l >= 0; l--) {
            const float *out = o->out + (l * o->batch + b) * T * d, *weight = o->weight + 2 * l * d * d;
            const float *x = l ? o->out + ((l - 1) * o->batch + b) * T * d : o->x + b * T * d;
            const float *given = l == o->layers - 1 ? o->d_out + b * T * d : d_below;
            float *d_x = l ? d_below : o->d_x + b * T * d, *d_weight = o->d_weight_T + 2 * l * d * d, *d_bias = o->d_bias + l * d;
            num late = min_num(first + o->dilations[l], T);
            for (num t = 0; t < T; t++)
                for (num k = t * d; k < (t + 1) * d; k += 8) {
                    V(g + k) = blend(CV(out + k) > 0.0f, CV(given + k), (v8){0});
                    V(d_bias + k - t * d) += CV(g + k);
                }
            product(d, d, T - first, x + first * d, 1, d, g + first * d, d, d_weight + d * d, d, 1);
            product(d, d, T - late, x + first * d, 1, d, g + late * d, d, d_weight, d, 1);
            memset(d_x, 0, (size_t)(first * d) * sizeof(float));
            product(T - first, d, d, g + first * d, d, 1, weight + d * d, d, d_x + first * d, d, 0);
            product(T - late, d, d, g + late * d, d, 1, weight, d, d_x + first * d, d, 1);
        }
    }
    free(g), free(d_below);
    return failed;
}

/* ---------------------------------------------------------------------------------------------- sums over the past */

#define ROWS 12            /* creation times, or targets, whose logits are computed together */
#define LARGEST_E 60.0f    /* as in alignment.py */
#define LARGEST_SUM 100.0f

/* `calendars` is 1 where all series share theirs, else `batch`; `targets` is made + horizon − 1. */
#define ALIGN(SIZE, ARRAY)                                                                                    \
    SIZE(Align, batch) SIZE(Align, steps) SIZE(Align, made) SIZE(Align, wanted)                               \
    SIZE(Align, horizon) SIZE(Align, heads) SIZE(Align, channels) SIZE(Align, lookback)                       \
    SIZE(Align, shared_ahead)                                                                                 \
    ARRAY(Align, always, const float, now, "batch made heads")                                                \
    ARRAY(Align, always, const float, ahead, "calendars targets heads")                                       \
    ARRAY(Align, always, const float, key, "batch steps heads")                                               \
    ARRAY(Align, always, const float, value, "batch steps channels")                                          \
    ARRAY(Align, always, const byte, begun, "batch steps")                                                    \
    ARRAY(Align, always, float, cells, "batch made horizon channels")                                         \
    ARRAY(Align, always, float, norm, "batch made horizon")                                                   \
    ARRAY(Align, backward, const float, d_cells, "batch made horizon channels")                               \
    ARRAY(Align, backward, float, d_now, "batch made heads")                                                  \
    ARRAY(Align, backward, float, d_ahead, "calendars targets heads")                                         \
    ARRAY(Align, backward, float, d_key, "batch steps heads")                                                 \
    ARRAY(Align, backward, float, d_value, "batch steps channels")

typedef struct {
    ALIGN(A_SIZE, AN_ARRAY)
} Align;

typedef struct { /* of one series */
    const Align *x;
    const float *now, *ahead, *key, *value;
    const byte *begun;
    num first, width, lds; /* the first creation time; e^E[u,s] is at band[u·(width − 1) + s]; row length of keys_AS */
    float *band_buffer, *band, *keys_AS, *key_sizes, *ahead_sizes, *G, *eG, *scaled, *weights, *along;
} Series;

static int open_series(Series *o, const Align *x) {
    num targets = x->made + x->horizon - 1, span = x->lookback + ROWS + 16;
    o->x = x, o->first = x->steps - x->made, o->lds = x->steps + 32, o->width = x->lookback + x->horizon + 2 * ROWS + 16;
    o->band_buffer = buffer((targets + 2) * o->width);
    o->keys_AS = buffer(x->heads * o->lds);
    o->key_sizes = buffer(x->steps), o->ahead_sizes = buffer(targets);
    o->G = buffer(ROWS * span), o->eG = buffer(span), o->scaled = buffer((x->lookback + 1) * x->channels);
    o->weights = buffer(x->horizon * span), o->along = buffer(x->horizon);
    return !(o->band_buffer && o->keys_AS && o->key_sizes && o->ahead_sizes && o->G && o->eG && o->scaled && o->weights &&
             o->along);
}

static void close_series(Series *o) {
    float *buffers[] = {o->band_buffer, o->keys_AS, o->key_sizes, o->ahead_sizes, o->G, o->eG, o->scaled, o->weights, o->along};
    for (int i = 0; i < 9; i++) free(buffers[i]);
}

/* Where e^E[u, 0] is: row u begins with the first step that the first creation time with this target sees. */
static num band_start(const Series *o) {
    return o->width - (o->first - o->x->horizon + 1 - o->x->lookback);
}

static float size_of(const float *x, num a) {
    v8 sum = {0};
    for (num k = 0; k < a; k += 8) sum += CV(x + k) * CV(x + k);
    return sqrtf(sum8(sum));
}

static void enter_series(Series *o, num b) {
    const Align *x = o->x;
    num a = x->heads, targets = x->made + x->horizon - 1;
    o->now = x->now + b * x->made * a, o->ahead = x->ahead + (x->shared_ahead ? 0 : b * targets * a);
    o->key = x->key + b * x->steps * a, o->value = x->value + b * x->steps * x->channels;
    o->begun = x->begun + b * x->steps;
    o->band = o->band_buffer + band_start(o);
    memset(o->keys_AS, 0, (size_t)(a * o->lds) * sizeof(float));
    transpose(x->steps, a, o->key, a, o->keys_AS, o->lds);
    for (num s = 0; s < x->steps; s++) o->key_sizes[s] = size_of(o->key + s * a, a);
    for (num u = 0; u < targets; u++) o->ahead_sizes[u] = size_of(o->ahead + u * a, a);
    for (num u = 0; u < targets; u += ROWS) {
        num rows = min_num(ROWS, targets - u);
        num low = max_num(0, o->first + u - x->horizon + 1 - x->lookback);
        num high = min_num(o->first + u + rows, x->steps);
        product(rows, padded(high - low), a, o->ahead + u * a, a, 1, o->keys_AS + low, o->lds,
                o->band + u * (o->width - 1) + low, o->width - 1, 0);
        for (num i = u; i < u + rows; i++) {
            num from = max_num(0, o->first + i - x->horizon + 1 - x->lookback), to = min_num(o->first + i + 1, x->steps);
            float *row = o->band + i * (o->width - 1);
            for (num s = from; s < to; s += 8) V(row + s) = exp8(at_most(CV(row + s), LARGEST_E));
        }
    }
}

/* A stable softmax for rows whose logits are large: e^(G + E − max), with one exponential for each weight. */
static void weigh_by_stable_softmax(Series *o, num t, num low, num n, const float *G, num ldw) {
    const Align *x = o->x;
    product(x->horizon, padded(n), x->heads, o->ahead + t * x->heads, x->heads, 1, o->keys_AS + low, o->lds, o->weights,
            ldw, 0);
    for (num h = 0; h < x->horizon; h++) {
        float *row = o->weights + h * ldw, top = -INFINITY;
        for (num s = 0; s < n; s++)
            if ((row[s] += G[s]) > top) top = row[s];
        for (num s = 0; s < n; s += 8) V(row + s) = exp8(CV(row + s) - top);
    }
}

/* The first horizon of a creation time whose target also belongs to a wanted creation time. */
static num first_horizon(const Align *x, num t) { return max_num(0, x->made - x->wanted - t); }

typedef struct { /* for one creation time: weight[h,s] = left[h·ld + s]·eG[s], for s = low … low + n − 1 */
    num low, n, ld;
    const float *left;
} Weights;

static Weights weigh(Series *o, num t, num block, num block_low) {
    const Align *x = o->x;
    num now = o->first + t, low = max_num(0, now - x->lookback), n = now - low + 1;
    float *G = o->G + (t - block) * (x->lookback + ROWS + 16) + low - block_low, top = -INFINITY, longest = 0;
    for (num s = 0; s < n - 1; s++)
        if (!o->begun[low + s]) G[s] = -INFINITY;
    for (num s = 0; s < n; s++) {
        if (G[s] > top) top = G[s];
        if (G[s] > -INFINITY && o->key_sizes[low + s] > longest) longest = o->key_sizes[low + s];
    }
    float of_now = 2 * size_of(o->now + t * x->heads, x->heads) * longest;
    int is_unsafe = 0;
    for (num h = first_horizon(x, t); h < x->horizon; h++) {
        float of_E = o->ahead_sizes[t + h] * longest;
        is_unsafe |= of_E > LARGEST_E || of_E + of_now > LARGEST_SUM;
    }
    if (is_unsafe) {
        num ldw = padded(n) + 8;
        weigh_by_stable_softmax(o, t, low, n, G, ldw);
        for (num s = 0; s < n; s++) o->eG[s] = G[s] > -INFINITY;
        return (Weights){low, n, ldw, o->weights};
    }
    for (num s = 0; s < n; s += 8) V(o->eG + s) = exp8(CV(G + s) - top);
    for (num s = n; s < padded(n); s++) o->eG[s] = 0;
    return (Weights){low, n, o->width - 1, o->band + t * (o->width - 1) + low};
}

/* Logits G of creation times block … block + rows − 1, from the first step that any of them sees. */
static num logits(Series *o, num block, num rows) {
    const Align *x = o->x;
    num low = max_num(0, o->first + block - x->lookback), high = o->first + block + rows;
    product(rows, padded(high - low), x->heads, o->now + block * x->heads, x->heads, 1, o->keys_AS + low, o->lds, o->G,
            x->lookback + ROWS + 16, 0);
    return low;
}

int align_forward(const Align *x) {
    Series o;
    num c = x->channels;
    int failed = open_series(&o, x);
    for (num b = 0; b < x->batch && !failed; b++) {
        enter_series(&o, b);
        for (num block = 0; block < x->made; block += ROWS) {
            num rows = min_num(ROWS, x->made - block), block_low = logits(&o, block, rows);
            for (num t = block; t < block + rows; t++) {
                Weights w = weigh(&o, t, block, block_low);
                float *cells = x->cells + ((b * x->made + t) * x->horizon) * c, *norm = x->norm + (b * x->made + t) * x->horizon;
                for (num s = 0; s < w.n; s++)
                    for (num k = 0; k < c; k += 8) V(o.scaled + s * c + k) = o.eG[s] * CV(o.value + (w.low + s) * c + k);
                num early = first_horizon(x, t);
                product(x->horizon - early, c, w.n, w.left + early * w.ld, w.ld, 1, o.scaled, c, cells + early * c, c, 0);
                for (num h = early; h < x->horizon; h++) {
                    v8 sum = {0};
                    const float *row = w.left + h * w.ld;
                    num s = 0;
                    for (; s + 8 <= w.n; s += 8) sum += CV(row + s) * CV(o.eG + s);
                    float rest = 0;
                    for (; s < w.n; s++) rest += row[s] * o.eG[s];
                    norm[h] = sum8(sum) + rest;
                    float by = 1 / norm[h];
                    for (num k = 0; k < c; k += 8) V(cells + h * c + k) *= by;
                }
            }
        }
    }
    close_series(&o);
    return failed;
}

int align_backward(const Align *x) {
    Series o;
    num a = x->heads, c = x->channels, H = x->horizon, targets = x->made + H - 1, span = x->lookback + ROWS + 16;
    int failed = open_series(&o, x);
    num band_size = (targets + 2) * o.width;
    float *of_band_buffer = buffer(band_size), *of_G = buffer(ROWS * span), *values_CS = buffer(c * o.lds);
    float *g = buffer(H * c), *of_weights = buffer(H * span), *of_scaled = buffer((x->lookback + 1) * c), *total = buffer(span);
    failed |= !(of_band_buffer && of_G && values_CS && g && of_weights && of_scaled && total);
    for (num b = 0; b < x->batch && !failed; b++) {
        enter_series(&o, b);
        float *of_band = of_band_buffer + band_start(&o);
        float *of_key = x->d_key + b * x->steps * a, *of_value = x->d_value + b * x->steps * c;
        memset(of_band_buffer, 0, (size_t)band_size * sizeof(float));
        memset(values_CS, 0, (size_t)(c * o.lds) * sizeof(float));
        transpose(x->steps, c, o.value, c, values_CS, o.lds);
        for (num block = 0; block < x->made; block += ROWS) {
            num rows = min_num(ROWS, x->made - block), block_low = logits(&o, block, rows);
            num block_high = o.first + block + rows;
            memset(of_G, 0, (size_t)(ROWS * span) * sizeof(float));
            for (num t = block; t < block + rows; t++) {
                Weights w = weigh(&o, t, block, block_low);
                num cell = (b * x->made + t) * H, ldw = padded(w.n), early = first_horizon(x, t), left = H - early;
                for (num h = early; h < H; h++) {
                    v8 along = {0};
                    float by = 1 / x->norm[cell + h];
                    for (num k = 0; k < c; k += 8) {
                        V(g + h * c + k) = by * CV(x->d_cells + (cell + h) * c + k);
                        along += CV(g + h * c + k) * CV(x->cells + (cell + h) * c + k);
                    }
                    o.along[h] = sum8(along);
                }
                product(w.n, c, left, w.left + early * w.ld, 1, w.ld, g + early * c, c, of_scaled, c, 0);
                for (num s = 0; s < w.n; s++)
                    for (num k = 0; k < c; k += 8) V(of_value + (w.low + s) * c + k) += o.eG[s] * CV(of_scaled + s * c + k);
                product(left, ldw, c, g + early * c, c, 1, values_CS + w.low, o.lds, of_weights + early * ldw, ldw, 0);
                float *restrict sums = total, *restrict eG = o.eG;
                for (num s = 0; s < w.n; s++) sums[s] = 0;
                for (num h = early; h < H; h++) {
                    const float *restrict left = w.left + h * w.ld, *restrict given = of_weights + h * ldw;
                    float *restrict into = of_band + (t + h) * (o.width - 1) + w.low, along = o.along[h];
                    for (num s = 0; s < w.n; s++) {
                        float of_logit = left[s] * (given[s] - along);
                        sums[s] += of_logit;
                        into[s] += of_logit * eG[s];
                    }
                }
                float *restrict row = of_G + (t - block) * span + w.low - block_low;
                for (num s = 0; s < w.n; s++) row[s] = sums[s] * eG[s];
            }
            const float *now = o.now + block * a;
            product(rows, a, block_high - block_low, of_G, span, 1, o.key + block_low * a, a,
                    x->d_now + (b * x->made + block) * a, a, 1);
            product(block_high - block_low, a, rows, of_G, 1, span, now, a, of_key + block_low * a, a, 1);
        }
        float *of_ahead = x->d_ahead + (x->shared_ahead ? 0 : b * targets * a);
        for (num u = 0; u < targets; u += ROWS) {
            num rows = min_num(ROWS, targets - u), low = max_num(0, o.first + u - H + 1 - x->lookback);
            num high = min_num(o.first + u + rows, x->steps), ld = o.width - 1;
            const float *block = of_band + u * ld + low;
            product(rows, a, high - low, block, ld, 1, o.key + low * a, a, of_ahead + u * a, a, 1);
            product(high - low, a, rows, block, 1, ld, o.ahead + u * a, a, of_key + low * a, a, 1);
        }
    }
    close_series(&o);
    float *buffers[] = {of_band_buffer, of_G, values_CS, g, of_weights, of_scaled, total};
    for (int i = 0; i < 7; i++) free(buffers[i]);
    return failed;
}

/* ------------------------------------------------------------------------------------- the forecasts of one target */

/* Only the last `known` of the `made` creation times exist. Four sizes are 0 or 1: `feedback`, attention over earlier
 * forecasts; `residual`, residual blocks around the attention cells; `coded`, weights of each horizon in m_L; `preceded`,
 * precedents of each cell. Where one is 0, its arrays are NULL. `kept`: dropout, as factors; `read` is paces × heads; `outputs` is levels, padded to 8. `maps` is the
 * width of all maps of a context: query, key and value (a, a, c; with feedback), feedback block (c; if it is residual), local
 * (a). The backward pass takes `targets`, `level`, `scored` and `loss` for the quantile loss, else `d_quantiles`. */
#define DECODER(SIZE, ARRAY)                                                                                  \
    SIZE(Decoder, batch) SIZE(Decoder, made) SIZE(Decoder, known) SIZE(Decoder, horizon) SIZE(Decoder, heads) \
    SIZE(Decoder, channels) SIZE(Decoder, levels) SIZE(Decoder, paces) SIZE(Decoder, shared_ahead)            \
    SIZE(Decoder, feedback) SIZE(Decoder, residual) SIZE(Decoder, coded) SIZE(Decoder, preceded)              \
    SIZE(Decoder, precedents)                                                                                 \
    ARRAY(Decoder, always, const byte, begun, "batch known")                                                  \
    ARRAY(Decoder, always, const float, attended, "batch known horizon channels")                             \
    ARRAY(Decoder, always, const float, kept, "batch known channels")                                         \
    ARRAY(Decoder, feedback, const float, kept_feedback, "batch known channels")                              \
    ARRAY(Decoder, residual, const float, block_now, "batch known channels")                                  \
    ARRAY(Decoder, residual, const float, block_ahead, "calendars made channels")                             \
    ARRAY(Decoder, residual, const float, block_gain, "channels")                                             \
    ARRAY(Decoder, residual, const float, block_shift, "channels")                                            \
    ARRAY(Decoder, feedback, const float, query_now, "batch known heads")                                     \
    ARRAY(Decoder, feedback, const float, query_ahead, "calendars made heads")                                \
    ARRAY(Decoder, feedback, const float, key_now, "batch known heads")                                       \
    ARRAY(Decoder, feedback, const float, value_shift, "channels")                                            \
    ARRAY(Decoder, feedback residual, const float, feedback_block_now, "batch known channels")                \
    ARRAY(Decoder, feedback residual, const float, feedback_block_ahead, "calendars made channels")           \
    ARRAY(Decoder, feedback residual, const float, feedback_block_gain, "channels")                           \
    ARRAY(Decoder, feedback residual, const float, feedback_block_shift, "channels")                          \
    ARRAY(Decoder, always, const float, local_now, "batch known heads")                                       \
    ARRAY(Decoder, always, const float, local_ahead, "calendars made heads")                                  \
    ARRAY(Decoder, coded, const float, read, "batch known read")                                              \
    ARRAY(Decoder, coded, const float, fading, "horizon paces")                                               \
    ARRAY(Decoder, coded, const float, code, "horizon heads")                                                 \
    ARRAY(Decoder, preceded, const float, precedent, "batch known horizon precedents")                        \
    ARRAY(Decoder, preceded, const float, of_precedent, "precedents heads")                                   \
    ARRAY(Decoder, always, const float, of_context, "channels maps")                                          \
    ARRAY(Decoder, always, const float, of_context_T, "maps channels")                                        \
    ARRAY(Decoder, feedback, const float, of_feedback, "channels heads")                                      \
    ARRAY(Decoder, feedback, const float, of_feedback_T, "heads channels")                                    \
    ARRAY(Decoder, always, const float, out, "heads outputs")                                                 \
    ARRAY(Decoder, always, const float, out_T, "outputs heads")                                               \
    ARRAY(Decoder, always, const float, out_shift, "levels")                                                  \
    ARRAY(Decoder, forward, float, quantiles, "batch horizon wanted levels")                                  \
    ARRAY(Decoder, gradient, const float, d_quantiles, "batch horizon wanted levels")                         \
    ARRAY(Decoder, loss, const float, targets, "batch horizon wanted")                                        \
    ARRAY(Decoder, loss, const float, level, "levels")                                                        \
    ARRAY(Decoder, loss, const byte, scored, "batch horizon wanted")                                          \
    ARRAY(Decoder, loss, double, loss, "1")                                                                   \
    ARRAY(Decoder, backward, float, d_attended, "batch known horizon channels")                               \
    ARRAY(Decoder, residual backward, float, d_block_now, "batch known channels")                             \
    ARRAY(Decoder, residual backward, float, d_block_ahead, "calendars made channels")                        \
    ARRAY(Decoder, residual backward, float, d_block_gain, "channels")                                        \
    ARRAY(Decoder, residual backward, float, d_block_shift, "channels")                                       \
    ARRAY(Decoder, feedback backward, float, d_query_now, "batch known heads")                                \
    ARRAY(Decoder, feedback backward, float, d_query_ahead, "calendars made heads")                           \
    ARRAY(Decoder, feedback backward, float, d_key_now, "batch known heads")                                  \
    ARRAY(Decoder, feedback backward, float, d_value_shift, "channels")                                       \
    ARRAY(Decoder, feedback residual backward, float, d_feedback_block_now, "batch known channels")           \
    ARRAY(Decoder, feedback residual backward, float, d_feedback_block_ahead, "calendars made channels")      \
    ARRAY(Decoder, feedback residual backward, float, d_feedback_block_gain, "channels")                      \
    ARRAY(Decoder, feedback residual backward, float, d_feedback_block_shift, "channels")                     \
    ARRAY(Decoder, backward, float, d_local_now, "batch known heads")                                         \
    ARRAY(Decoder, backward, float, d_local_ahead, "calendars made heads")                                    \
    ARRAY(Decoder, coded backward, float, d_read, "batch known read")                                         \
    ARRAY(Decoder, coded backward, float, d_code, "horizon heads")                                            \
    ARRAY(Decoder, preceded backward, float, d_of_precedent, "precedents heads")                              \
    ARRAY(Decoder, backward, float, d_of_context, "channels maps")                                            \
    ARRAY(Decoder, feedback backward, float, d_of_feedback, "channels heads")                                 \
    ARRAY(Decoder, backward, float, d_out, "heads outputs")                                                   \
    ARRAY(Decoder, backward, float, d_out_shift, "levels")

typedef struct {
    DECODER(A_SIZE, AN_ARRAY)
} Decoder;

#define EPSILON 1e-5f /* of torch's layer norm */

typedef struct { /* a target's forecasts, earliest first; the first `early` of them are not wanted */
    num count, early;
    num first, at, horizon; /* of the earliest: its creation time, the index of that, and its horizon − 1 */
    num width, ldp;         /* row lengths: of all maps of a context, of the weights */
    float *context, *unit, *by, *mapped, *keys_T, *weights, *sums, *feedback_block_unit, *feedback_block_by;
    float *feedback, *hidden, *raw, *hidden_keys;
    float *d_mapped, *d_weights, *d_context, *d_feedback, *values_T, *d_raw;
} Row;

static int open_row(Row *r, const Decoder *x, float **all) {
    num H = x->horizon, a = x->heads, c = x->channels, q = padded(x->levels);
    r->width = a + (x->feedback ? 2 * a + c + (x->residual ? c : 0) : 0), r->ldp = padded(H) + 8;
    num sizes[] = {H * c, H * c, H, H * r->width, a * r->ldp, H * r->ldp, H * c, H * c, H, H * c, H * a, H * q,
                   H * r->width, H * r->ldp, H * c, H * c, c * r->ldp, H * q, r->ldp};
    float **buffers[] = {&r->context, &r->unit, &r->by, &r->mapped, &r->keys_T, &r->weights, &r->sums, &r->feedback_block_unit,
                       &r->feedback_block_by, &r->feedback, &r->hidden, &r->raw, &r->d_mapped, &r->d_weights, &r->d_context,
                       &r->d_feedback, &r->values_T, &r->d_raw, &r->hidden_keys};
    num total = 0;
    for (int i = 0; i < 19; i++) total += (sizes[i] + 15) / 16 * 16;
    if (!(*all = buffer(total))) return 1;
    memset(*all, 0, (size_t)total * sizeof(float));
    float *next = *all;
    for (int i = 0; i < 19; i++) *buffers[i] = next, next += (sizes[i] + 15) / 16 * 16;
    return 0;
}

/* y = gain·unit + shift, where unit = (x − mean)/deviation; returns 1/deviation. */
INLINE float layer_norm(const float *x, num c, const float *gain, const float *shift, float *unit, float *y) {
    v8 sum = {0}, squares = {0};
    for (num k = 0; k < c; k += 8) sum += CV(x + k);
    float mean = sum8(sum) / (float)c;
    for (num k = 0; k < c; k += 8) squares += (CV(x + k) - mean) * (CV(x + k) - mean);
    float by = 1 / sqrtf(sum8(squares) / (float)c + EPSILON);
    for (num k = 0; k < c; k += 8) {
        V(unit + k) = (CV(x + k) - mean) * by;
        V(y + k) = CV(unit + k) * CV(gain + k) + CV(shift + k);
    }
    return by;
}

/* The backward pass: d becomes the gradient of the input. */
INLINE void layer_norm_backward(float *d, num c, const float *gain, const float *unit, float by, float *d_gain, float *d_shift) {
    v8 sum = {0}, along = {0};
    for (num k = 0; k < c; k += 8) {
        V(d_shift + k) += CV(d + k);
        V(d_gain + k) += CV(d + k) * CV(unit + k);
        V(d + k) *= CV(gain + k);
        sum += CV(d + k);
        along += CV(d + k) * CV(unit + k);
    }
    float mean = sum8(sum) / (float)c, mean_along = sum8(along) / (float)c;
    for (num k = 0; k < c; k += 8) V(d + k) = by * (CV(d + k) - mean - CV(unit + k) * mean_along);
}

INLINE void add(float *to, const float *from, num n) {
    for (num k = 0; k < n; k += 8) V(to + k) += CV(from + k);
}

/* Softmax over forecast j and the earlier ones that exist; zeros from there to `end`, a multiple of 8. */
INLINE void softmax_row(float *row, num j, num end, const float *hidden) {
    float own = row[j];
    v8 top = (v8){0} + own, sum = {0};
    for (num i = j; i < end; i++) row[i] = -INFINITY;
    for (num i = 0; i < end; i += 8) {
        v8 value = V(row + i) += CV(hidden + i);
        top = blend(value > top, value, top);
    }
    row[j] = own;
    float largest = max8(top);
    for (num i = 0; i < end; i += 8) sum += V(row + i) = exp8(CV(row + i) - largest);
    float by = 1 / sum8(sum);
    for (num i = 0; i < end; i += 8) V(row + i) *= by;
}

static const float *of_targets(const float *x, const Decoder *o, num b, num u, num width) {
    return x + ((o->shared_ahead ? 0 : b * o->made) + u) * width;
}

/* c_{t,h}: the block around the horizon-specific attention, and all linear maps of it. */
static void contexts(Row *r, const Decoder *x, num b, num u) {
    num H = x->horizon, c = x->channels, t = r->at;
    for (num j = 0; j < r->count; j++, t++) {
        const float *cell = x->attended + (t * H + r->horizon - j) * c, *kept = x->kept + t * c;
        float *context = r->context + j * c;
        for (num k = 0; k < c; k += 16) __builtin_prefetch(cell + c + k); /* of the next target */
        if (!x->residual) {
            for (num k = 0; k < c; k += 8) V(context + k) = CV(cell + k) * CV(kept + k);
            continue;
        }
        const float *now = x->block_now + t * c, *ahead = of_targets(x->block_ahead, x, b, u, c);
        for (num k = 0; k < c; k += 8) V(context + k) = CV(cell + k) * CV(kept + k) + CV(now + k) + CV(ahead + k);
        r->by[j] = layer_norm(context, c, x->block_gain, x->block_shift, r->unit + j * c, context);
    }
    product(r->count, r->width, c, r->context, c, 1, x->of_context, r->width, r->mapped, r->width, 0);
}

/* c̃_{t,h}: attention over the contexts of earlier forecasts, and the block around it. */
static void feedback(Row *r, const Decoder *x, num b, num u) {
    num a = x->heads, c = x->channels, n = r->count, w = r->width, ldp = r->ldp, t = r->at;
    const float *ahead = of_targets(x->query_ahead, x, b, u, a);
    for (num j = 0; j < n; j++, t++) {
        float *query = r->mapped + j * w, *key = query + a;
        for (num k = 0; k < a; k += 8) {
            V(query + k) += CV(x->query_now + t * a + k) + CV(ahead + k);
            V(key + k) += CV(x->key_now + t * a + k);
        }
        add(key + a, x->value_shift, c);
        r->hidden_keys[j] = x->begun[t] ? 0 : -INFINITY;
    }
    transpose(n, a, r->mapped + a, w, r->keys_T, ldp);
    for (num j = r->early; j < n; j += 6) {
        num rows = min_num(6, n - j), end = padded(j + rows);
        product(rows, end, a, r->mapped + j * w, w, 1, r->keys_T, ldp, r->weights + j * ldp, ldp, 0);
        for (num i = j; i < j + rows; i++) softmax_row(r->weights + i * ldp, i, end, r->hidden_keys);
        product(rows, c, j + rows, r->weights + j * ldp, ldp, 1, r->mapped + 2 * a, w, r->sums + j * c, c, 0);
    }
    for (num j = r->early; j < n; j++) {
        const float *kept = x->kept_feedback + (r->at + j) * c, *sums = r->sums + j * c;
        float *to = r->feedback + j * c;
        if (!x->residual) {
            for (num k = 0; k < c; k += 8) V(to + k) = CV(sums + k) * CV(kept + k);
            continue;
        }
        const float *now = x->feedback_block_now + (r->at + j) * c, *own = r->mapped + j * w + 2 * a + c;
        ahead = of_targets(x->feedback_block_ahead, x, b, u, c);
        for (num k = 0; k < c; k += 8) V(to + k) = CV(sums + k) * CV(kept + k) + CV(now + k) + CV(ahead + k) + CV(own + k);
        r->feedback_block_by[j] =
            layer_norm(to, c, x->feedback_block_gain, x->feedback_block_shift, r->feedback_block_unit + j * c, to);
    }
}

/* m_L: the hidden layer and the quantiles, without their bias. */
static void local(Row *r, const Decoder *x, num b, num u) {
    num a = x->heads, c = x->channels, q = padded(x->levels), p = x->paces, e = r->early, wanted = r->count - e;
    const float *ahead = of_targets(x->local_ahead, x, b, u, a);
    for (num j = e; j < r->count; j++) {
        num t = r->at + j, h = r->horizon - j;
        const float *now = x->local_now + t * a, *own = r->mapped + (j + 1) * r->width - a;
        float *hidden = r->hidden + j * a;
        const float *precedent = x->preceded ? x->precedent + (t * x->horizon + h) * x->precedents : NULL;
        const float *read = x->coded ? x->read + t * p * a : NULL, *code = x->coded ? x->code + h * a : NULL;
        for (num k = 0; k < a; k += 8) {
            v8 value = CV(now + k) + CV(ahead + k) + CV(own + k);
            if (x->coded) {
                value += CV(code + k);
                for (num i = 0; i < p; i++) value += x->fading[h * p + i] * CV(read + i * a + k);
            }
            if (x->preceded)
                for (num i = 0; i < x->precedents; i++) value += precedent[i] * CV(x->of_precedent + i * a + k);
            V(hidden + k) = value;
        }
    }
    float *hidden = r->hidden + e * a;
    if (x->feedback) product(wanted, a, c, r->feedback + e * c, c, 1, x->of_feedback, a, hidden, a, 1);
    for (num k = 0; k < wanted * a; k += 8) V(hidden + k) = at_least(CV(hidden + k), 0.0f);
    product(wanted, q, a, hidden, a, 1, x->out, q, r->raw + e * q, q, 0);
}

static void row_forward(Row *r, const Decoder *x, num b, num u) {
    num missing = x->made - x->known, from = max_num(0, missing - u);
    r->count = min_num(x->horizon, x->made - u) - from, r->first = u + from;
    r->early = min_num(max_num(0, x->horizon - 1 - r->first), r->count);
    r->at = b * x->known + r->first - missing, r->horizon = x->horizon - 1 - from;
    contexts(r, x, b, u);
    if (x->feedback) feedback(r, x, b, u);
    local(r, x, b, u);
}

/* The offset of a forecast's quantiles. */
static num place(const Decoder *x, const Row *r, num b, num u, num j) {
    num wanted = x->made - x->horizon + 1, t = r->first + j, h = u + x->horizon - 1 - t;
    return ((b * x->horizon + h) * wanted + t - (x->horizon - 1)) * x->levels;
}

int decoder_forward(const Decoder *x) {
    Row r;
    float *all = NULL;
    num q = padded(x->levels);
    if (open_row(&r, x, &all)) return 1;
    for (num b = 0; b < x->batch; b++)
        for (num u = 0; u < x->made; u++) {
            row_forward(&r, x, b, u);
            for (num j = r.early; j < r.count; j++) {
                float *to = x->quantiles + place(x, &r, b, u, j);
                for (num i = 0; i < x->levels; i++) to[i] = r.raw[j * q + i] + x->out_shift[i];
            }
        }
    free(all);
    return 0;
}

/* Gradients of the quantiles: those given, or those of the quantile (pinball) loss, which is summed as well. */
static void pinball_grad(Row *r, const Decoder *x, num b, num u) {
    num q = padded(x->levels);
    for (num j = r->early; j < r->count; j++) {
        num at = place(x, r, b, u, j);
        float *d = r->d_raw + j * q;
        if (x->d_quantiles)
            for (num i = 0; i < x->levels; i++) d[i] = x->d_quantiles[at + i];
        else
            for (num i = 0; i < x->levels; i++) {
                float error = x->targets[at / x->levels] - (r->raw[j * q + i] + x->out_shift[i]), level = x->level[i];
                float rate = error > 0 ? level : error < 0 ? level - 1 : level - 0.5f;
                int scored = x->scored[at / x->levels];
                d[i] = scored ? -rate : 0;
                *x->loss += scored ? rate * error : 0;
            }
        for (num i = 0; i < x->levels; i++) x->d_out_shift[i] += d[i];
    }
}

static void local_backward(Row *r, const Decoder *x, num b, num u) {
    num a = x->heads, q = padded(x->levels), p = x->paces, w = r->width, e = r->early, wanted = r->count - e;
    float *d_ahead = (float *)of_targets(x->d_local_ahead, x, b, u, a), *d_hidden = r->d_mapped + w - a;
    product(a, q, wanted, r->hidden + e * a, 1, a, r->d_raw + e * q, q, x->d_out, q, 1);
    product(wanted, a, x->levels, r->d_raw + e * q, q, 1, x->out_T, a, d_hidden + e * w, w, 0);
    for (num j = e; j < r->count; j++) {
        num t = r->at + j, h = r->horizon - j;
        float *d = d_hidden + j * w, *d_now = x->d_local_now + t * a;
        const float *hidden = r->hidden + j * a;
        for (num k = 0; k < a; k += 8) {
            v8 value = blend(CV(hidden + k) > 0.0f, CV(d + k), (v8){0});
            V(d + k) = value;
            V(d_now + k) += value;
            V(d_ahead + k) += value;
            if (x->preceded) {
                const float *precedent = x->precedent + (t * x->horizon + h) * x->precedents;
                for (num i = 0; i < x->precedents; i++) V(x->d_of_precedent + i * a + k) += precedent[i] * value;
            }
            if (!x->coded) continue;
            V(x->d_code + h * a + k) += value;
            for (num i = 0; i < p; i++) V(x->d_read + (t * p + i) * a + k) += x->fading[h * p + i] * value;
        }
    }
}

static void feedback_backward(Row *r, const Decoder *x, num b, num u) {
    num a = x->heads, c = x->channels, n = r->count, e = r->early, w = r->width, ldp = r->ldp;
    float *d_query = r->d_mapped, *d_key = d_query + a, *d_value = d_key + a, *d_hidden = d_query + w - a;
    float *d_query_ahead = (float *)of_targets(x->d_query_ahead, x, b, u, a);
    product(c, a, n - e, r->feedback + e * c, 1, c, d_hidden + e * w, w, x->d_of_feedback, a, 1);
    product(n - e, c, a, d_hidden + e * w, w, 1, x->of_feedback_T, c, r->d_feedback + e * c, c, 0);
    for (num j = e; j < n; j++) {
        float *d = r->d_feedback + j * c;
        if (x->residual) {
            layer_norm_backward(d, c, x->feedback_block_gain, r->feedback_block_unit + j * c, r->feedback_block_by[j],
                                x->d_feedback_block_gain, x->d_feedback_block_shift);
            memcpy(d_value + c + j * w, d, (size_t)c * sizeof(float));
            add(x->d_feedback_block_now + (r->at + j) * c, d, c);
            add((float *)of_targets(x->d_feedback_block_ahead, x, b, u, c), d, c);
        }
        for (num k = 0; k < c; k += 8) V(d + k) *= CV(x->kept_feedback + (r->at + j) * c + k);
    }
    transpose(n, c, r->mapped + 2 * a, w, r->values_T, ldp);
    for (num j = e; j < n; j += 6) {
        num rows = min_num(6, n - j), end = padded(j + rows);
        product(rows, end, c, r->d_feedback + j * c, c, 1, r->values_T, ldp, r->d_weights + j * ldp, ldp, 0);
        for (num i = j; i < j + rows; i++) {
            const float *weights = r->weights + i * ldp;
            float *d = r->d_weights + i * ldp;
            v8 along = {0};
            for (num k = 0; k < end; k += 8) along += CV(weights + k) * CV(d + k);
            float total = sum8(along);
            for (num k = 0; k < end; k += 8) V(d + k) = CV(weights + k) * (CV(d + k) - total);
        }
        product(rows, a, j + rows, r->d_weights + j * ldp, ldp, 1, r->mapped + a, w, d_query + j * w, w, 0);
        product(j + rows, a, rows, r->d_weights + j * ldp, 1, ldp, r->mapped + j * w, w, d_key, w, 1);
        product(j + rows, c, rows, r->weights + j * ldp, 1, ldp, r->d_feedback + j * c, c, d_value, w, 1);
    }
    for (num j = 0; j < n; j++) {
        add(x->d_query_now + (r->at + j) * a, d_query + j * w, a);
        add(d_query_ahead, d_query + j * w, a);
        add(x->d_key_now + (r->at + j) * a, d_key + j * w, a);
        add(x->d_value_shift, d_value + j * w, c);
    }
}

static void contexts_backward(Row *r, const Decoder *x, num b, num u) {
    num c = x->channels, n = r->count, w = r->width;
    product(n, c, w, r->d_mapped, w, 1, x->of_context_T, c, r->d_context, c, 0);
    product(c, w, n, r->context, 1, c, r->d_mapped, w, x->d_of_context, w, 1);
    for (num j = 0; j < n; j++) {
        num t = r->at + j;
        float *d = r->d_context + j * c, *d_cell = x->d_attended + (t * x->horizon + r->horizon - j) * c;
        if (x->residual) {
            layer_norm_backward(d, c, x->block_gain, r->unit + j * c, r->by[j], x->d_block_gain, x->d_block_shift);
            add(x->d_block_now + t * c, d, c);
            add((float *)of_targets(x->d_block_ahead, x, b, u, c), d, c);
        }
        for (num k = 0; k < c; k += 8) V(d_cell + k) = CV(d + k) * CV(x->kept + t * c + k);
    }
}

/* Backward from `d_quantiles`, or, without them, forward and backward of the loss in one pass. Forecasts of targets before
 * the first one get no gradient: `d_attended` is not written there, and align_backward does not read it. */
int decoder_backward(const Decoder *x) {
    Row r;
    float *all = NULL;
    if (open_row(&r, x, &all)) return 1;
    for (num b = 0; b < x->batch; b++)
        for (num u = 0; u < x->made; u++) {
            row_forward(&r, x, b, u);
            memset(r.d_mapped, 0, (size_t)(r.count * r.width) * sizeof(float));
            pinball_grad(&r, x, b, u);
            local_backward(&r, x, b, u);
            if (x->feedback) feedback_backward(&r, x, b, u);
            contexts_backward(&r, x, b, u);
        }
    free(all);
    return 0;
}

/* ---------------------------------------------------------------------------------- what this library says about itself */

typedef struct { /* one argument; a size has only the first two names and the offset */
    const char *of, *name, *when, *type, *shape;
    num offset;
} Argument;

#define DESCRIBE_SIZE(of, name) {#of, #name, "", "", "", offsetof(of, name)},
#define DESCRIBE_ARRAY(of, when, type, name, shape) {#of, #name, #when, #type, shape, offsetof(of, name)},

/* Every argument of every structure, in order; after the arguments of each, its size. */
static const Argument layout[] = {
    STACK(DESCRIBE_SIZE, DESCRIBE_ARRAY){"Stack", "", "", "", "", sizeof(Stack)},
    ALIGN(DESCRIBE_SIZE, DESCRIBE_ARRAY){"Align", "", "", "", "", sizeof(Align)},
    DECODER(DESCRIBE_SIZE, DESCRIBE_ARRAY){"Decoder", "", "", "", "", sizeof(Decoder)},
};

const Argument *kernels_layout(void) { return layout; }
num kernels_layout_length(void) { return (num)(sizeof layout / sizeof *layout); }

/* The SHA-256 of this source; library.py refuses any other. */
const char *kernels_digest(void) { return DIGEST; }

/* Does the processor have the instructions that this was compiled for? */
int kernels_run_here(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}
