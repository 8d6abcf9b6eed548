// Products of rows with weights that are packed once and read once for all rows.
//
//     weight [N, K]  ->  panels [N / 32][K / 2][32] of pairs (cpu/tile.h); N % 32 == 0, K % 2 == 0
//
// Threads share the panels. A panel stays in the cache for all rows, the rows stay there for all panels (cpu/product.h).
// Where the processor has AMX, it multiplies many rows (cpu/many_rows.h).

#include <atomic>

#include "cpu/many_rows.h"
#include "cpu/product.h"

using namespace mysgl;

namespace {

constexpr long RESIDENT_ROWS = 768;    // rows that a cache should hold while panels pass by

template <typename Weights>
void product(const Rows &all, const Weights &weights, const bf16 *bias, long columns, int activation, bool alike) {
  const long panels = (activation ? columns / 2 : columns) / COLUMNS;
  for (long begin = 0; begin < all.count; begin += RESIDENT_ROWS) {
    const Rows rows = all.part(begin, all.count - begin < RESIDENT_ROWS ? all.count - begin : RESIDENT_ROWS);
    if (by_tiles(rows.count, alike)) {
      const TileRows tiles = copied_rows(rows, 2 * weights.pairs);
      share(panels, group_of(panels, activation), [&](long first, long end) {
        many_rows_product(rows, tiles, weights, bias, first, end, panels, activation);
      });
      continue;
    }
    const long streamed = CHUNK_BYTES / weights.panel_bytes();
    share(panels, rows.count > ROWS || streamed < 1 ? 1 : streamed, [&](long first_panel, long end_panel) {
      for (long p = first_panel; p < end_panel; p++) panel_product(rows, weights, bias, p, panels, activation);
    });
  }
}

// Which weight was multiplied with after which, the last time: a model goes through its weights in one order, so while
// the caller is on its way to the next product the helpers fetch the beginning of its weight. Guesses, never more.
class Order {
 public:
  void begin(const void *weight, long bytes) {
    Entry &before = entry(last_.exchange(weight, std::memory_order_relaxed));
    before.next.store(weight, std::memory_order_relaxed);
    before.bytes.store(bytes < MOST ? bytes : MOST, std::memory_order_relaxed);
  }

  void end(const void *weight) {
    const Entry &found = entry(weight);
    if (const void *next = found.next.load(std::memory_order_relaxed))
      mysgl_fetch(next, found.bytes.load(std::memory_order_relaxed));
  }

 private:
  static constexpr long MOST = 1 << 21;  // bytes: what is fetched in a pause
  static constexpr int BITS = 12;
  struct Entry {
    std::atomic<const void *> next{nullptr};
    std::atomic<long> bytes{0};
  };
  // By Fibonacci hashing: weights lie at multiples of a page.
  Entry &entry(const void *weight) {
    return entries_[uint64_t(reinterpret_cast<uintptr_t>(weight)) * 0x9E3779B97F4A7C15u >> (64 - BITS)];
  }

  Entry entries_[1 << BITS];
  std::atomic<const void *> last_{nullptr};
};

template <typename Weights>
void ordered_product(const Rows &rows, const Weights &weights, const bf16 *bias, long columns, int activation,
                     bool alike) {
  static Order order;
  const bool streamed = rows.count > 0 && rows.count <= ROWS;
  if (streamed) order.begin(weights.packed, columns / COLUMNS * weights.panel_bytes());
  product(rows, weights, bias, columns, activation, alike);
  if (streamed) order.end(weights.packed);
}

}  // namespace

extern "C" {

// packed: as above, of elements of `size` bytes, 1 or 2.
void mysgl_pack(const char *weight, char *packed, long columns, long inner, long size) {
  const long pairs = inner / 2, pair = 2 * size, line = COLUMNS * pair;
  share(columns / COLUMNS, 1, [&](long first, long end) {
    for (long p = first; p < end; p++)
      for (long k0 = 0; k0 < pairs; k0 += LANES)
        for (long c = 0; c < COLUMNS; c++)
          for (long k = k0; k < k0 + LANES && k < pairs; k++) {
            const char *from = weight + ((p * COLUMNS + c) * pairs + k) * pair;
            char *to = packed + (p * pairs + k) * line + c * pair;
            if (size == 2)
              std::memcpy(to, from, 4);
            else
              std::memcpy(to, from, 2);
          }
  });
}

// bias may be null. activation: 0, or that of the first half of the columns (cpu/activations.h). alike: a row gets the
// same bits among any number of rows.
void mysgl_linear(bf16 *out, long out_stride, const bf16 *x, long x_stride, long rows, const void *packed,
                  const bf16 *bias, long columns, long inner, int activation, bool alike) {
  ordered_product(Rows{out, out_stride, x, x_stride, rows}, Bf16Weights{static_cast<const Pairs *>(packed), inner / 2}, bias,
          columns, activation, alike);
}

void mysgl_linear_int8(bf16 *out, long out_stride, const bf16 *x, long x_stride, long rows, const int8_t *packed,
                       const float *scales, const bf16 *bias, long columns, long inner, int activation, bool alike) {
  ordered_product(Rows{out, out_stride, x, x_stride, rows}, Int8Weights{packed, scales, inner / 2}, bias, columns, activation,
          alike);
}

}
