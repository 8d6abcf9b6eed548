// Vectors of sixteen floats on any processor, and bfloat16 in pairs beside them.
//
// GCC's vector types become whatever instructions the -march of the library has: one register of AVX-512, two of AVX2,
// four of SSE. Only what the compiler does not find by itself is written with intrinsics.
//
// A pair is two neighbouring bfloat16 of a row in one 32-bit lane: the first in the low half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace mysgl {

constexpr int LANES = 16;

typedef float Floats __attribute__((vector_size(64), may_alias));
typedef uint32_t Pairs __attribute__((vector_size(64), may_alias));
typedef int32_t Ints __attribute__((vector_size(64), may_alias));
typedef uint16_t Halves __attribute__((vector_size(32), may_alias));

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

inline Floats load_int8(const int8_t *from) {
#ifdef __AVX512F__
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from)));
#else
  Floats x;
  for (int i = 0; i < LANES; i++) x[i] = from[i];
  return x;
#endif
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

// Thirty-two numbers in bfloat16, two to a lane: those of `first` in the lower half.
inline Pairs pairs_of(Floats first, Floats second) {
#ifdef __AVX512BF16__
  return (Pairs)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
  bf16 both[2 * LANES];
  store_bf16(both, first);
  store_bf16(both + LANES, second);
  return load<Pairs>(both);
#endif
}

// acc + a.low * b.low + a.high * b.high in each lane. With AVX512-BF16 subnormal numbers count as zero.
inline Floats dot(Floats acc, Pairs a, Pairs b) {
#ifdef __AVX512BF16__
  return (Floats)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
  acc += low_floats(a) * low_floats(b);
  return acc + high_floats(a) * high_floats(b);
#endif
}

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

// Which lanes of two vectors side by side make up a new one; the steps of `sums` and `transpose`.
constexpr Ints LOW_8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
constexpr Ints HIGH_8 = {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
constexpr Ints LOW_4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
constexpr Ints HIGH_4 = {4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31};
constexpr Ints LOW_2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
constexpr Ints HIGH_2 = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
constexpr Ints LOW_1 = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
constexpr Ints HIGH_1 = {1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31};

// Lane i of the result is the sum of rows[i].
inline Floats sums(const Floats (&rows)[LANES]) {
  Floats half[8], quarter[4], two[2];
  for (int i = 0; i < 8; i++)
    half[i] = __builtin_shuffle(rows[i], rows[i + 8], LOW_8) + __builtin_shuffle(rows[i], rows[i + 8], HIGH_8);
  for (int i = 0; i < 4; i++)
    quarter[i] = __builtin_shuffle(half[i], half[i + 4], LOW_4) + __builtin_shuffle(half[i], half[i + 4], HIGH_4);
  for (int i = 0; i < 2; i++)
    two[i] = __builtin_shuffle(quarter[i], quarter[i + 2], LOW_2) + __builtin_shuffle(quarter[i], quarter[i + 2], HIGH_2);
  return __builtin_shuffle(two[0], two[1], LOW_1) + __builtin_shuffle(two[0], two[1], HIGH_1);
}

template <int STEP>
inline void exchange(Pairs (&rows)[LANES], Ints low, Ints high) {
  for (int i = 0; i < LANES; i++)
    if (!(i & STEP)) {
      Pairs a = rows[i], b = rows[i + STEP];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + STEP] = __builtin_shuffle(a, b, high);
    }
}

// Lane i of rows[j] becomes lane j of rows[i].
inline void transpose(Pairs (&rows)[LANES]) {
  exchange<8>(rows, LOW_8, HIGH_8);
  exchange<4>(rows, LOW_4, HIGH_4);
  exchange<2>(rows, LOW_2, HIGH_2);
  exchange<1>(rows, LOW_1, HIGH_1);
}

}  // namespace mysgl
