// Forward pass of a decoder of Llama's kind on a CPU, all layers in one parallel region.
//
// Tokens are computed in blocks of 16, one token per vector lane: an intermediate result with C channels is
// [blocks][C][16]. Weights are read in their own layout, [N, K], and each weight is broadcast to the lanes. Every lane
// sums over K in ascending order, so the bits of a token do not depend on the other tokens or on the number of threads.
// The residual stream and all sums are float32; activations that enter a product have the type of the weights.
//
// Compiled twice: `element` is float (AVX2 or AVX-512), or bfloat16 (AVX-512 with AVX512_BF16).

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
typedef __m512 vec;
static const int LANES = 16, ROWS = 6, COLUMNS = 4;  // a tile of a product: rows of weights, blocks of tokens
static inline vec set1(float x) { return _mm512_set1_ps(x); }
static inline vec loadf(const float *at) { return _mm512_loadu_ps(at); }
static inline void storef(float *at, vec x) { _mm512_storeu_ps(at, x); }
static inline vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec divide(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec root(vec a) { return _mm512_sqrt_ps(a); }
static inline vec maximum(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline float highest(vec a) { return _mm512_reduce_max_ps(a); }
static inline float total(vec a) { return _mm512_reduce_add_ps(a); }
static inline vec whole(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vec scaled(vec a, vec exponent) { return _mm512_scalef_ps(a, exponent); }
#else
typedef __m256 vec;
static const int LANES = 8, ROWS = 6, COLUMNS = 1;
static inline vec set1(float x) { return _mm256_set1_ps(x); }
static inline vec loadf(const float *at) { return _mm256_loadu_ps(at); }
static inline void storef(float *at, vec x) { _mm256_storeu_ps(at, x); }
static inline vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec divide(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec root(vec a) { return _mm256_sqrt_ps(a); }
static inline vec maximum(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline float highest(vec a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline float total(vec a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline vec whole(vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vec scaled(vec a, vec exponent) {  // a in [0.5, 2], exponent >= -126
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(exponent), 23));
    return _mm256_castsi256_ps(bits);
}
#endif

static const int BLOCK = 16, PARTS = BLOCK / LANES, CHUNK = 8;  // tokens; vectors per block; blocks that stay in the cache

// e to the power of x <= 0; 0 below e^-87.
static inline vec exponential(vec x) {
    vec t = mul(maximum(set1(-87.0f), x), set1(1.44269504f));
    vec exponent = whole(t), rest = sub(t, exponent), sum = set1(1.54035304e-4f);
    sum = fma(sum, rest, set1(1.33335581e-3f));
    sum = fma(sum, rest, set1(9.61812911e-3f));
    sum = fma(sum, rest, set1(5.55041087e-2f));
    sum = fma(sum, rest, set1(2.40226507e-1f));
    sum = fma(sum, rest, set1(6.93147181e-1f));
    sum = fma(sum, rest, set1(1.0f));
    return scaled(sum, exponent);
}

#ifdef HALF
typedef uint16_t element;
#define NAME(function) function##_bfloat16
static inline float single(element bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, 4);
    return number;
}
static inline element rounded(float x) { return (element)_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(x)), 0); }
static inline vec load(const element *at) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)), 16));
}
static inline void store(element *at, vec x) { _mm256_storeu_si256((__m256i *)at, (__m256i)_mm512_cvtneps_pbh(x)); }

// Two channels of a block, [16] each, to the packed layout of products: [K / 2][16][2].
static inline void store_pair(element *packed, int64_t channel, const float *low, const float *high) {
    __m512i of_low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(low)));
    __m512i of_high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(high)));
    _mm512_storeu_si512(packed + channel * BLOCK, _mm512_or_si512(of_low, _mm512_slli_epi32(of_high, 16)));
}

// Rows of tokens [tokens][K] to the packed layout, one block.
static inline void pack(const element *rows, int64_t stride, int64_t tokens, int64_t width, element *packed) {
    for (int64_t k = 0; k < width; k += 2)
        for (int64_t i = 0; i < BLOCK; i++) {
            uint32_t pair = 0;
            if (i < tokens) memcpy(&pair, rows + i * stride + k, 4);
            memcpy(packed + k * BLOCK + 2 * i, &pair, 4);
        }
}

