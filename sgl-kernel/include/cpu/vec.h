// Vectors of floats that fill a register of the processor, and bfloat16 in pairs beside them.
//
// GCC's vector types become whatever instructions the -march of the library has. A type wider than a register would be
// kept in memory: every sum of a loop would be stored and read again in each turn. Only what the compiler does not find
// by itself is written with intrinsics.
//
// A pair is two neighbouring bfloat16 of a row in one 32-bit lane: the first in the low half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace mysgl {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES), may_alias));
typedef uint32_t Pairs __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), may_alias));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), may_alias));

typedef uint16_t bf16;  // the bits

inline Floats splat(float x) { return x - Floats{}; }
inline Pairs splat(uint32_t x) { return x - Pairs{}; }

template <typename Vector>
inline Vector load(const void *from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <typename Vector>
inline void store(void *to, Vector v) {
  std::memcpy(to, &v, sizeof v);
}

inline uint32_t load_pair(const bf16 *from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return pair;
}

// The pair in all lanes. AVX2: one load, since the compiler would take the pair apart before it fills the lanes.
inline Pairs splat_pair(const bf16 *from) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (Pairs)_mm256_broadcast_ss(reinterpret_cast<const float *>(from));
#else
  return splat(load_pair(from));
#endif
}

inline float to_float(bf16 x) {
  uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounded to nearest, ties to even; NaN stays NaN.
inline bf16 to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return bf16(bits >> 16 | 64);
  return bf16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline Floats low_floats(Pairs x) { return (Floats)(x << 16); }
inline Floats high_floats(Pairs x) { return (Floats)(x & 0xffff0000u); }

inline Floats load_bf16(const bf16 *from) {
  return (Floats)(__builtin_convertvector(load<Halves>(from), Pairs) << 16);
}

inline void store_bf16(bf16 *to, Floats x) {
#ifdef __AVX512BF16__
  store(to, (Halves)_mm512_cvtneps_pbh((__m512)x));
#else
  Pairs bits = (Pairs)x;
  Pairs rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  Pairs nan = bits >> 16 | 64;
  store(to, __builtin_convertvector(x == x ? rounded : nan, Halves));
#endif
}

// Pairs as products take them: as they are where the processor multiplies them, else the two numbers apart.
#ifdef __AVX512BF16__
typedef Pairs Factors;

inline Factors factors(Pairs x) { return x; }
inline Pairs pairs_of(Factors x) { return x; }

inline Factors int8_factors(const int8_t *from) {
  __m512 first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from)));
  __m512 second = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from + LANES)));
  return (Pairs)_mm512_cvtne2ps_pbh(second, first);
}

// acc + a.low * b.low + a.high * b.high in each lane. With AVX512-BF16 subnormal numbers count as zero.
inline Floats dot(Floats acc, Factors a, Factors b) {
  return (Floats)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
}
#else
struct Factors {
  Floats low, high;
};

inline Factors factors(Pairs x) { return {low_floats(x), high_floats(x)}; }
// Of factors that are numbers in bfloat16.
inline Pairs pairs_of(const Factors &x) { return (Pairs)x.low >> 16 | (Pairs)x.high; }

// 2 * LANES integers; each is a number in bfloat16.
inline Factors int8_factors(const int8_t *from) {
#if defined(__AVX512F__)
  const Ints both = (Ints)_mm512_cvtepi8_epi16(load<__m256i>(from));
#elif defined(__AVX2__)
  const Ints both = (Ints)_mm256_cvtepi8_epi16(load<__m128i>(from));
#else
  typedef int8_t Bytes __attribute__((vector_size(2 * LANES), may_alias));
  typedef int16_t Shorts __attribute__((vector_size(4 * LANES), may_alias));
  const Ints both = (Ints)__builtin_convertvector(load<Bytes>(from), Shorts);
#endif
  return {__builtin_convertvector(both << 16 >> 16, Floats), __builtin_convertvector(both >> 16, Floats)};
}

inline Floats dot(Floats acc, const Factors &a, const Factors &b) {
  acc += a.low * b.low;
  return acc + a.high * b.high;
}

inline Floats dot(Floats acc, Pairs a, Pairs b) { return dot(acc, factors(a), factors(b)); }
#endif

inline float sum(Floats x) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)x);
#else
  float total = 0;
  for (int i = 0; i < LANES; i++) total += x[i];
  return total;
#endif
}

inline float largest(Floats x) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)x);
#else
  float found = x[0];
  for (int i = 1; i < LANES; i++) found = x[i] > found ? x[i] : found;
  return found;
#endif
}

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }
inline Floats min(Floats a, Floats b) { return a < b ? a : b; }

// e^x within 2 units in the last place; 0 below -87, where a float's exponents end. Cody and Waite's reduction:
// x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor polynomial of e^r.
inline Floats exp(Floats x) {
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction
  Floats in = x > 88.0f ? splat(88.0f) : x < -87.0f ? splat(-87.0f) : x;
  Floats shifted = in * 1.44269504f + ROUND;
  Floats n = shifted - ROUND;
  Floats r = in - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  Floats power = (Floats)(((Ints)shifted << 23) + 0x3f800000);
  return x < -87.0f ? Floats{} : p * power;
}

inline Floats tanh(Floats x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }

// Lane i is of(i).
template <typename Of, int... I>
constexpr Ints lanes(Of of, std::integer_sequence<int, I...>) {
  return Ints{of(I)...};
}

template <typename Of>
constexpr Ints lanes(Of of) {
  return lanes(of, std::make_integer_sequence<int, LANES>{});
}

// Which lanes of two vectors side by side make up a new one, if lanes `STEP` apart trade places: the steps of `sums` and
// `transpose`.
template <int STEP>
constexpr Ints LOW = lanes([](int i) { return i & STEP ? LANES + i - STEP : i; });
template <int STEP>
constexpr Ints HIGH = lanes([](int i) { return i & STEP ? LANES + i : i + STEP; });

// Lane i of the result is the sum of rows[i]. The rows change.
template <int STEP = LANES / 2>
inline Floats sums(Floats (&rows)[LANES]) {
  for (int i = 0; i < STEP; i++)
    rows[i] = __builtin_shuffle(rows[i], rows[i + STEP], LOW<STEP>) + __builtin_shuffle(rows[i], rows[i + STEP], HIGH<STEP>);
  if constexpr (STEP > 1)
    return sums<STEP / 2>(rows);
  else
    return rows[0];
}

// Lane i of rows[j] becomes lane j of rows[i].
template <int STEP = LANES / 2>
inline void transpose(Pairs (&rows)[LANES]) {
  for (int i = 0; i < LANES; i++)
    if (!(i & STEP)) {
      Pairs a = rows[i], b = rows[i + STEP];
      rows[i] = __builtin_shuffle(a, b, LOW<STEP>);
      rows[i + STEP] = __builtin_shuffle(a, b, HIGH<STEP>);
    }
  if constexpr (STEP > 1) transpose<STEP / 2>(rows);
}

}  // namespace mysgl
