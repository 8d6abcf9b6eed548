// A mixture of experts: each row through the gated MLPs that it was routed to, and the weighted sum of what they give.
//
//     pairs      (row, one of its experts), sorted by expert      -> the rows of an expert lie side by side
//     products   an expert's panels times its rows; idle experts are not read
//     sum        of each row, in the order in which its experts were given
//
// Which rows an expert gets is read here, so the caller's work has one shape whatever the routing. Each product and each
// sum belongs to one row, and is taken in one order: nothing depends on the other rows or on threads. Only where a caller
// does not ask for that, and the processor has AMX, experts of many rows sum in another order (cpu/many_rows.h).

#include <cstring>

#include "cpu/many_rows.h"
#include "cpu/product.h"

using namespace mysgl;

namespace {

constexpr long SLAB = 512;       // rows at once, which bounds the memory between the products
constexpr long ROW_CHUNK = 16;   // rows that a thread copies or sums at once

struct Routing {
  const int *experts;  // [rows][top_k]
  const float *gates;  // likewise
  long top_k, count;   // experts of a row, and of the layer
};

// The pairs of some rows by expert: `place` of each, and the run of places of each expert that has any.
struct Sorted {
  struct Run {
    long expert, first, end;
  };
  long *place;
  Run *runs;
  long active = 0;

  Sorted(const Routing &routing, long pairs) : place(scratch<long>(0, pairs)) {
    long *next = scratch<long>(1, routing.count);
    runs = scratch<Run>(0, routing.count);
    std::memset(next, 0, routing.count * sizeof(long));
    for (long i = 0; i < pairs; i++) next[routing.experts[i]]++;
    for (long e = 0, first = 0; e < routing.count; e++) {
      const long end = first + next[e];
      if (next[e]) runs[active++] = {e, first, end};
      next[e] = first;
      first = end;
    }
    for (long i = 0; i < pairs; i++) place[i] = next[routing.experts[i]]++;
  }
};

// The same matrix of every expert, one after another.
struct Bf16Experts {
  const Pairs *packed;
  long columns, pairs;

  long panel_bytes() const { return Bf16Weights{packed, pairs}.panel_bytes(); }
  Bf16Weights of(long expert) const { return {packed + expert * (columns / COLUMNS) * pairs * PARTS, pairs}; }
};

struct Int8Experts {
  const int8_t *packed;
  const float *scales;
  long columns, pairs;

  long panel_bytes() const { return Int8Weights{packed, scales, pairs}.panel_bytes(); }
  Int8Weights of(long expert) const {
    return {packed + expert * columns * pairs * 2, scales + expert * columns, pairs};
  }
};

// out = the experts' products, rows as they are sorted.
template <typename Experts>
void products(bf16 *out, const bf16 *x, const Sorted &sorted, const Experts &weights, const bf16 *biases, int activation,
              bool alike) {
  const long out_columns = activation ? weights.columns / 2 : weights.columns, inner = weights.pairs * 2;
  const long panels = out_columns / COLUMNS, streamed = CHUNK_BYTES / weights.panel_bytes();
  share(sorted.active * panels, streamed < 1 ? 1 : std::min(streamed, GROUP_PANELS / 2), [&](long first, long end) {
    for (long next; first < end; first = next) {
      const Sorted::Run &run = sorted.runs[first / panels];
      const long p = first % panels;
      next = std::min(end, first - p + panels);
      const Rows rows{out + run.first * out_columns, out_columns, x + run.first * inner, inner, run.end - run.first};
      const auto own = weights.of(run.expert);
      const bf16 *bias = biases ? biases + run.expert * weights.columns : nullptr;
      if (by_tiles(rows.count, alike))
        many_rows_product(rows, dense_rows(rows.x, inner), own, bias, p, p + next - first, panels, activation);
      else
        for (long i = p; i < p + next - first; i++) panel_product(rows, own, bias, i, panels, activation);
    }
  });
}

// [count][columns] of the two products, or null.
struct Biases {
  const bf16 *gate_up, *down;
};

// rows of x: at any distance. out: dense.
template <typename Experts>
void mixture(bf16 *out, const bf16 *x, long x_stride, long rows, const Routing &routing, const Experts &gate_up,
             const Experts &down, const Biases &biases, int activation, bool alike) {
  const long width = down.columns, inner = down.pairs * 2, top_k = routing.top_k;
  for (long begin = 0; begin < rows; begin += SLAB) {
    const long count = rows - begin < SLAB ? rows - begin : SLAB, pairs = count * top_k;
    const Routing part{routing.experts + begin * top_k, routing.gates + begin * top_k, top_k, routing.count};
    const Sorted sorted(part, pairs);
    bf16 *given = scratch<bf16>(0, (pairs + amx::SIDE) * width), *between = scratch<bf16>(1, (pairs + amx::SIDE) * inner);
    share(count, ROW_CHUNK, [&](long first, long end) {
      for (long i = first * top_k; i < end * top_k; i++)
        std::memcpy(given + sorted.place[i] * width, x + (begin + i / top_k) * x_stride, width * sizeof(bf16));
    });
    products(between, given, sorted, gate_up, biases.gate_up, activation, alike);
    bf16 *each = given;  // what was given is needed no more
    products(each, between, sorted, down, biases.down, 0, alike);
    share(count, ROW_CHUNK, [&](long first, long end) {
      for (long row = first; row < end; row++)
        for (long c = 0; c < width; c += LANES) {
          Floats sum{};
          for (long j = row * top_k; j < (row + 1) * top_k; j++)
            sum += part.gates[j] * load_bf16(each + sorted.place[j] * width + c);
          store_bf16(out + (begin + row) * width + c, sum);
        }
    });
  }
}

}  // namespace

extern "C" {

// experts, gates: [rows][top_k]; experts in [0, count). gate_up: packed, `count` times [2 * inner, width]; down: `count`
// times [width, inner]. width and inner are whole panels. Biases may be null. activation: of the first half of gate_up
// (cpu/activations.h). alike: a row gets the same bits whatever the other rows are.
void mysgl_experts(bf16 *out, const bf16 *x, long x_stride, long rows, const int *experts, const float *gates, long top_k,
                   const void *gate_up, const void *down, const bf16 *gate_up_bias, const bf16 *down_bias, long count,
                   long width, long inner, int activation, bool alike) {
  const Bf16Experts first{static_cast<const Pairs *>(gate_up), 2 * inner, width / 2};
  const Bf16Experts second{static_cast<const Pairs *>(down), width, inner / 2};
  mixture(out, x, x_stride, rows, Routing{experts, gates, top_k, count}, first, second, {gate_up_bias, down_bias},
          activation, alike);
}

// Of eight-bit integers, with a factor for each column: [count][2 * inner] and [count][width].
void mysgl_experts_int8(bf16 *out, const bf16 *x, long x_stride, long rows, const int *experts, const float *gates,
                        long top_k, const int8_t *gate_up, const int8_t *down, const float *gate_up_scales,
                        const float *down_scales, const bf16 *gate_up_bias, const bf16 *down_bias, long count,
                        long width, long inner, int activation, bool alike) {
  const Int8Experts first{gate_up, gate_up_scales, 2 * inner, width / 2};
  const Int8Experts second{down, down_scales, width, inner / 2};
  mixture(out, x, x_stride, rows, Routing{experts, gates, top_k, count}, first, second, {gate_up_bias, down_bias},
          activation, alike);
}

}
