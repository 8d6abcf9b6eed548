// Products of blocks of rows with the weights of their experts, on Hopper's tensor cores, for prompts.
//
// The list of (row, expert) pairs is sorted by expert, in blocks of up to ROWS pairs of one expert (see sort.cuh). A
// block of threads multiplies one item after another: the rows of a block of pairs with TILE rows of its expert's weight.
// It takes the next item that nobody has, because full blocks take longer than others.
//
//   a warpgroup fetches:  W tile, by the copy engine  ─┐                 ┌─ warpgroup 0: pairs 0..63    x TILE ─▶ out
//                         rows of x, wherever they are ┴▶ ring of stages ┼─ warpgroup 1: pairs 64..127  x TILE ─▶ out
//                                                                        └─ warpgroup 2: pairs 128..191 x TILE ─▶ out
//
// A tile of 192 by 256 numbers reads 56 KB from the cache for the products of 1536 cycles, one of 128 rows 48 KB for those
// of 1024. Warpgroups without pairs let a stage pass, so a block with few pairs costs what its weights take to be read.
// Sums are taken in one order, whatever else is in the list.
#pragma once

#include "../gemm/gate.cuh"
#include "../gemm/lanes.cuh"
#include "../gemm/swizzle.cuh"
#ifndef MYSGL_EMULATED
#include "../gemm/hopper.cuh"
#include "../gemm/wgmma.cuh"
#include "registers.cuh"
#endif

namespace experts {

using hopper::within_tile;

constexpr int GROUPS = 3;       // of warps, that multiply
constexpr int GROUP_ROWS = 64;  // pairs of a warpgroup
constexpr int ROWS = GROUPS * GROUP_ROWS;
constexpr int TILE = 256;  // rows of a weight
constexpr int HALF = TILE / 2;  // a product with all of a tile would need more registers than a thread begins with
constexpr int DEPTH = 64;  // numbers of a row in one stage: the width of a swizzle
constexpr int STAGES = 4;
constexpr int FETCHING = 128;  // threads
constexpr int THREADS = GROUPS * 128 + FETCHING;
constexpr int X_BYTES = ROWS * hopper::SWIZZLE_BYTES, W_BYTES = TILE * hopper::SWIZZLE_BYTES;
constexpr int STAGE_BYTES = X_BYTES + W_BYTES;
constexpr int BYTES = STAGES * (STAGE_BYTES + 32) + 8;  // see Ring
constexpr uint64_t HALF_FURTHER = W_BYTES / 2 >> 4;  // from half to half of an operand

// gate(g) * (up + added), with g at most `limit`, and up between -limit and limit.
struct BoundedGate {
  Gate gate;
  float limit, added;
};

struct Product {
  const __nv_bfloat16* x;     // rows, of `shared` pairs each
  const __nv_bfloat16* bias;  // [experts, rows of its weight], or null
  __nv_bfloat16* out;         // [pairs, width]
  const int *order, *block_experts, *used;  // of a SortedPairs with blocks of ROWS
  long x_stride;
  int pairs, shared, width, inputs;
  int block_group;  // so many blocks go through all tiles together, and share them in the cache
  int* taken;       // how many items the blocks of threads have taken but their first ones; 0 before
  BoundedGate gate;
};

// What a block of threads multiplies at once.
struct Item {
  int block, tile, expert;
  int groups;  // of pairs that there are; 0: there is no item any more

  // number: less than used * tiles.
  __device__ Item(const Product& p, int tiles, int used, int number) : groups(1) {
    const int group = number / (p.block_group * tiles), first = group * p.block_group;
    const int blocks = min(p.block_group, used - first), inside = number - first * tiles;
    tile = inside / blocks;
    block = first + inside % blocks;
    expert = p.block_experts[block];
    for (int i = 1; i < GROUPS; ++i) groups += p.order[block * ROWS + i * GROUP_ROWS] != p.pairs;
  }
};

// Stages in shared memory, each of them the rows of x and then those of the weight; behind them their barriers, and the
// item of each that is an item's first.
struct Ring {
  uint32_t base, stage = 0, parity = 0;

  __device__ explicit Ring(uint32_t base) : base(base) {}

  __device__ uint32_t x() const { return base + stage * STAGE_BYTES; }
  __device__ uint32_t w() const { return x() + X_BYTES; }
  __device__ uint32_t full() const { return base + STAGES * STAGE_BYTES + stage * 8; }
  __device__ uint32_t empty() const { return full() + STAGES * 8; }
  __device__ uint32_t item() const { return base + STAGES * (STAGE_BYTES + 16) + stage * 16; }
  // The number of the item after the one of this turn.
  __device__ uint32_t next(int turn) const { return base + STAGES * (STAGE_BYTES + 32) + turn % 2 * 4; }

  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// GATED: a weight has as many rows of the gate as of the other half, the gate's first; so has a tile.
template <bool GATED>
class ExpertProducts {
  static constexpr int COLUMNS = GATED ? HALF : TILE;  // of the result

