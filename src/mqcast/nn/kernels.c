/* The encoder's convolutions and MQTransformer's decoder on a CPU: what kernels.py calls instead of chains of torch
 * operations.
 *
 * Three steps, each with its way back. `stack_*`: causal convolutions of two taps, series by series, so that a layer finds
 * the one below in the cache. `align_*`: the sums over the past whose weights are softmax_s(G[t,s] + E[t+h,s]).
 * `cells_*`: all that follows for the forecasts of one target, which stay in the cache from their contexts to their
 * quantiles; the way back computes them anew. They do what encoder.py, alignment.py, attention.py and decoder.py do, in an
 * order that does not depend on what else is in the batch, nor on what a step or a cell may not see.
 *
 * Axes as in attention.py: b series, t creation time, h horizon, u target, s source step; a channels of heads, c of
 * contexts, d of the encoder; l layer. All numbers are float32, all arrays contiguous; a, c and d are multiples of 8.
 * Gradients are added to, so they start at zero, but for those of the stack's input and of the cells, which are written.
 *
 * Nothing is checked here. Each step's arguments are a list of sizes and arrays, from which come the structure below and
 * the layout that arguments.py reads and holds every call to: no name, type or shape is written down twice.
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
static num most(num x, num y) { return x > y ? x : y; }
static num least(num x, num y) { return x < y ? x : y; }

INLINE float sum8(v8 x) {
    v4 halves[2];
    memcpy(halves, &x, sizeof x);
    v4 half = halves[0] + halves[1];
    return (half[0] + half[2]) + (half[1] + half[3]);
}

INLINE float max_of(v8 x) {
    float most = x[0];
    for (int i = 1; i < 8; i++) most = x[i] > most ? x[i] : most;
    return most;
}

INLINE v8 either(v8i which, v8 x, v8 y) { return (v8)((which & (v8i)x) | (~which & (v8i)y)); }
INLINE v8 at_least(v8 x, float bound) { return either(x < bound, (v8){0} + bound, x); }
INLINE v8 at_most(v8 x, float bound) { return either(x > bound, (v8){0} + bound, x); }

/* e^x to about 1e-7 of itself; 0 below −87, as at 88 above, and no number of none */
INLINE v8 exp8(v8 x) {
    v8 in = at_most(at_least(x, -87.0f), 88.0f);
    v8 n = in * 1.44269504088896341f + 12582912.0f; /* rounds to a whole number in the low bits */
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
    return either(x < -87.0f, (v8){0}, either(x == x, p, x));
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
    switch (least(rows - i, 6)) {                                                            \
    case 6: tile(6, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 5: tile(5, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 4: tile(4, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 3: tile(3, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 2: tile(2, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    case 1: tile(1, W, depth, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc, add); break; \
    }

/* C (+)= A·B; `columns` is a multiple of 8. Every sum runs over k in its order, whatever the tiles. */
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

static float *room(num count) { /* whole cache lines */
    void *found = NULL;
    return posix_memalign(&found, 64, (size_t)(count + 16) * sizeof(float)) ? NULL : found;
}

/* ---------------------------------------------------------------------------------------- the encoder's convolutions */

/* `begun`: up to the first that has begun, inputs count as zeros; `weight`: taps at t − dilation, at t; `d_out`: of the
 * last layer */
#define STACK(SIZE, ARRAY)                                                                    \
    SIZE(Stack, batch) SIZE(Stack, steps) SIZE(Stack, channels) SIZE(Stack, layers)           \
    ARRAY(Stack, always, const byte, begun, "batch steps")                                    \
    ARRAY(Stack, always, const num, dilations, "layers")                                      \
    ARRAY(Stack, always, const float, x, "batch steps channels")                              \
    ARRAY(Stack, always, const float, weight, "layers 2 channels channels") /* out, in */     \
    ARRAY(Stack, always, const float, weight_T, "layers 2 channels channels")                 \
    ARRAY(Stack, always, const float, bias, "layers channels")                                \
    ARRAY(Stack, always, float, out, "layers batch steps channels")                           \
    ARRAY(Stack, back, const float, d_out, "batch steps channels")                            \
    ARRAY(Stack, back, float, d_x, "batch steps channels")                                    \
    ARRAY(Stack, back, float, d_weight_T, "layers 2 channels channels")                       \
    ARRAY(Stack, back, float, d_bias, "layers channels")

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
            num late = least(first + o->dilations[l], T);
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
    float *g = room(T * d), *d_below = room(T * d);
    int failed = !(g && d_below);
    for (num b = 0; b < o->batch && !failed; b++) {
        num first = first_begun(o->begun + b * T, T);
        for (num l = o->layers - 1; l >= 0; l--) {
            const float *out = o->out + (l * o->batch + b) * T * d, *weight = o->weight + 2 * l * d * d;
            const float *x = l ? o->out + ((l - 1) * o->batch + b) * T * d : o->x + b * T * d;
            const float *given = l == o->layers - 1 ? o->d_out + b * T * d : d_below;
            float *d_x = l ? d_below : o->d_x + b * T * d, *d_weight = o->d_weight_T + 2 * l * d * d, *d_bias = o->d_bias + l * d;
            num late = least(first + o->dilations[l], T);
            for (num t = 0; t < T; t++)
                for (num k = t * d; k < (t + 1) * d; k += 8) {
                    V(g + k) = either(CV(out + k) > 0.0f, CV(given + k), (v8){0});
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

#define ROWS 12            /* creation times, or targets, whose logits are computed at a time */
#define LARGEST_E 60.0f    /* as in alignment.py */
#define LARGEST_SUM 100.0f

/* `calendars` is 1 where all series share theirs, else `batch`; `targets` is made + horizon − 1. */
#define ALIGN(SIZE, ARRAY)                                                                    \
    SIZE(Align, batch) SIZE(Align, steps) SIZE(Align, made) SIZE(Align, wanted)               \
    SIZE(Align, horizon) SIZE(Align, heads) SIZE(Align, channels) SIZE(Align, lookback)       \
    SIZE(Align, shared_ahead)                                                                 \
    ARRAY(Align, always, const float, now, "batch made heads")                                \
    ARRAY(Align, always, const float, ahead, "calendars targets heads")                       \
    ARRAY(Align, always, const float, key, "batch steps heads")                               \
    ARRAY(Align, always, const float, value, "batch steps channels")                          \
    ARRAY(Align, always, const byte, begun, "batch steps")                                    \
    ARRAY(Align, always, float, cells, "batch made horizon channels")                         \
    ARRAY(Align, always, float, norm, "batch made horizon")                                   \
    ARRAY(Align, back, const float, d_cells, "batch made horizon channels")                   \
    ARRAY(Align, back, float, d_now, "batch made heads")                                      \
    ARRAY(Align, back, float, d_ahead, "calendars targets heads")                             \
    ARRAY(Align, back, float, d_key, "batch steps heads")                                     \
    ARRAY(Align, back, float, d_value, "batch steps channels")

typedef struct {
    ALIGN(A_SIZE, AN_ARRAY)
} Align;

typedef struct { /* of one series */
    const Align *x;
    const float *now, *ahead, *key, *value;
    const byte *begun;
    num first, width, lds; /* the first creation time; e^E[u,s] is at band[u·(width − 1) + s]; row length of keys_AS */
    float *band_room, *band, *keys_AS, *key_sizes, *ahead_sizes, *G, *eG, *scaled, *weights, *along;
} Series;

static int open_series(Series *o, const Align *x) {
    num targets = x->made + x->horizon - 1, span = x->lookback + ROWS + 16;
    o->x = x, o->first = x->steps - x->made, o->lds = x->steps + 32, o->width = x->lookback + x->horizon + 2 * ROWS + 16;
    o->band_room = room((targets + 2) * o->width);
    o->keys_AS = room(x->heads * o->lds);
    o->key_sizes = room(x->steps), o->ahead_sizes = room(targets);
    o->G = room(ROWS * span), o->eG = room(span), o->scaled = room((x->lookback + 1) * x->channels);
    o->weights = room(x->horizon * span), o->along = room(x->horizon);
    return !(o->band_room && o->keys_AS && o->key_sizes && o->ahead_sizes && o->G && o->eG && o->scaled && o->weights &&
             o->along);
}

static void close_series(Series *o) {
    float *rooms[] = {o->band_room, o->keys_AS, o->key_sizes, o->ahead_sizes, o->G, o->eG, o->scaled, o->weights, o->along};
    for (int i = 0; i < 9; i++) free(rooms[i]);
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
    o->band = o->band_room + band_start(o);
    memset(o->keys_AS, 0, (size_t)(a * o->lds) * sizeof(float));
    transpose(x->steps, a, o->key, a, o->keys_AS, o->lds);
    for (num s = 0; s < x->steps; s++) o->key_sizes[s] = size_of(o->key + s * a, a);
    for (num u = 0; u < targets; u++) o->ahead_sizes[u] = size_of(o->ahead + u * a, a);
    for (num u = 0; u < targets; u += ROWS) {
        num rows = least(ROWS, targets - u);
        num low = most(0, o->first + u - x->horizon + 1 - x->lookback);
        num high = least(o->first + u + rows, x->steps);
        product(rows, padded(high - low), a, o->ahead + u * a, a, 1, o->keys_AS + low, o->lds,
                o->band + u * (o->width - 1) + low, o->width - 1, 0);
        for (num i = u; i < u + rows; i++) {
            num from = most(0, o->first + i - x->horizon + 1 - x->lookback), to = least(o->first + i + 1, x->steps);
            float *row = o->band + i * (o->width - 1);
            for (num s = from; s < to; s += 8) V(row + s) = exp8(at_most(CV(row + s), LARGEST_E));
        }
    }
}

/* Of a row whose logits are large: e^(G + E − max) itself. */
static void weigh_the_long_way(Series *o, num t, num low, num n, const float *G, num ldw) {
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

/* The first horizon of a creation time whose target somebody asks for: one of a creation time that is wanted. */
static num first_horizon(const Align *x, num t) { return most(0, x->made - x->wanted - t); }

typedef struct { /* of a creation time: weight[h,s] = left[h·ld + s]·eG[s], for s = low … low + n − 1 */
    num low, n, ld;
    const float *left;
} Weights;

static Weights weigh(Series *o, num t, num block, num block_low) {
    const Align *x = o->x;
    num now = o->first + t, low = most(0, now - x->lookback), n = now - low + 1;
    float *G = o->G + (t - block) * (x->lookback + ROWS + 16) + low - block_low, top = -INFINITY, longest = 0;
    for (num s = 0; s < n - 1; s++)
        if (!o->begun[low + s]) G[s] = -INFINITY;
    for (num s = 0; s < n; s++) {
        if (G[s] > top) top = G[s];
        if (G[s] > -INFINITY && o->key_sizes[low + s] > longest) longest = o->key_sizes[low + s];
    }
    float of_now = 2 * size_of(o->now + t * x->heads, x->heads) * longest;
    int is_long = 0;
    for (num h = first_horizon(x, t); h < x->horizon; h++) {
        float of_E = o->ahead_sizes[t + h] * longest;
        is_long |= of_E > LARGEST_E || of_E + of_now > LARGEST_SUM;
    }
    if (is_long) {
        num ldw = padded(n) + 8;
        weigh_the_long_way(o, t, low, n, G, ldw);
        for (num s = 0; s < n; s++) o->eG[s] = G[s] > -INFINITY;
        return (Weights){low, n, ldw, o->weights};
    }
    for (num s = 0; s < n; s += 8) V(o->eG + s) = exp8(CV(G + s) - top);
    for (num s = n; s < padded(n); s++) o->eG[s] = 0;
    return (Weights){low, n, o->width - 1, o->band + t * (o->width - 1) + low};
}

/* Logits G of the creation times block … block + rows − 1, from the first step that any of them sees. */
static num logits(Series *o, num block, num rows) {
    const Align *x = o->x;
    num low = most(0, o->first + block - x->lookback), high = o->first + block + rows;
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
            num rows = least(ROWS, x->made - block), block_low = logits(&o, block, rows);
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
    float *of_band_room = room(band_size), *of_G = room(ROWS * span), *values_CS = room(c * o.lds);
    float *g = room(H * c), *of_weights = room(H * span), *of_scaled = room((x->lookback + 1) * c), *total = room(span);
    failed |= !(of_band_room && of_G && values_CS && g && of_weights && of_scaled && total);
    for (num b = 0; b < x->batch && !failed; b++) {
        enter_series(&o, b);
        float *of_band = of_band_room + band_start(&o);
        float *of_key = x->d_key + b * x->steps * a, *of_value = x->d_value + b * x->steps * c;
        memset(of_band_room, 0, (size_t)band_size * sizeof(float));
        memset(values_CS, 0, (size_t)(c * o.lds) * sizeof(float));
        transpose(x->steps, c, o.value, c, values_CS, o.lds);
        for (num block = 0; block < x->made; block += ROWS) {
            num rows = least(ROWS, x->made - block), block_low = logits(&o, block, rows);
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
            num rows = least(ROWS, targets - u), low = most(0, o.first + u - H + 1 - x->lookback);
            num high = least(o.first + u + rows, x->steps), ld = o.width - 1;
            const float *block = of_band + u * ld + low;
            product(rows, a, high - low, block, ld, 1, o.key + low * a, a, of_ahead + u * a, a, 1);
            product(high - low, a, rows, block, 1, ld, o.ahead + u * a, a, of_key + low * a, a, 1);
        }
    }
    close_series(&o);
    float *rooms[] = {of_band_room, of_G, values_CS, g, of_weights, of_scaled, total};
    for (int i = 0; i < 7; i++) free(rooms[i]);
    return failed;
}

/* ------------------------------------------------------------------------------------- the forecasts of one target */

/* The last `known` of `made` creation times exist. `feedback`: is there attention over earlier forecasts? Else what
 * belongs to it is NULL. `kept`: dropout, as factors; `read` is paces × heads; `outputs` are levels, padded;
 * `maps` are those of a context: to query, key, value, again (a, a, c, c; of feedback), local (a). For the loss there are
 * `targets`, `level`, `scored` and `loss`, else `d_quantiles`. */
#define CELLS(SIZE, ARRAY)                                                                    \
    SIZE(Cells, batch) SIZE(Cells, made) SIZE(Cells, known) SIZE(Cells, horizon) SIZE(Cells, heads)\
    SIZE(Cells, channels) SIZE(Cells, levels) SIZE(Cells, paces) SIZE(Cells, shared_ahead)    \
    SIZE(Cells, feedback)                                                                     \
    ARRAY(Cells, always, const byte, begun, "batch known")                                    \
    ARRAY(Cells, always, const float, attended, "batch known horizon channels")               \
    ARRAY(Cells, always, const float, kept, "batch known channels")                           \
    ARRAY(Cells, feedback, const float, kept_feedback, "batch known channels")                \
    ARRAY(Cells, always, const float, block_now, "batch known channels")                      \
    ARRAY(Cells, always, const float, block_ahead, "calendars made channels")                 \
    ARRAY(Cells, always, const float, block_gain, "channels")                                 \
    ARRAY(Cells, always, const float, block_shift, "channels")                                \
    ARRAY(Cells, feedback, const float, query_now, "batch known heads")                       \
    ARRAY(Cells, feedback, const float, query_ahead, "calendars made heads")                  \
    ARRAY(Cells, feedback, const float, key_now, "batch known heads")                         \
    ARRAY(Cells, feedback, const float, value_shift, "channels")                              \
    ARRAY(Cells, feedback, const float, again_now, "batch known channels")                    \
    ARRAY(Cells, feedback, const float, again_ahead, "calendars made channels")               \
    ARRAY(Cells, feedback, const float, again_gain, "channels")                               \
    ARRAY(Cells, feedback, const float, again_shift, "channels")                              \
    ARRAY(Cells, always, const float, local_now, "batch known heads")                         \
    ARRAY(Cells, always, const float, local_ahead, "calendars made heads")                    \
    ARRAY(Cells, always, const float, read, "batch known read")                               \
    ARRAY(Cells, always, const float, fading, "horizon paces")                                \
    ARRAY(Cells, always, const float, code, "horizon heads")                                  \
    ARRAY(Cells, always, const float, of_context, "channels maps")                            \
    ARRAY(Cells, always, const float, of_context_T, "maps channels")                          \
    ARRAY(Cells, feedback, const float, of_feedback, "channels heads")                        \
    ARRAY(Cells, feedback, const float, of_feedback_T, "heads channels")                      \
    ARRAY(Cells, always, const float, out, "heads outputs")                                   \
    ARRAY(Cells, always, const float, out_T, "outputs heads")                                 \
    ARRAY(Cells, always, const float, out_shift, "levels")                                    \
    ARRAY(Cells, forth, float, quantiles, "batch horizon wanted levels")                      \
    ARRAY(Cells, given, const float, d_quantiles, "batch horizon wanted levels")              \
    ARRAY(Cells, judged, const float, targets, "batch horizon wanted")                        \
    ARRAY(Cells, judged, const float, level, "levels")                                        \
    ARRAY(Cells, judged, const byte, scored, "batch horizon wanted")                          \
    ARRAY(Cells, judged, double, loss, "1")                                                   \
    ARRAY(Cells, back, float, d_attended, "batch known horizon channels")                     \
    ARRAY(Cells, back, float, d_block_now, "batch known channels")                            \
    ARRAY(Cells, back, float, d_block_ahead, "calendars made channels")                       \
    ARRAY(Cells, back, float, d_block_gain, "channels")                                       \
    ARRAY(Cells, back, float, d_block_shift, "channels")                                      \
    ARRAY(Cells, feedback_back, float, d_query_now, "batch known heads")                      \
    ARRAY(Cells, feedback_back, float, d_query_ahead, "calendars made heads")                 \
    ARRAY(Cells, feedback_back, float, d_key_now, "batch known heads")                        \
    ARRAY(Cells, feedback_back, float, d_value_shift, "channels")                             \
    ARRAY(Cells, feedback_back, float, d_again_now, "batch known channels")                   \
    ARRAY(Cells, feedback_back, float, d_again_ahead, "calendars made channels")              \
    ARRAY(Cells, feedback_back, float, d_again_gain, "channels")                              \
    ARRAY(Cells, feedback_back, float, d_again_shift, "channels")                             \
    ARRAY(Cells, back, float, d_local_now, "batch known heads")                               \
    ARRAY(Cells, back, float, d_local_ahead, "calendars made heads")                          \
    ARRAY(Cells, back, float, d_read, "batch known read")                                     \
    ARRAY(Cells, back, float, d_code, "horizon heads")                                        \
    ARRAY(Cells, back, float, d_of_context, "channels maps")                                  \
    ARRAY(Cells, feedback_back, float, d_of_feedback, "channels heads")                       \
    ARRAY(Cells, back, float, d_out, "heads outputs")                                         \
    ARRAY(Cells, back, float, d_out_shift, "levels")

typedef struct {
    CELLS(A_SIZE, AN_ARRAY)
} Cells;

#define EPSILON 1e-5f /* of torch's layer norm */

typedef struct { /* a target's forecasts in the order in which they were made; the first `early` of them are not wanted */
    num count, early;
    num first, at, horizon; /* of the first of them: its creation time, where that is, and its horizon less one */
    num width, ldp;         /* of a row of all maps of a context, and of the weights */
    float *context, *unit, *by, *mapped, *keys_T, *weights, *sums, *again_unit, *again_by, *feedback, *hidden, *raw, *hidden_keys;
    float *d_mapped, *d_weights, *d_context, *d_feedback, *values_T, *d_raw;
} Row;

static int open_row(Row *r, const Cells *x, float **all) {
    num H = x->horizon, a = x->heads, c = x->channels, q = padded(x->levels);
    r->width = a + (x->feedback ? 2 * a + 2 * c : 0), r->ldp = padded(H) + 8;
    num sizes[] = {H * c, H * c, H, H * r->width, a * r->ldp, H * r->ldp, H * c, H * c, H, H * c, H * a, H * q,
                   H * r->width, H * r->ldp, H * c, H * c, c * r->ldp, H * q, r->ldp};
    float **rooms[] = {&r->context, &r->unit, &r->by, &r->mapped, &r->keys_T, &r->weights, &r->sums, &r->again_unit,
                       &r->again_by, &r->feedback, &r->hidden, &r->raw, &r->d_mapped, &r->d_weights, &r->d_context,
                       &r->d_feedback, &r->values_T, &r->d_raw, &r->hidden_keys};
    num total = 0;
    for (int i = 0; i < 19; i++) total += (sizes[i] + 15) / 16 * 16;
    if (!(*all = room(total))) return 1;
    memset(*all, 0, (size_t)total * sizeof(float));
    float *next = *all;
    for (int i = 0; i < 19; i++) *rooms[i] = next, next += (sizes[i] + 15) / 16 * 16;
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

/* The way back: d becomes the gradient of what went in. */
INLINE void layer_norm_back(float *d, num c, const float *gain, const float *unit, float by, float *d_gain, float *d_shift) {
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

/* softmax over the forecasts up to j that were made, and j itself; zeros from there to `end`, a multiple of 8 */
INLINE void softmax_row(float *row, num j, num end, const float *hidden) {
    float own = row[j];
    v8 top = (v8){0} + own, sum = {0};
    for (num i = j; i < end; i++) row[i] = -INFINITY;
    for (num i = 0; i < end; i += 8) {
        v8 value = V(row + i) += CV(hidden + i);
        top = either(value > top, value, top);
    }
    row[j] = own;
    float most = max_of(top);
    for (num i = 0; i < end; i += 8) sum += V(row + i) = exp8(CV(row + i) - most);
    float by = 1 / sum8(sum);
    for (num i = 0; i < end; i += 8) V(row + i) *= by;
}

static const float *of_targets(const float *x, const Cells *o, num b, num u, num width) {
    return x + ((o->shared_ahead ? 0 : b * o->made) + u) * width;
}

/* c_{t,h}: the residual block around what is attended to in the past, and all maps of it. */
static void contexts(Row *r, const Cells *x, num b, num u) {
    num H = x->horizon, c = x->channels, t = r->at;
    const float *ahead = of_targets(x->block_ahead, x, b, u, c);
    for (num j = 0; j < r->count; j++, t++) {
        const float *cell = x->attended + (t * H + r->horizon - j) * c, *now = x->block_now + t * c, *kept = x->kept + t * c;
        float *context = r->context + j * c;
        for (num k = 0; k < c; k += 16) __builtin_prefetch(cell + c + k); /* of the next target */
        for (num k = 0; k < c; k += 8) V(context + k) = CV(cell + k) * CV(kept + k) + CV(now + k) + CV(ahead + k);
        r->by[j] = layer_norm(context, c, x->block_gain, x->block_shift, r->unit + j * c, context);
    }
    product(r->count, r->width, c, r->context, c, 1, x->of_context, r->width, r->mapped, r->width, 0);
}

/* c̃_{t,h}: attention over the contexts of earlier forecasts, and the residual block around it. */
static void feedback(Row *r, const Cells *x, num b, num u) {
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
        num rows = least(6, n - j), end = padded(j + rows);
        product(rows, end, a, r->mapped + j * w, w, 1, r->keys_T, ldp, r->weights + j * ldp, ldp, 0);
        for (num i = j; i < j + rows; i++) softmax_row(r->weights + i * ldp, i, end, r->hidden_keys);
        product(rows, c, j + rows, r->weights + j * ldp, ldp, 1, r->mapped + 2 * a, w, r->sums + j * c, c, 0);
    }
    ahead = of_targets(x->again_ahead, x, b, u, c);
    for (num j = r->early; j < n; j++) {
        const float *now = x->again_now + (r->at + j) * c, *kept = x->kept_feedback + (r->at + j) * c;
        const float *sums = r->sums + j * c, *own = r->mapped + j * w + 2 * a + c;
        float *to = r->feedback + j * c;
        for (num k = 0; k < c; k += 8) V(to + k) = CV(sums + k) * CV(kept + k) + CV(now + k) + CV(ahead + k) + CV(own + k);
        r->again_by[j] = layer_norm(to, c, x->again_gain, x->again_shift, r->again_unit + j * c, to);
    }
}

/* m_L */
static void local(Row *r, const Cells *x, num b, num u) {
    num a = x->heads, c = x->channels, q = padded(x->levels), p = x->paces, e = r->early, wanted = r->count - e;
    const float *ahead = of_targets(x->local_ahead, x, b, u, a);
    for (num j = e; j < r->count; j++) {
        num t = r->at + j, h = r->horizon - j;
        const float *now = x->local_now + t * a, *read = x->read + t * p * a, *code = x->code + h * a;
        const float *own = r->mapped + (j + 1) * r->width - a;
        float *hidden = r->hidden + j * a;
        for (num k = 0; k < a; k += 8) {
            v8 value = CV(now + k) + CV(ahead + k) + CV(code + k) + CV(own + k);
            for (num i = 0; i < p; i++) value += x->fading[h * p + i] * CV(read + i * a + k);
            V(hidden + k) = value;
        }
    }
    float *hidden = r->hidden + e * a;
    if (x->feedback) product(wanted, a, c, r->feedback + e * c, c, 1, x->of_feedback, a, hidden, a, 1);
    for (num k = 0; k < wanted * a; k += 8) V(hidden + k) = at_least(CV(hidden + k), 0.0f);
    product(wanted, q, a, hidden, a, 1, x->out, q, r->raw + e * q, q, 0);
}

static void row_forward(Row *r, const Cells *x, num b, num u) {
    num missing = x->made - x->known, from = most(0, missing - u);
    r->count = least(x->horizon, x->made - u) - from, r->first = u + from;
    r->early = least(most(0, x->horizon - 1 - r->first), r->count);
    r->at = b * x->known + r->first - missing, r->horizon = x->horizon - 1 - from;
    contexts(r, x, b, u);
    if (x->feedback) feedback(r, x, b, u);
    local(r, x, b, u);
}

/* Where the quantiles of a forecast are. */
static num place(const Cells *x, const Row *r, num b, num u, num j) {
    num wanted = x->made - x->horizon + 1, t = r->first + j, h = u + x->horizon - 1 - t;
    return ((b * x->horizon + h) * wanted + t - (x->horizon - 1)) * x->levels;
}

int cells_forward(const Cells *x) {
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

/* The gradients of the quantiles, as given, or those of the quantile loss, whose sum is told as well. */
static void judge(Row *r, const Cells *x, num b, num u) {
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

static void local_back(Row *r, const Cells *x, num b, num u) {
    num a = x->heads, q = padded(x->levels), p = x->paces, w = r->width, e = r->early, wanted = r->count - e;
    float *d_ahead = (float *)of_targets(x->d_local_ahead, x, b, u, a), *d_hidden = r->d_mapped + w - a;
    product(a, q, wanted, r->hidden + e * a, 1, a, r->d_raw + e * q, q, x->d_out, q, 1);
    product(wanted, a, x->levels, r->d_raw + e * q, q, 1, x->out_T, a, d_hidden + e * w, w, 0);
    for (num j = e; j < r->count; j++) {
        num t = r->at + j, h = r->horizon - j;
        float *d = d_hidden + j * w, *d_now = x->d_local_now + t * a, *d_code = x->d_code + h * a;
        const float *hidden = r->hidden + j * a;
        for (num k = 0; k < a; k += 8) {
            v8 value = either(CV(hidden + k) > 0.0f, CV(d + k), (v8){0});
            V(d + k) = value;
            V(d_now + k) += value;
            V(d_ahead + k) += value;
            V(d_code + k) += value;
            for (num i = 0; i < p; i++) V(x->d_read + (t * p + i) * a + k) += x->fading[h * p + i] * value;
        }
    }
}

static void feedback_back(Row *r, const Cells *x, num b, num u) {
    num a = x->heads, c = x->channels, n = r->count, e = r->early, w = r->width, ldp = r->ldp;
    float *d_query = r->d_mapped, *d_key = d_query + a, *d_value = d_key + a, *d_hidden = d_query + w - a;
    float *d_query_ahead = (float *)of_targets(x->d_query_ahead, x, b, u, a);
    float *d_again_ahead = (float *)of_targets(x->d_again_ahead, x, b, u, c);
    product(c, a, n - e, r->feedback + e * c, 1, c, d_hidden + e * w, w, x->d_of_feedback, a, 1);
    product(n - e, c, a, d_hidden + e * w, w, 1, x->of_feedback_T, c, r->d_feedback + e * c, c, 0);
    for (num j = e; j < n; j++) {
        float *d = r->d_feedback + j * c, *own = d_value + c + j * w, *d_now = x->d_again_now + (r->at + j) * c;
        layer_norm_back(d, c, x->again_gain, r->again_unit + j * c, r->again_by[j], x->d_again_gain, x->d_again_shift);
        for (num k = 0; k < c; k += 8) {
            V(own + k) = CV(d + k);
            V(d_now + k) += CV(d + k);
            V(d_again_ahead + k) += CV(d + k);
            V(d + k) *= CV(x->kept_feedback + (r->at + j) * c + k);
        }
    }
    transpose(n, c, r->mapped + 2 * a, w, r->values_T, ldp);
    for (num j = e; j < n; j += 6) {
        num rows = least(6, n - j), end = padded(j + rows);
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

static void contexts_back(Row *r, const Cells *x, num b, num u) {
    num c = x->channels, n = r->count, w = r->width;
    float *d_ahead = (float *)of_targets(x->d_block_ahead, x, b, u, c);
    product(n, c, w, r->d_mapped, w, 1, x->of_context_T, c, r->d_context, c, 0);
    product(c, w, n, r->context, 1, c, r->d_mapped, w, x->d_of_context, w, 1);
    for (num j = 0; j < n; j++) {
        num t = r->at + j;
        float *d = r->d_context + j * c, *d_cell = x->d_attended + (t * x->horizon + r->horizon - j) * c;
        layer_norm_back(d, c, x->block_gain, r->unit + j * c, r->by[j], x->d_block_gain, x->d_block_shift);
        add(x->d_block_now + t * c, d, c);
        add(d_ahead, d, c);
        for (num k = 0; k < c; k += 8) V(d_cell + k) = CV(d + k) * CV(x->kept + t * c + k);
    }
}

/* Of given gradients, or, where there are none, of the loss: then this is the way there as well.
 * Cells of targets before the first get no gradient: `d_attended` is not written there, nor read by align_backward. */
int cells_backward(const Cells *x) {
    Row r;
    float *all = NULL;
    if (open_row(&r, x, &all)) return 1;
    for (num b = 0; b < x->batch; b++)
        for (num u = 0; u < x->made; u++) {
            row_forward(&r, x, b, u);
            memset(r.d_mapped, 0, (size_t)(r.count * r.width) * sizeof(float));
            judge(&r, x, b, u);
            local_back(&r, x, b, u);
            if (x->feedback) feedback_back(&r, x, b, u);
            contexts_back(&r, x, b, u);
        }
    free(all);
    return 0;
}

/* ---------------------------------------------------------------------------------- what this library says of itself */

typedef struct { /* one argument; of a size, only the first two names and the offset */
    const char *of, *name, *when, *type, *shape;
    num offset;
} Argument;

#define TELL_SIZE(of, name) {#of, #name, "", "", "", offsetof(of, name)},
#define TELL_ARRAY(of, when, type, name, shape) {#of, #name, #when, #type, shape, offsetof(of, name)},

/* Every argument of every structure, in their order; after the arguments of each, its size. */
static const Argument layout[] = {
    STACK(TELL_SIZE, TELL_ARRAY){"Stack", "", "", "", "", sizeof(Stack)},
    ALIGN(TELL_SIZE, TELL_ARRAY){"Align", "", "", "", "", sizeof(Align)},
    CELLS(TELL_SIZE, TELL_ARRAY){"Cells", "", "", "", "", sizeof(Cells)},
};

const Argument *kernels_layout(void) { return layout; }
num kernels_layout_length(void) { return (num)(sizeof layout / sizeof *layout); }

/* Of which source this is: library.py takes no other's. */
const char *kernels_digest(void) { return DIGEST; }

/* Has the processor what this was compiled for? */
int kernels_run_here(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}