// R rows of weights times C blocks: out[r][c * 16 + token].
template <int R, int C>
static inline void tile(const element *weights, int64_t width, const element *packed, float (*out)[COLUMNS * BLOCK]) {
    __m512 sums[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = _mm512_setzero_ps();
    for (int64_t k = 0; k < width; k += 2) {
        if (k % 32 == 0)
            for (int r = 0; r < R; r++) _mm_prefetch((const char *)(weights + (R + r) * width + k), _MM_HINT_T0);
        __m512bh tokens[C];
        for (int c = 0; c < C; c++) tokens[c] = (__m512bh)_mm512_loadu_si512(packed + (c * width + k) * BLOCK);
        for (int r = 0; r < R; r++) {
            int pair;
            memcpy(&pair, weights + r * width + k, 4);
            const __m512bh weight = (__m512bh)_mm512_set1_epi32(pair);
            for (int c = 0; c < C; c++) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], weight, tokens[c]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) _mm512_storeu_ps(out[r] + c * BLOCK, sums[r][c]);
}
#else
typedef float element;
#define NAME(function) function##_float32
static inline float single(element x) { return x; }
static inline element rounded(float x) { return x; }
static inline vec load(const element *at) { return loadf(at); }
static inline void store(element *at, vec x) { storef(at, x); }
static inline void store_pair(element *packed, int64_t channel, const float *low, const float *high) {
    memcpy(packed + channel * BLOCK, low, BLOCK * 4);
    memcpy(packed + (channel + 1) * BLOCK, high, BLOCK * 4);
}
static inline void pack(const element *rows, int64_t stride, int64_t tokens, int64_t width, element *packed) {
    for (int64_t k = 0; k < width; k++)
        for (int64_t i = 0; i < BLOCK; i++) packed[k * BLOCK + i] = i < tokens ? rows[i * stride + k] : 0.0f;
}
template <int R, int C>
static inline void tile(const element *weights, int64_t width, const element *packed, float (*out)[COLUMNS * BLOCK]) {
    vec sums[R][C * PARTS];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C * PARTS; c++) sums[r][c] = set1(0.0f);
    for (int64_t k = 0; k < width; k++) {
        if (k % 16 == 0)
            for (int r = 0; r < R; r++) _mm_prefetch((const char *)(weights + (R + r) * width + k), _MM_HINT_T0);
        vec tokens[C * PARTS];
        for (int c = 0; c < C; c++)
            for (int p = 0; p < PARTS; p++) tokens[c * PARTS + p] = loadf(packed + (c * width + k) * BLOCK + p * LANES);
        for (int r = 0; r < R; r++) {
            const vec weight = set1(weights[r * width + k]);
            for (int c = 0; c < C * PARTS; c++) sums[r][c] = fma(weight, tokens[c], sums[r][c]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C * PARTS; c++) storef(out[r] + c * LANES, sums[r][c]);
}
#endif

template <int C>
static inline void any_rows(int64_t rows, const element *weights, int64_t width, const element *packed, float (*out)[COLUMNS * BLOCK]) {
    if (rows == 6) tile<6, C>(weights, width, packed, out);
    if (rows == 5) tile<5, C>(weights, width, packed, out);
    if (rows == 4) tile<4, C>(weights, width, packed, out);
    if (rows == 3) tile<3, C>(weights, width, packed, out);
    if (rows == 2) tile<2, C>(weights, width, packed, out);
    if (rows == 1) tile<1, C>(weights, width, packed, out);
}

static inline void any_tile(int64_t rows, int64_t blocks, const element *weights, int64_t width, const element *packed, float (*out)[COLUMNS * BLOCK]) {
#ifdef __AVX512F__
    if (blocks == 4) any_rows<4>(rows, weights, width, packed, out);
    if (blocks == 3) any_rows<3>(rows, weights, width, packed, out);
    if (blocks == 2) any_rows<2>(rows, weights, width, packed, out);
#endif
    if (blocks == 1) any_rows<1>(rows, weights, width, packed, out);
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tiles_of(int64_t rows) { return (rows + ROWS - 1) / ROWS; }

// Multiplies a tile of rows with all blocks of a chunk; `write(block, blocks, out)` receives each result.
template <typename Write>
static inline void rows_times_chunk(const element *weights, int64_t first, int64_t rows, int64_t width, const element *packed,
                                    int64_t from, int64_t to, Write write) {
    float out[ROWS][COLUMNS * BLOCK];
    for (int64_t block = from; block < to; block += COLUMNS) {
        const int64_t blocks = least(COLUMNS, to - block);
        any_tile(rows, blocks, weights + first * width, width, packed + block * width * BLOCK, out);
        write(block, blocks, out);
    }
}

// hidden [blocks][C][16] normalized and scaled, to the packed layout, one block.
static inline void normalize(const float *hidden, const element *weight, int64_t width, float epsilon, element *packed) {
    vec squares[PARTS];
    for (int p = 0; p < PARTS; p++) squares[p] = set1(0.0f);
    for (int64_t c = 0; c < width; c++)
        for (int p = 0; p < PARTS; p++) {
            vec state = loadf(hidden + c * BLOCK + p * LANES);
            squares[p] = fma(state, state, squares[p]);
        }
    for (int p = 0; p < PARTS; p++)
        squares[p] = divide(set1(1.0f), root(add(divide(squares[p], set1((float)width)), set1(epsilon))));
    for (int64_t c = 0; c < width; c += 2) {
        float normed[2][BLOCK];
        for (int i = 0; i < 2; i++)
            for (int p = 0; p < PARTS; p++) {
                vec state = mul(loadf(hidden + (c + i) * BLOCK + p * LANES), squares[p]);
                storef(normed[i] + p * LANES, mul(state, set1(single(weight[c + i]))));
            }
        store_pair(packed, c, normed[0], normed[1]);
    }
}

// The heads of one block of tokens, [width][16]: normalized if there is a weight, rotated if there are angles.
static inline void prepare_head(float *head, const element *weight, const float *cosines, const float *sines, int64_t width, float epsilon) {
    if (weight)
        for (int p = 0; p < PARTS; p++) {
            float *at = head + p * LANES;
            vec squares = set1(0.0f);
            for (int64_t d = 0; d < width; d++) squares = fma(loadf(at + d * BLOCK), loadf(at + d * BLOCK), squares);
            vec factor = divide(set1(1.0f), root(add(divide(squares, set1((float)width)), set1(epsilon))));
            for (int64_t d = 0; d < width; d++)
                storef(at + d * BLOCK, mul(mul(loadf(at + d * BLOCK), factor), set1(single(weight[d]))));
        }
    if (cosines)
        for (int64_t d = 0; d < width / 2; d++)
            for (int p = 0; p < PARTS; p++) {
                const int64_t low = d * BLOCK + p * LANES, high = low + width / 2 * BLOCK;
                const vec x = loadf(head + low), y = loadf(head + high);
                storef(head + low, sub(mul(x, loadf(cosines + low)), mul(y, loadf(sines + low))));
                storef(head + high, fma(y, loadf(cosines + high), mul(x, loadf(sines + high))));
            }
}

// Keys or values of one head: the first `shared` in another row, the others in the token's own row.
struct Stretch {
    const element *begin, *own;
    int64_t shared;
    const element *at(int64_t place, int64_t width) const { return (place < shared ? begin : own) + place * width; }
};

#ifdef __AVX512F__
// The sums of 16 vectors, in one.
static inline vec totals(const vec *v) {
    __m512 of_two[8], of_four[4];
    for (int i = 0; i < 8; i++)
        of_two[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(of_two[2 * i]), b = _mm512_castps_pd(of_two[2 * i + 1]);
        of_four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(of_four[0], of_four[1], 0x88), _mm512_shuffle_f32x4(of_four[0], of_four[1], 0xdd));
    __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(of_four[2], of_four[3], 0x88), _mm512_shuffle_f32x4(of_four[2], of_four[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}
#else
static inline vec totals(const vec *v) {  // of 8 vectors
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
#endif

static inline void dot_products(const element *query, const element *const *keys, int64_t width, vec *sums) {
    for (int i = 0; i < LANES; i++) sums[i] = set1(0.0f);
#ifdef HALF
    for (int64_t d = 0; d < width; d += 32) {
        const __m512bh asked = (__m512bh)_mm512_loadu_si512(query + d);
        for (int i = 0; i < LANES; i++) sums[i] = _mm512_dpbf16_ps(sums[i], asked, (__m512bh)_mm512_loadu_si512(keys[i] + d));
    }
#else
    for (int64_t d = 0; d < width; d += LANES) {
        const vec asked = loadf(query + d);
        for (int i = 0; i < LANES; i++) sums[i] = fma(asked, loadf(keys[i] + d), sums[i]);
    }
#endif
}

// Weighted sums of values for G queries and N vectors of a head.
template <int G, int N>
static inline void mix(const float *scores, int64_t stride, const float *factors, Stretch values, int64_t length, int64_t width,
                       int64_t from, element *out) {
    vec mixed[G][N];
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) mixed[g][n] = set1(0.0f);
    for (int64_t place = 0; place < length; place++) {
        const element *at = values.at(place, width) + from;
        vec value[N];
        for (int n = 0; n < N; n++) value[n] = load(at + n * LANES);
        for (int g = 0; g < G; g++) {
            const vec score = set1(scores[g * stride + place]);
            for (int n = 0; n < N; n++) mixed[g][n] = fma(score, value[n], mixed[g][n]);
        }
    }
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) store(out + g * width + from + n * LANES, mul(mixed[g][n], set1(factors[g])));
}

template <int N>
static inline void mix_group(int64_t group, const float *scores, int64_t stride, const float *factors, Stretch values, int64_t length,
                             int64_t width, element *out) {
    for (int64_t from = 0; from < width; from += N * LANES)
        for (int64_t g = 0; g < group;) {
            const int64_t left = group - g;
            const float *of = scores + g * stride;
            if (left >= 3) mix<3, N>(of, stride, factors + g, values, length, width, from, out + g * width), g += 3;
            else if (left == 2) mix<2, N>(of, stride, factors + g, values, length, width, from, out + g * width), g += 2;
            else mix<1, N>(of, stride, factors + g, values, length, width, from, out + g * width), g += 1;
        }
}

// Attention of the queries of one token that share a head of keys: query, out [group][width].
static void attend(const element *query, int64_t group, Stretch keys, Stretch values, int64_t length, int64_t width, float scale,
                   element *out, float *scores) {
    const int64_t padded = (length + LANES - 1) / LANES * LANES;
    float *factors = scores + group * padded;
    for (int64_t place = 0; place < length; place += LANES) {
        const element *at[LANES];
        for (int i = 0; i < LANES; i++) at[i] = keys.at(least(place + i, length - 1), width);
        for (int64_t g = 0; g < group; g++) {
            vec sums[LANES];
            dot_products(query + g * width, at, width, sums);
            storef(scores + g * padded + place, mul(totals(sums), set1(scale)));
        }
    }
    for (int64_t g = 0; g < group; g++) {
        float *own = scores + g * padded;
        for (int64_t place = length; place < padded; place++) own[place] = -INFINITY;
        vec most = loadf(own), sum = set1(0.0f);
        for (int64_t place = LANES; place < padded; place += LANES) most = maximum(most, loadf(own + place));
        const vec of_all = set1(highest(most));
        for (int64_t place = 0; place < padded; place += LANES) {
            vec share = exponential(sub(loadf(own + place), of_all));
            storef(own + place, share);
            if (place + LANES <= length) sum = add(sum, share);
        }
        float whole_sum = total(sum);
        for (int64_t place = length / LANES * LANES; place < length; place++) whole_sum += own[place];
        factors[g] = 1.0f / whole_sum;
    }
    if (width % (4 * LANES) == 0) mix_group<4>(group, scores, padded, factors, values, length, width, out);
    else mix_group<2>(group, scores, padded, factors, values, length, width, out);
}

struct Sizes {
    int64_t tokens, hidden, heads, kept, width, inner, capacity, layers, threads;
};

struct Layer {  // null: there is none
    const element *input_norm, *query, *key, *value, *output, *post_norm, *gate, *up, *down;
    const element *query_bias, *key_bias, *value_bias, *output_bias, *query_norm, *key_norm;
    element *keys, *values;
};

struct Tokens {  // [tokens] each; cosines and sines [tokens][width]
    const int64_t *rows, *places, *sources, *shared, *order;
    const float *cosines, *sines;
};

extern "C" {

// Bytes of scratch memory that `forward` needs.
int64_t NAME(scratch)(const Sizes *s) {
    const int64_t blocks = (s->tokens + BLOCK - 1) / BLOCK, heads = s->heads + 2 * s->kept;
    const int64_t floats = s->hidden + heads * s->width + 2 * s->width;
    const int64_t elements = s->hidden + s->inner + 3 * s->heads * s->width;
    return blocks * BLOCK * (floats * 4 + elements * (int64_t)sizeof(element)) + 4096;
}

// states: [tokens][hidden] embeddings, replaced by the normalized states of the last layer. All keys of `shared` places of a
// token are read from the row `sources`, the others from its own row.
void NAME(forward)(const Sizes *s, const Layer *layers, const element *last_norm, const Tokens *t, element *states, char *scratch,
                   float epsilon, float scale) {
    const int64_t tokens = s->tokens, hidden = s->hidden, width = s->width, inner = s->inner, kept = s->kept, heads = s->heads;
    const int64_t blocks = (tokens + BLOCK - 1) / BLOCK, group = heads / kept, all = heads + 2 * kept, mixed_width = heads * width;
    const int64_t of_head = s->capacity * width, of_row = kept * of_head;
    float *residual = (float *)(((uintptr_t)scratch + 63) / 64 * 64);
    float *projected = residual + blocks * BLOCK * hidden, *cosines = projected + blocks * BLOCK * all * width;
    float *sines = cosines + blocks * BLOCK * width;
    element *normed = (element *)(sines + blocks * BLOCK * width), *gated = normed + blocks * BLOCK * hidden;
    element *queries = gated + blocks * BLOCK * inner, *mixed = queries + blocks * BLOCK * mixed_width;
    element *packed = mixed + blocks * BLOCK * mixed_width;
    int64_t longest = 0;
    for (int64_t i = 0; i < tokens; i++) longest = t->places[i] + 1 > longest ? t->places[i] + 1 : longest;
#pragma omp parallel num_threads(s->threads)
    {
        float *scores = (float *)malloc(sizeof(float) * group * (longest + LANES + 1));
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++)
            for (int64_t i = 0; i < BLOCK; i++) {
                const int64_t token = b * BLOCK + i;
                const bool real = token < tokens;
                for (int64_t c = 0; c < hidden; c++)
                    residual[(b * hidden + c) * BLOCK + i] = real ? single(states[token * hidden + c]) : 0.0f;
                for (int64_t d = 0; d < width; d++) {
                    cosines[(b * width + d) * BLOCK + i] = real ? t->cosines[token * width + d] : 0.0f;
                    sines[(b * width + d) * BLOCK + i] = real ? t->sines[token * width + d] : 0.0f;
                }
            }
        for (int64_t number = 0; number < s->layers; number++) {
            const Layer *l = layers + number;
#pragma omp for schedule(static)
            for (int64_t b = 0; b < blocks; b++)
                normalize(residual + b * hidden * BLOCK, l->input_norm, hidden, epsilon, normed + b * hidden * BLOCK);
            const element *weights[3] = {l->query, l->key, l->value}, *biases[3] = {l->query_bias, l->key_bias, l->value_bias};
            const int64_t sizes[3] = {heads * width, kept * width, kept * width};
            const int64_t ends[3] = {tiles_of(sizes[0]), tiles_of(sizes[0]) + tiles_of(sizes[1]), tiles_of(sizes[0]) + 2 * tiles_of(sizes[1])};
            for (int64_t from = 0; from < blocks; from += CHUNK) {
#pragma omp for schedule(dynamic, 8) nowait
                for (int64_t item = 0; item < ends[2]; item++) {
                    const int which = item < ends[0] ? 0 : item < ends[1] ? 1 : 2;
                    const int64_t first = (item - (which ? ends[which - 1] : 0)) * ROWS, rows = least(ROWS, sizes[which] - first);
                    const int64_t at = first + (which > 0) * sizes[0] + (which > 1) * sizes[1];
                    rows_times_chunk(weights[which], first, rows, hidden, normed, from, least(blocks, from + CHUNK),
                                     [&](int64_t block, int64_t count, float(*out)[COLUMNS * BLOCK]) {
                                         for (int64_t c = 0; c < count; c++)
                                             for (int64_t r = 0; r < rows; r++) {
                                                 const vec bias = set1(biases[which] ? single(biases[which][first + r]) : 0.0f);
                                                 for (int p = 0; p < PARTS; p++)
                                                     storef(projected + ((block + c) * all * width + at + r) * BLOCK + p * LANES,
                                                            add(loadf(out[r] + c * BLOCK + p * LANES), bias));
                                             }
                                     });
                }
            }
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t item = 0; item < blocks * all; item++) {
                const int64_t b = item / all, head = item % all;
                const bool is_query = head < heads, is_key = !is_query && head < heads + kept;
                float *at = projected + (b * all + head) * width * BLOCK;
                const element *norm = is_query ? l->query_norm : is_key ? l->key_norm : nullptr;
                const bool is_rotated = is_query || is_key;
                prepare_head(at, norm, is_rotated ? cosines + b * width * BLOCK : nullptr, sines + b * width * BLOCK, width, epsilon);
                for (int64_t i = 0; i < BLOCK && b * BLOCK + i < tokens; i++) {
                    const int64_t token = b * BLOCK + i;
                    element *to;
                    if (is_query) to = queries + token * mixed_width + head * width;
                    else to = (is_key ? l->keys : l->values) + t->rows[token] * of_row +
                              (head - heads - (is_key ? 0 : kept)) * of_head + t->places[token] * width;
                    for (int64_t d = 0; d < width; d++) to[d] = rounded(at[d * BLOCK + i]);
                }
            }
#pragma omp for schedule(dynamic, 4)
            for (int64_t item = 0; item < kept * tokens; item++) {
                const int64_t head = item / tokens, i = t->order[item % tokens];
                const int64_t own = t->rows[i] * of_row + head * of_head, begin = t->sources[i] * of_row + head * of_head;
                const int64_t at = i * mixed_width + head * group * width;
                const Stretch keys = {l->keys + begin, l->keys + own, t->shared[i]}, values = {l->values + begin, l->values + own, t->shared[i]};
                attend(queries + at, group, keys, values, t->places[i] + 1, width, scale, mixed + at, scores);
            }
#pragma omp for schedule(static)
            for (int64_t b = 0; b < blocks; b++)
                pack(mixed + b * BLOCK * mixed_width, mixed_width, tokens - b * BLOCK, mixed_width, packed + b * BLOCK * mixed_width);
            const auto added = [&](const element *weight, const element *bias, int64_t from_width, const element *inputs) {
                for (int64_t from = 0; from < blocks; from += CHUNK) {
#pragma omp for schedule(dynamic, 8) nowait
                    for (int64_t item = 0; item < tiles_of(hidden); item++) {
                        const int64_t first = item * ROWS, rows = least(ROWS, hidden - first);
                        rows_times_chunk(weight, first, rows, from_width, inputs, from, least(blocks, from + CHUNK),
                                         [&](int64_t block, int64_t count, float(*out)[COLUMNS * BLOCK]) {
                                             for (int64_t c = 0; c < count; c++)
                                                 for (int64_t r = 0; r < rows; r++)
                                                     for (int p = 0; p < PARTS; p++) {
                                                         float *to = residual + ((block + c) * hidden + first + r) * BLOCK + p * LANES;
                                                         vec more = loadf(out[r] + c * BLOCK + p * LANES);
                                                         if (bias) more = add(more, set1(single(bias[first + r])));
                                                         storef(to, add(loadf(to), more));
                                                     }
                                         });
                    }
                }
#pragma omp barrier
            };
            added(l->output, l->output_bias, mixed_width, packed);
#pragma omp for schedule(static)
            for (int64_t b = 0; b < blocks; b++)
                normalize(residual + b * hidden * BLOCK, l->post_norm, hidden, epsilon, normed + b * hidden * BLOCK);
            for (int64_t from = 0; from < blocks; from += CHUNK) {
#pragma omp for schedule(dynamic, 8) nowait
                for (int64_t item = 0; item < tiles_of(inner); item++) {
                    const int64_t first = item * ROWS, rows = least(ROWS, inner - first);
                    float gates[CHUNK][ROWS][BLOCK];
                    rows_times_chunk(l->gate, first, rows, hidden, normed, from, least(blocks, from + CHUNK),
                                     [&](int64_t block, int64_t count, float(*out)[COLUMNS * BLOCK]) {
                                         for (int64_t c = 0; c < count; c++)
                                             for (int64_t r = 0; r < rows; r++)
                                                 memcpy(gates[block + c - from][r], out[r] + c * BLOCK, 4 * BLOCK);
                                     });
                    rows_times_chunk(l->up, first, rows, hidden, normed, from, least(blocks, from + CHUNK),
                                     [&](int64_t block, int64_t count, float(*out)[COLUMNS * BLOCK]) {
                                         for (int64_t c = 0; c < count; c++) {
                                             float (*of)[BLOCK] = gates[block + c - from];
                                             for (int64_t r = 0; r < rows; r++)
                                                 for (int p = 0; p < PARTS; p++) {
                                                     const vec x = loadf(of[r] + p * LANES), zero = set1(0.0f);
                                                     // silu(x) = x / (1 + e^-x), in exponentials of what is not positive
                                                     const vec less = exponential(sub(zero, maximum(x, sub(zero, x))));
                                                     const vec below = divide(mul(x, less), add(set1(1.0f), less));
                                                     const vec above = divide(x, add(set1(1.0f), less));
#ifdef __AVX512F__
                                                     const vec silu = _mm512_mask_mov_ps(above, _mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ), below);
#else
                                                     const vec silu = _mm256_blendv_ps(above, below, x);
#endif
                                                     storef(of[r] + p * LANES, mul(silu, loadf(out[r] + c * BLOCK + p * LANES)));
                                                 }
                                             for (int64_t r = 0; r < rows; r += 2)
                                                 store_pair(gated + (block + c) * inner * BLOCK, first + r, of[r], of[r + 1]);
                                         }
                                     });
                }
            }
#pragma omp barrier
            added(l->down, nullptr, inner, gated);
        }
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            normalize(residual + b * hidden * BLOCK, last_norm, hidden, epsilon, normed + b * hidden * BLOCK);
            const element *from = normed + b * hidden * BLOCK;
            for (int64_t i = 0; i < BLOCK && b * BLOCK + i < tokens; i++)
                for (int64_t c = 0; c < hidden; c++)
#ifdef HALF
                    states[(b * BLOCK + i) * hidden + c] = from[c / 2 * 2 * BLOCK + 2 * i + c % 2];
#else
                    states[(b * BLOCK + i) * hidden + c] = from[c * BLOCK + i];
#endif
        }
        free(scores);
    }
}

// out [tokens][rows] float32: states [tokens][width] times the transpose of weights [rows][width].
void NAME(head)(const element *states, const element *weights, float *out, char *scratch, int64_t tokens, int64_t width, int64_t rows,
                int64_t threads) {
    const int64_t blocks = (tokens + BLOCK - 1) / BLOCK;
    element *packed = (element *)(((uintptr_t)scratch + 63) / 64 * 64);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) pack(states + b * BLOCK * width, width, tokens - b * BLOCK, width, packed + b * BLOCK * width);
        for (int64_t from = 0; from < blocks; from += CHUNK) {
#pragma omp for schedule(dynamic, 64) nowait
            for (int64_t item = 0; item < tiles_of(rows); item++) {
                const int64_t first = item * ROWS, count = least(ROWS, rows - first);
                rows_times_chunk(weights, first, count, width, packed, from, least(blocks, from + CHUNK),
                                 [&](int64_t block, int64_t of, float(*result)[COLUMNS * BLOCK]) {
                                     for (int64_t i = 0; i < of * BLOCK && block * BLOCK + i < tokens; i++)
                                         for (int64_t r = 0; r < count; r++) out[(block * BLOCK + i) * rows + first + r] = result[r][i];
                                 });
            }
        }
    }
}

}