 public:
  __device__ ExpertProducts(const Product& p, uint32_t shared)
      : p(p), ring(shared), thread(threadIdx.x), tiles((p.width + COLUMNS - 1) / COLUMNS),
        depths((p.inputs + DEPTH - 1) / DEPTH) {}

  // By one thread, before any other uses them.
  __device__ void start_barriers() const {
    for (Ring each = ring; each.parity == 0; each.advance()) {
      hopper::barrier_init(each.full(), FETCHING + 1);
      hopper::barrier_init(each.empty(), GROUPS * 4);
    }
    hopper::barrier_init_fence();
  }

  // By the last warpgroup. weights: boxes of DEPTH numbers of HALF rows of all experts' weights.
  __device__ void fetch(const CUtensorMap* weights, int first, int step) {
    const int used = *p.used, items = used * tiles;
    const bool leads = thread == GROUPS * 128;
    int number = first;
    for (int turn = 0; number < items; ++turn) {
      int following = 0;
      if (leads) following = step + atomicAdd(p.taken, 1);
      const Item item(p, tiles, used, number);
      const Rows rows(p, item.block, thread - GROUPS * 128);
      const int top = item.expert * (GATED ? 2 : 1) * p.width + item.tile * COLUMNS, halves = halves_of(item.tile);
      for (int depth = 0; depth < depths; ++depth, ring.advance()) {
        hopper::barrier_wait(ring.empty(), ring.parity ^ 1);
        if (leads) {
          if (depth == 0) hopper::store_16(ring.item(), item.block, item.tile, item.expert, item.groups);
          hopper::barrier_expect(ring.full(), halves * (W_BYTES / 2));
          const uint64_t policy = hopper::evict_normal();
          hopper::copy_box(ring.w(), weights, depth * DEPTH, top, ring.full(), policy);
          const int second = top + (GATED ? p.width : HALF);
          if (halves == 2) hopper::copy_box(ring.w() + W_BYTES / 2, weights, depth * DEPTH, second, ring.full(), policy);
        }
        rows.copy(p, ring.x(), depth * DEPTH, item.groups);
        hopper::barrier_arrive_after_copies(ring.full());
      }
      if (leads) hopper::store_4(ring.next(turn), following);
      hopper::named_barrier(1, FETCHING);
      number = hopper::load_4(ring.next(turn));
    }
    hopper::barrier_wait(ring.empty(), ring.parity ^ 1);
    if (leads) {
      hopper::store_16(ring.item(), 0, 0, 0, 0);
      hopper::barrier_arrive(ring.full());
    }
    hopper::close_copies();
    hopper::await_copies<0>();  // nobody leaves while copies are on their way
    hopper::barrier_arrive(ring.full());
  }

  // By each of the other warpgroups.
  __device__ void multiply() {
    const int group = thread / 128;
    Sums sums;
    for (;;) {
      hopper::barrier_wait(ring.full(), ring.parity);
      const uint4 item = hopper::load_16(ring.item());
      const int block = item.x, tile = item.y, expert = item.z, groups = item.w;
      if (groups == 0) return;
      if (group >= groups) {
        let_pass();
        continue;
      }
      halves_of(tile) == 2 ? add_up<2>(sums, group) : add_up<1>(sums, group);
      store(sums, p.order + block * ROWS + group * GROUP_ROWS, expert, tile);
    }
  }

 private:
  using Sums = float[2][HALF / 2];

  const Product& p;
  Ring ring;
  int thread, tiles, depths;

  // Halves of a tile that have columns of the result. Only the last tile may have one alone.
  __device__ int halves_of(int tile) const { return GATED || tile * COLUMNS + HALF < p.width ? 2 : 1; }

  // A warpgroup's products with so many halves of an item's tile.
  template <int HALVES>
  __device__ void add_up(Sums& sums, int group) {
    for (int depth = 0; depth < depths; ++depth, ring.advance()) {
      hopper::barrier_wait(ring.full(), ring.parity);
      const uint64_t a = hopper::operand(ring.x() + group * GROUP_ROWS * hopper::SWIZZLE_BYTES);
      const uint64_t b = hopper::operand(ring.w());
      hopper::show_to_engines();
      hopper::wgmma_fence();
#pragma unroll
      for (int i = 0; i < DEPTH / 16; ++i)
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
          hopper::Wgmma<HALF>::multiply(
              sums[half], a + i * hopper::ADVANCE, b + half * HALF_FURTHER + i * hopper::ADVANCE, depth > 0 || i > 0);
      hopper::wgmma_commit();
      // Not after the next stage has come: the stage is free earlier, and the other warpgroups' products go on.
      hopper::wgmma_wait<0>();
      release(ring.empty());
    }
  }

