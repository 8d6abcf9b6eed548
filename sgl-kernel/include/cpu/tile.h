// The product of a few rows with 32 columns, which all matrix products here are made of.
//
// The columns are packed pair by pair along the inner dimension:
//
//     panel [pairs][32]      lane c of line k: elements 2k and 2k + 1 of column c
#pragma once

#include "cpu/vec.h"

namespace mysgl {

constexpr int COLUMNS = 32;
constexpr int PARTS = COLUMNS / LANES;  // vectors of a line

// Rows of a tile: with their sums, a vector of the panel and one of a row the registers are full.
#ifdef __AVX512F__
constexpr int ROWS = 12;
#else
constexpr int ROWS = 2;
#endif

typedef Floats Tile[ROWS][PARTS];

// The lines of a panel: how each is read, vector by vector, and how far ahead it is fetched into the cache, if at all.
// Lines of 128 bytes the processor fetches by itself, and better when it is not told to: 1.12 times as fast on Zen 4,
// where being told helps the shorter ones (1.08).
struct Bf16Lines {
  const Pairs *at;

  static constexpr long AHEAD = 0;
  Factors read(long k, int part) const { return factors(at[PARTS * k + part]); }
};

struct Int8Lines {
  const int8_t *at;

  static constexpr long AHEAD = 64;
  Factors read(long k, int part) const { return int8_factors(at + 2 * (COLUMNS * k + LANES * part)); }
  void fetch(long k) const { __builtin_prefetch(at + 2 * COLUMNS * k); }
};

// sums[m] += a[m] times the panel. a: rows of `stride` elements. next: the panel that comes after it, where both come
// from memory; its first lines are fetched while the last ones of this are used.
template <int M, typename Lines>
[[gnu::noinline]] void multiply(Tile &sums, const bf16 *a, long stride, Lines panel, long pairs, Lines next) {
  Floats s[M][PARTS];
  for (int m = 0; m < M; m++)
    for (int n = 0; n < PARTS; n++) s[m][n] = sums[m][n];
  for (long k = 0; k < pairs; k++) {
    if constexpr (Lines::AHEAD > 0)
      if (next.at) k + Lines::AHEAD < pairs ? panel.fetch(k + Lines::AHEAD) : next.fetch(k + Lines::AHEAD - pairs);
    // What there is less of, vectors of the line or rows, is kept while the others pass by.
    if constexpr (M < PARTS) {
      Factors x[M];
      for (int m = 0; m < M; m++) x[m] = factors(splat_pair(a + m * stride + 2 * k));
      for (int n = 0; n < PARTS; n++) {
        const Factors b = panel.read(k, n);
        for (int m = 0; m < M; m++) s[m][n] = dot(s[m][n], x[m], b);
      }
    } else {
      Factors b[PARTS];
      for (int n = 0; n < PARTS; n++) b[n] = panel.read(k, n);
#pragma GCC unroll 12
      for (int m = 0; m < M; m++) {
        const Factors x = factors(splat_pair(a + m * stride + 2 * k));
        for (int n = 0; n < PARTS; n++) s[m][n] = dot(s[m][n], x, b[n]);
      }
    }
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < PARTS; n++) sums[m][n] = s[m][n];
}

// The same for a number of rows that is known late.
template <typename Lines>
void multiply(int rows, Tile &sums, const bf16 *a, long stride, Lines panel, long pairs, Lines next) {
  switch (rows) {
#define CASE(M)                                                                 \
  case M:                                                                       \
    if constexpr (M <= ROWS) multiply<M>(sums, a, stride, panel, pairs, next);  \
    return;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
  }
}

// For a panel of bfloat16, which the processor fetches by itself.
inline void multiply(int rows, Tile &sums, const bf16 *a, long stride, const Pairs *panel, long pairs) {
  multiply(rows, sums, a, stride, Bf16Lines{panel}, pairs, Bf16Lines{nullptr});
}

}  // namespace mysgl
