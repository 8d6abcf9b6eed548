// Packed panels times many rows, by the tiles of AMX (cpu/amx.h).
//
// 16 lines of a panel are two tiles side by side as they are. They are multiplied with two tiles of rows at once:
//
//                  B0  B1        16 pairs, 16 columns each
//     A0           C0  C1        16 rows, 32 numbers along K each
//     A1           C2  C3
//
// A thread takes a group of panels. It goes through K in parts, so that a part of all its panels stays in the second
// cache while the rows pass by, and a part of 32 rows in the first ones while the panels do. Sums of parts wait in
// memory. Rows are zero behind K; so are copies of lines, where K is no whole number of tiles.
//
// Sums are taken in another order than for few rows (cpu/tile.h), so their last bits may differ.
#pragma once

#include "cpu/amx.h"
#include "cpu/product.h"

namespace mysgl {

constexpr long FEW_ROWS = 8;       // up to here vectors are as fast: memory decides
constexpr long BLOCK_ROWS = 32;    // rows of two tiles
constexpr long PART_STEPS = 32;    // tiles along K, at most, of a part
constexpr long GROUP_PANELS = 8;   // panels of a group, at most

static_assert(COLUMNS == 2 * amx::SIDE && BLOCK_ROWS == 2 * amx::SIDE);

// True if so many rows are multiplied by tiles. alike: a row must get the same bits among any number of rows.
inline bool by_tiles(long rows, bool alike) { return !alike && rows > FEW_ROWS && amx::usable(); }

inline long parts_of(long whole, long part) { return (whole + part - 1) / part; }

// Rows as tiles read them, up to a whole number of tiles in both directions.
struct TileRows {
  const bf16 *x;
  long stride;         // between rows, in elements as the others
  long across, along;  // between a tile and the one below it, and the one beside it
  long steps;          // tiles along K

