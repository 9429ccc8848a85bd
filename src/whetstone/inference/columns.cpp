// What lies between the products of a block of Llama's kind, in bfloat16: numbers are read once, sums are float32.
//
// States are columns: [C, T], one token after the other in memory, as products with the weights first give them.
// Every token is computed on its own, so its bits do not tell who else is there.

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t half;  // the bits of a bfloat16

static inline __m512 widened(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
static inline __m512 load(const half *at, __mmask16 mask) { return widened(_mm256_maskz_loadu_epi16(mask, at)); }
static inline __m256i rounded(__m512 numbers) { return (__m256i)_mm512_cvtneps_pbh(numbers); }
static inline void store(half *at, __mmask16 mask, __m512 numbers) { _mm256_mask_storeu_epi16(at, mask, rounded(numbers)); }
static inline __mmask16 first(int64_t left) { return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1); }

// e to the power of x <= 0, what is no number kept (of two the second is taken).
static inline __m512 exponential(__m512 x) {
    __m512 t = _mm512_mul_ps(_mm512_max_ps(_mm512_set1_ps(-100.0f), x), _mm512_set1_ps(1.44269504f));
    __m512 whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 rest = _mm512_sub_ps(t, whole);
    __m512 sum = _mm512_set1_ps(1.54035304e-4f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.33335581e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(9.61812911e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.55041087e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(2.40226507e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(6.93147181e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(sum, whole);
}

// The sums of sixteen vectors, in one.
static inline __m512 summed(const __m512 *v) {
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

// Keys or values of one head: `shared` of another row's first, then its own.
struct Stretch {
    const half *begin, *own;
    int64_t shared;
    const half *at(int64_t place, int64_t width) const { return (place < shared ? begin : own) + place * width; }
};

template <int PARTS>  // of 32 numbers each
static void attend_one(const half *query, int64_t group, Stretch keys, Stretch values, int64_t length, float scale, half *out, float *scores) {
    const int64_t width = 32 * PARTS, padded = (length + 15) / 16 * 16;
    for (int64_t place = 0; place < length; place += 16) {
        const half *at[16];
        for (int i = 0; i < 16; i++) at[i] = keys.at(place + i < length ? place + i : length - 1, width);
        for (int64_t g = 0; g < group; g++) {
            __m512bh asked[PARTS];
            for (int p = 0; p < PARTS; p++) asked[p] = (__m512bh)_mm512_loadu_si512(query + g * width + 32 * p);
            __m512 found[16];
            for (int i = 0; i < 16; i++) {
                found[i] = _mm512_setzero_ps();
                for (int p = 0; p < PARTS; p++)
                    found[i] = _mm512_dpbf16_ps(found[i], asked[p], (__m512bh)_mm512_loadu_si512(at[i] + 32 * p));
            }
            __m512 of_keys = _mm512_mul_ps(summed(found), _mm512_set1_ps(scale));
            of_keys = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), first(length - place), of_keys);
            _mm512_storeu_ps(scores + g * padded + place, of_keys);
        }
    }
    for (int64_t g = 0; g < group; g++) {
        float *own = scores + g * padded;
        __m512 highest = _mm512_loadu_ps(own), sum = _mm512_setzero_ps();
        for (int64_t place = 16; place < padded; place += 16) highest = _mm512_max_ps(highest, _mm512_loadu_ps(own + place));
        __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
        for (int64_t place = 0; place < padded; place += 16) {
            __m512 share = exponential(_mm512_sub_ps(_mm512_loadu_ps(own + place), most));
            share = _mm512_maskz_mov_ps(first(length - place), share);
            sum = _mm512_add_ps(sum, share);
            _mm512_storeu_ps(own + place, share);
        }
        __m512 mixed[2 * PARTS];
        for (int p = 0; p < 2 * PARTS; p++) mixed[p] = _mm512_setzero_ps();
        for (int64_t place = 0; place < length; place++) {
            const half *at = values.at(place, width);
            __m512 share = _mm512_set1_ps(own[place]);
            for (int p = 0; p < 2 * PARTS; p++) mixed[p] = _mm512_fmadd_ps(share, load(at + 16 * p, 0xffff), mixed[p]);
        }
        __m512 whole = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(sum));
        for (int p = 0; p < 2 * PARTS; p++) store(out + g * width + 16 * p, 0xffff, _mm512_mul_ps(mixed[p], whole));
    }
}

extern "C" {

// New tokens, B of them. queries, out: [B, heads, width]; keys, values: [rows, kept, capacity, width]; of each of B: the
// row its keys are in, the row its first `shared` keys are read from, how many it has. order: who comes one after another.
void attend(const half *queries, const half *keys, const half *values, half *out, const int64_t *rows, const int64_t *sources,
            const int64_t *shared, const int64_t *lengths, const int64_t *order, int64_t count, int64_t heads, int64_t kept,
            int64_t capacity, int64_t width, float scale, int64_t threads) {
    const int64_t group = heads / kept, of_row = kept * capacity * width;
    int64_t longest = 0;
    for (int64_t i = 0; i < count; i++) longest = lengths[i] > longest ? lengths[i] : longest;
#pragma omp parallel num_threads(threads)
    {
        float *scores = (float *)malloc(sizeof(float) * group * (longest + 16));
#pragma omp for schedule(dynamic, 4)
        for (int64_t item = 0; item < kept * count; item++) {
            const int64_t head = item / count, i = order[item % count];
            const int64_t own = rows[i] * of_row + head * capacity * width, begin = sources[i] * of_row + head * capacity * width;
            const half *query = queries + (i * heads + head * group) * width;
            half *to = out + (i * heads + head * group) * width;
            const Stretch of_keys = {keys + begin, keys + own, shared[i]}, of_values = {values + begin, values + own, shared[i]};
            if (width == 32) attend_one<1>(query, group, of_keys, of_values, lengths[i], scale, to, scores);
            if (width == 64) attend_one<2>(query, group, of_keys, of_values, lengths[i], scale, to, scores);
            if (width == 96) attend_one<3>(query, group, of_keys, of_values, lengths[i], scale, to, scores);
            if (width == 128) attend_one<4>(query, group, of_keys, of_values, lengths[i], scale, to, scores);
            if (width == 256) attend_one<8>(query, group, of_keys, of_values, lengths[i], scale, to, scores);
        }
        free(scores);
    }
}

// states + added, in place (added: null for none), and its norm over C. All but `weight` [C]: [C, T].
void add_and_norm(half *states, const half *added, const half *weight, half *out, int64_t width, int64_t tokens, float epsilon, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < (tokens + 31) / 32; block++) {
        const int64_t at = 32 * block;
        const __mmask16 masks[2] = {first(tokens - at), first(tokens - at > 16 ? tokens - at - 16 : 0)};
        __m512 squares[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int64_t c = 0; c < width; c++)
            for (int p = 0; p < 2; p++) {
                const int64_t place = c * tokens + at + 16 * p;
                __m512 state = load(states + place, masks[p]);
                if (added) {
                    __m256i sum = rounded(_mm512_add_ps(state, load(added + place, masks[p])));
                    _mm256_mask_storeu_epi16(states + place, masks[p], sum);
                    state = widened(sum);
                }
                squares[p] = _mm512_fmadd_ps(state, state, squares[p]);
            }
        for (int p = 0; p < 2; p++) {
            __m512 mean = _mm512_add_ps(_mm512_div_ps(squares[p], _mm512_set1_ps((float)width)), _mm512_set1_ps(epsilon));
            squares[p] = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_sqrt_ps(mean));
        }
        for (int64_t c = 0; c < width; c++) {
            const __m512 share = _mm512_set1_ps(_mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)weight[c] << 16))));
            for (int p = 0; p < 2; p++) {
                const int64_t place = c * tokens + at + 16 * p;
                store(out + place, masks[p], _mm512_mul_ps(_mm512_mul_ps(load(states + place, masks[p]), squares[p]), share));
            }
        }
    }
}

