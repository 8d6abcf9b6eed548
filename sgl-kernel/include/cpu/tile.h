// The product of a few rows with 32 columns, which all matrix products here are made of.
//
// The columns are packed pair by pair along the inner dimension:
//
//     panel [pairs][32]      lane c of line k: elements 2k and 2k + 1 of column c
#pragma once

#include "cpu/vec.h"

namespace mysgl {

constexpr int COLUMNS = 32;

// Rows of a tile: with their sums, two vectors each, the two of the panel and one of a row the registers are full.
#ifdef __AVX512F__
constexpr int ROWS = 12;
#else
constexpr int ROWS = 4;
#endif

typedef Floats Tile[ROWS][2];

// The lines of a panel: how each is read into two vectors, and how far ahead it is fetched into the cache, if at all.
// Lines of 128 bytes the processor fetches by itself, and better when it is not told to: 1.12 times as fast on Zen 4,
// where being told helps the shorter ones (1.08).
struct Bf16Lines {
  const Pairs *at;

  static constexpr long AHEAD = 0;
  void read(long k, Pairs &b0, Pairs &b1) const { b0 = at[2 * k], b1 = at[2 * k + 1]; }
};

struct Int8Lines {
  const int8_t *at;

  static constexpr long AHEAD = 64;
  void read(long k, Pairs &b0, Pairs &b1) const {
    const int8_t *line = at + 2 * COLUMNS * k;
    b0 = pairs_of(load_int8(line), load_int8(line + 16));
    b1 = pairs_of(load_int8(line + 32), load_int8(line + 48));
  }
  void fetch(long k) const { __builtin_prefetch(at + 2 * COLUMNS * k); }
};

// sums[m] += a[m] times the panel. a: rows of `stride` elements. next: the panel that comes after it, where both come
// from memory; its first lines are fetched while the last ones of this are used.
template <int M, typename Lines>
[[gnu::noinline]] void multiply(Tile &sums, const bf16 *a, long stride, Lines panel, long pairs, Lines next) {
  Floats s[M][2];
  for (int m = 0; m < M; m++)
    for (int n = 0; n < 2; n++) s[m][n] = sums[m][n];
  for (long k = 0; k < pairs; k++) {
    Pairs b0, b1;
    panel.read(k, b0, b1);
    if constexpr (Lines::AHEAD > 0)
      if (next.at) k + Lines::AHEAD < pairs ? panel.fetch(k + Lines::AHEAD) : next.fetch(k + Lines::AHEAD - pairs);
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) {
      Pairs x = splat(load_pair(a + m * stride + 2 * k));
      s[m][0] = dot(s[m][0], x, b0);
      s[m][1] = dot(s[m][1], x, b1);
    }
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < 2; n++) sums[m][n] = s[m][n];
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