  // The rows of x that a thread fetches: sixteen bytes of every sixteenth one.
  struct Rows {
    static constexpr int EACH = ROWS * 8 / FETCHING, APART = FETCHING / 8;

    int places[EACH];  // where they are, in sixteen bytes; -1: there is none
    int place, row;

    __device__ Rows(const Product& p, int block, int thread) : place(thread % 8), row(thread / 8) {
      const int *pairs = p.order + block * ROWS, stride = static_cast<int>(p.x_stride / 8);
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int pair = pairs[row + i * APART];
        places[i] = pair == p.pairs ? -1 : pair / p.shared * stride + place;
      }
    }

    __device__ void copy(const Product& p, uint32_t target, int begin, int groups) const {
      const bool there = begin + place * 8 < p.inputs;
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        if (i * APART >= groups * GROUP_ROWS) continue;  // of a warpgroup that does not multiply
        const bool some = there && places[i] >= 0;
        const uint4* from = reinterpret_cast<const uint4*>(p.x) + (some ? places[i] + begin / 8 : 0);
        hopper::copy_or_clear(target + within_tile(row + i * APART, place), from, some);
      }
    }
  };

  // By one lane of each warp, when what its warp reads of a stage has been read.
  __device__ void release(uint32_t barrier) const {
    if (thread % 32 == 0) hopper::barrier_arrive(barrier);
  }

  __device__ void let_pass() {
    for (int depth = 0; depth < depths; ++depth, ring.advance()) {
      hopper::barrier_wait(ring.full(), ring.parity);
      __syncwarp();  // all lanes have seen it, and which item it belongs to
      release(ring.empty());
    }
  }

  static __device__ float within(float x, float least, float most) {
    return x > most ? most : x < least ? least : x;  // NaN stays NaN
  }

  __device__ float gated(float gate, float other) const {
    gate = gate > p.gate.limit ? p.gate.limit : gate;
    return gate_rounded(p.gate.gate, gate, within(other, -p.gate.limit, p.gate.limit) + p.gate.added);
  }

  // The sums of a warpgroup go to the rows of its pairs.
  __device__ void store(Sums& sums, const int* pairs, int expert, int tile) const {
    const int lane = thread % 32, row = thread % 128 / 32 * 16 + lane / 4, first = tile * COLUMNS;
    if (p.bias != nullptr) {
      const __nv_bfloat16* bias = p.bias + long(expert) * (GATED ? 2 : 1) * p.width;
      add_bias(sums[0], bias, first);
      GATED ? add_bias(sums[1], bias + p.width, first) : add_bias(sums[1], bias, first + HALF);
    }
    if constexpr (GATED) {
#pragma unroll
      for (int i = 0; i < HALF / 2; ++i) sums[0][i] = gated(sums[0][i], sums[1][i]);
    }
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int pair = pairs[row + 8 * below];
      __nv_bfloat16* target = p.out + long(pair) * p.width;
#pragma unroll
      for (int half = 0; half < COLUMNS / HALF; ++half)
#pragma unroll
        for (int four = 0; four < HALF / 8; four += 4) {
          uint32_t two[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int at = 4 * (four + j) + 2 * below;
            two[j] = hopper::packed(sums[half][at], sums[half][at + 1]);
          }
          const uint4 eight = block_of_lane(two[0], two[1], two[2], two[3], lane % 4);
          const int column = first + half * HALF + 8 * (four + lane % 4);
          if (pair < p.pairs && column < p.width) *reinterpret_cast<uint4*>(target + column) = eight;
        }
    }
  }

  // To half a tile whose first row of the weight is `first`.
  __device__ void add_bias(float (&sums)[HALF / 2], const __nv_bfloat16* bias, int first) const {
#pragma unroll
    for (int j = 0; j < HALF / 8; ++j) {
      const int column = first + 8 * j + thread % 4 * 2;
      if (column >= p.width) continue;
      const float2 added = hopper::unpacked(*reinterpret_cast<const uint32_t*>(bias + column));
      sums[4 * j] += added.x, sums[4 * j + 1] += added.y;
      sums[4 * j + 2] += added.x, sums[4 * j + 3] += added.y;
    }
  }
};

}  // namespace experts