// Heads [heads · width, T] turned by angles ([width, T] each, or null for as they are), each token's in one piece of
// `width` numbers at places[head of token]: [T, heads].
void turn(const half *states, const half *cosines, const half *sines, half *out, const int64_t *places, int64_t heads, int64_t width,
          int64_t tokens, int64_t threads) {
    const int64_t blocks = (tokens + 15) / 16, middle = width / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t item = 0; item < heads * blocks; item++) {
        const int64_t head = item / blocks, at = item % blocks * 16;
        const __mmask16 mask = first(tokens - at);
        half turned[16][256], lanes[16];
        for (int64_t d = 0; d < width; d++) {
            const half *from = states + (head * width + d) * tokens + at;
            __m512 state = load(from, mask);
            if (cosines) {
                const int64_t other = d < middle ? middle : -middle;
                __m512 across = _mm512_mul_ps(load(from + other * tokens, mask), load(sines + d * tokens + at, mask));
                __m512 along = _mm512_mul_ps(state, load(cosines + d * tokens + at, mask));
                state = d < middle ? _mm512_sub_ps(along, across) : _mm512_add_ps(along, across);
            }
            _mm256_storeu_si256((__m256i *)lanes, rounded(state));
            for (int i = 0; i < 16; i++) turned[i][d] = lanes[i];
        }
        for (int64_t i = 0; i < 16 && at + i < tokens; i++)
            memcpy(out + places[(at + i) * heads + head] * width, turned[i], sizeof(half) * width);
    }
}

// gate ← silu(gate) · up, number by number.
void gate(half *gates, const half *ups, int64_t count, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < (count + 15) / 16; block++) {
        const __mmask16 mask = first(count - 16 * block);
        __m512 x = load(gates + 16 * block, mask);
        // silu(x) = x / (1 + e^-x); of what is positive e^-x, of what is negative e^x is at most 1
        __m512 less = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
        __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
        __m512 above = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), negative, less);
        __m512 silu = _mm512_div_ps(_mm512_mul_ps(x, above), _mm512_add_ps(_mm512_set1_ps(1.0f), less));
        store(gates + 16 * block, mask, _mm512_mul_ps(widened(rounded(silu)), load(ups + 16 * block, mask)));
    }
}

}