  const bf16 *tile(long block, long step) const { return x + block * across + step * along; }
};

// Dense rows whose length is a whole number of tiles. Behind the last one, memory of 15 more is read.
inline TileRows dense_rows(const bf16 *x, long inner) {
  return {x, inner, amx::SIDE * inner, amx::DEPTH, inner / amx::DEPTH};
}

// Any rows: a copy, tile by tile, in memory of this thread.
inline TileRows copied_rows(const Rows &rows, long inner) {
  constexpr long TILE = amx::SIDE * amx::DEPTH;
  const long steps = parts_of(inner, amx::DEPTH), blocks = parts_of(rows.count, amx::SIDE);
  bf16 *tiles = scratch<bf16>(2, blocks * steps * TILE);
  share(blocks, BLOCK_ROWS / amx::SIDE, [&](long first, long end) {
    for (long row = first * amx::SIDE; row < end * amx::SIDE; row++) {
      bf16 *to = tiles + row / amx::SIDE * steps * TILE + row % amx::SIDE * amx::DEPTH;
      const bf16 *from = rows.x + row * rows.x_stride;
      const long whole = row < rows.count ? inner / amx::DEPTH : 0;
      for (long step = 0; step < whole; step++) std::memcpy(to + step * TILE, from + step * amx::DEPTH, amx::ROW_BYTES);
      for (long step = whole; step < steps; step++) std::memset(to + step * TILE, 0, amx::ROW_BYTES);
      if (row < rows.count && whole < steps)
        std::memcpy(to + whole * TILE, from + whole * amx::DEPTH, (inner - whole * amx::DEPTH) * sizeof(bf16));
    }
  });
  return {tiles, amx::DEPTH, steps * TILE, TILE, steps};
}

// sums [16 * M rows] = or += M tiles of rows times a part of a panel.
template <int M>
[[gnu::noinline]] void multiply_tiles(Line *sums, bool add, const TileRows &rows, long block, long step,
                                      const Pairs *lines, long steps) {
  constexpr long LINE = sizeof(Line);
  constexpr int RIGHT = amx::SIDE * 4, BELOW = amx::SIDE;  // bytes of a line; lines
  char *at = reinterpret_cast<char *>(sums);
  if (add) {
    amx::load<0>(at, LINE), amx::load<1>(at + RIGHT, LINE);
    if constexpr (M > 1) amx::load<2>(at + BELOW * LINE, LINE), amx::load<3>(at + BELOW * LINE + RIGHT, LINE);
  } else {
    amx::zero<0>(), amx::zero<1>();
    if constexpr (M > 1) amx::zero<2>(), amx::zero<3>();
  }
  const bf16 *upper = rows.tile(block, step), *lower = upper + rows.across;
  const char *b = reinterpret_cast<const char *>(lines);
  const long stride = rows.stride * sizeof(bf16), along = rows.along;
  for (long s = 0; s < steps; s++, upper += along, lower += along, b += amx::SIDE * LINE) {
    amx::load<4>(upper, stride);
    amx::load<6>(b, LINE);
    amx::dot<0, 4, 6>();
    amx::load<7>(b + RIGHT, LINE);
    amx::dot<1, 4, 7>();
    if constexpr (M > 1) {
      amx::load<5>(lower, stride);
      amx::dot<2, 5, 6>();
      amx::dot<3, 5, 7>();
    }
  }
  amx::store<0>(at, LINE), amx::store<1>(at + RIGHT, LINE);
  if constexpr (M > 1) amx::store<2>(at + BELOW * LINE, LINE), amx::store<3>(at + BELOW * LINE + RIGHT, LINE);
}

// `steps` tiles along K of a panel, from tile `step` on. Their memory is the weight's or `room`.
template <typename Panel>
const Pairs *lines_of(const Panel &panel, long step, long steps, Pairs *room) {
  const long first = step * amx::SIDE, wanted = steps * amx::SIDE;
  const long count = std::min(wanted, panel.pairs - first);
  const Pairs *lines = panel.part(first, count, room);
  if (count == wanted) return lines;
  if (lines != room) std::copy(lines, lines + count * PARTS, room);
  std::fill(room + count * PARTS, room + wanted * PARTS, Pairs{});
  return room;
}

// Panels [first, end) of `panels`, times all rows; as `panel_product` (cpu/product.h). tiles: the rows once more.
template <typename Weights>
void many_rows_product(const Rows &rows, const TileRows &tiles, const Weights &weights, const bf16 *bias, long first,
                       long end, long panels, int activation) {
  const long parts = parts_of(tiles.steps, PART_STEPS), part = parts_of(tiles.steps, parts);
  const long blocks = parts_of(rows.count, BLOCK_ROWS);
  const long half = end - first, width = activation ? 2 * half : half;
  Line *sums = scratch<Line>(0, (parts > 1 ? blocks : 1) * width * BLOCK_ROWS);
  Pairs *room = scratch<Pairs>(2, width * part * amx::SIDE * PARTS);
  const Pairs **lines = scratch<const Pairs *>(0, width);
  const auto panel = [&](long i) { return weights.panel(i < half ? first + i : panels + first + i - half, 0, 0); };
  const auto bias_of = [&](long p) { return bias ? bias + p * COLUMNS : nullptr; };
  amx::configure(amx::whole_tiles());
  for (long step = 0; step < tiles.steps; step += part) {
    const long steps = std::min(part, tiles.steps - step);
    for (long i = 0; i < width; i++) lines[i] = lines_of(panel(i), step, steps, room + i * part * amx::SIDE * PARTS);
    amx::written();
    for (long block = 0; block < blocks; block++) {
      const int count = int(std::min(BLOCK_ROWS, rows.count - block * BLOCK_ROWS));
      Line *here = sums + (parts > 1 ? block : 0) * width * BLOCK_ROWS;
      for (long i = 0; i < width; i++) {
        const auto multiply = count > amx::SIDE ? multiply_tiles<2> : multiply_tiles<1>;
        multiply(here + i * BLOCK_ROWS, step > 0, tiles, 2 * block, step, lines[i], steps);
      }
      if (step + steps < tiles.steps) continue;
      for (long i = 0; i < half; i++) {
        Line *own = here + i * BLOCK_ROWS, *factors = own + half * BLOCK_ROWS;
        finish(own, count, panel(i), bias_of(first + i));
        if (activation) finish(factors, count, panel(half + i), bias_of(panels + first + i));
        give(rows, block * BLOCK_ROWS, count, first + i, own, factors, activation);
      }
    }
  }
  amx::release();
}

// Panels that a thread takes at once, so that all threads have as many.
inline long group_of(long panels, int activation) {
  const long most = activation ? GROUP_PANELS / 2 : GROUP_PANELS;
  const long turns = parts_of(panels, mysgl_threads() * most);
  return parts_of(panels, mysgl_threads() * turns);
}

}  // namespace mysgl
