// Panels of packed weights times rows: what the products of linears and of experts share.
//
// A weight [N, K] is packed as panels [N / 32][K / 2][32] of pairs (cpu/tile.h). A panel stays in the cache for all rows
// that it is multiplied with. Sums are taken in one order along K, whatever the number of rows. Many rows may be
// multiplied in another order, by AMX, from the same panels (cpu/many_rows.h).
#pragma once

#include <algorithm>

#include "cpu/activations.h"
#include "cpu/threads.h"
#include "cpu/tile.h"

namespace mysgl {

constexpr long CHUNK_BYTES = 1 << 18;  // of weights that a thread takes at once to stream them

typedef Floats Line[PARTS];  // the sums of a row with a panel; a Tile is some of them

struct Rows {
  bf16 *out;
  long out_stride;
  const bf16 *x;
  long x_stride, count;

  Rows part(long first, long rows) const { return {out + first * out_stride, out_stride, x + first * x_stride, x_stride, rows}; }
};

// Weights as they are.
struct Bf16Weights {
  const Pairs *packed;
  long pairs;

  struct Panel {
    const Pairs *lines;
    long pairs;

    void multiply_with(Tile &sums, const Rows &rows, long first, int count, const Panel &) const {
      multiply(count, sums, rows.x + first * rows.x_stride, rows.x_stride, lines, pairs);
    }
    void finish(Line *, int) const {}
    const Pairs *part(long first, long, Pairs *) const { return lines + first * PARTS; }
  };
  long panel_bytes() const { return pairs * PARTS * long(sizeof(Pairs)); }
  Panel panel(long index, int, long) const { return {packed + index * pairs * PARTS, pairs}; }
};

// Eight-bit integers in the same order, and a factor for each column.
struct Int8Weights {
  const int8_t *packed;
  const float *scales;
  long pairs;

  struct Panel {
    Int8Lines lines;
    const float *scales;
    const Pairs *widened;  // the whole panel in bfloat16, where that is worth it, or null
    long pairs;

    void multiply_with(Tile &sums, const Rows &rows, long first, int count, const Panel &next) const {
      const bf16 *x = rows.x + first * rows.x_stride;
      if (widened)
        multiply(count, sums, x, rows.x_stride, widened, pairs);
      else
        multiply(count, sums, x, rows.x_stride, lines, pairs, next.lines);
    }
    void finish(Line *sums, int count) const {
      for (int n = 0; n < PARTS; n++) {
        Floats scale = load<Floats>(scales + n * LANES);
        for (int m = 0; m < count; m++) sums[m][n] *= scale;
      }
    }
    // Lines [first, first + count) in bfloat16: where they are, or in `room`.
    const Pairs *part(long first, long count, Pairs *room) const {
      for (long k = 0; k < count; k++)
        for (int n = 0; n < PARTS; n++) room[PARTS * k + n] = pairs_of(lines.read(first + k, n));
      return room;
    }
  };
  long panel_bytes() const { return pairs * 2 * COLUMNS; }
  Panel panel(long index, int slot, long rows) const {
    const Int8Lines lines{packed + index * pairs * 2 * COLUMNS};
    Panel panel{lines, scales + index * COLUMNS, nullptr, pairs};
    if (rows > ROWS) panel.widened = panel.part(0, pairs, scratch<Pairs>(slot, PARTS * pairs));
    return panel;
  }
};

// What becomes of sums once they are whole. bias: of the panel's columns, or null.
template <typename Panel>
void finish(Line *sums, int count, const Panel &panel, const bf16 *bias) {
  panel.finish(sums, count);
  if (!bias) return;
  for (int n = 0; n < PARTS; n++) {
    Floats b = load_bf16(bias + n * LANES);
    for (int m = 0; m < count; m++) sums[m][n] += b;
  }
}

// Row `first` of panel p of the result, and the rows below it. factors: of the second half, with an activation.
inline void give(const Rows &rows, long first, int count, long p, Line *sums, const Line *factors, int activation) {
  if (activation)
    for (int m = 0; m < count; m++)
      for (int n = 0; n < PARTS; n++) sums[m][n] = gated(activation, sums[m][n], factors[m][n]);
  for (int m = 0; m < count; m++)
    for (int n = 0; n < PARTS; n++)
      store_bf16(rows.out + (first + m) * rows.out_stride + p * COLUMNS + n * LANES, sums[m][n]);
}

template <typename Panel>
void sums_of(Tile &sums, const Panel &panel, const Panel &next, const Rows &rows, long first, int count,
             const bf16 *bias) {
  for (int m = 0; m < count; m++) std::fill(sums[m], sums[m] + PARTS, Floats{});
  panel.multiply_with(sums, rows, first, count, next);
  finish(sums, count, panel, bias);
}

// Panel p of `panels`, times all rows. With an activation, the weight has twice as many panels: the second half of its
// columns is multiplied with what the first half gives.
template <typename Weights>
void panel_product(const Rows &rows, const Weights &weights, const bf16 *bias, long p, long panels, int activation) {
  const long blocks = (rows.count + ROWS - 1) / ROWS, block = (rows.count + blocks - 1) / blocks;
  const auto panel = weights.panel(p, 0, rows.count);
  const auto second = weights.panel(activation ? p + panels : p, 1, activation ? rows.count : 0);
  const auto after = weights.panel(p + 1 < panels ? p + 1 : p, 0, 0);
  for (long first = 0; first < rows.count; first += block) {
    const int count = int(rows.count - first < block ? rows.count - first : block);
    Tile sums, factors;
    sums_of(sums, panel, activation ? second : after, rows, first, count, bias ? bias + p * COLUMNS : nullptr);
    if (activation)
      sums_of(factors, second, after, rows, first, count, bias ? bias + (panels + p) * COLUMNS : nullptr);
    give(rows, first, count, p, sums, factors, activation);
  }
}

}  // namespace mysgl
