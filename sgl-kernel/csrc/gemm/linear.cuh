// out = x W^T (+ bias), or act(x W_gate^T) * (x W_up^T), for up to 256 rows of x, with the gate for more, on Hopper's
// tensor cores.
//
// A product of few rows is bound by reading W, and from about 200 rows on by multiplying; either way it is best done in
// one wave, each of the multiprocessors with an equal share of W. Rows of x are rows of the tensor core product (64 to
// a warpgroup, GROUPS warpgroups), rows of W its columns: TILE of them, any multiple of 16, so that the shares come out
// even. Where a share would be too few rows, `split` blocks of a cluster multiply a part of the depth each and add
// their sums through each other's shared memory, in a fixed order. With PAIR two blocks of a cluster have half of the
// rows of x each, and each fetches half of the rows of W for both.
//
//   one warp fetches:   W tile ─┐                 ┌─ warpgroup 0: rows 0..63   x TILE ─▶ registers ─▶ out
//                       x tile ─┴▶ ring of stages ┼─ warpgroup 1: rows 64..127 x TILE     (or ─▶ shared memory
//                                                 └─ …                                     ─▶ sum ─▶ out)
//
// The first tiles of W are on their way before the kernel ahead, which may still be writing x, is done.
//
// Of more rows than a pair of blocks takes each pair multiplies many items in turn: a tile of W with a block of rows.
// Then, and where there are more tiles than blocks, the gate is LATE: it costs as much as a tenth of a tile's products
// and is worked out while the tensor cores multiply the next item.
#pragma once

#include "epilogue.cuh"
#include "hopper.cuh"
#include "registers.cuh"
#include "wgmma.cuh"

namespace {

constexpr int DEPTH = 64;       // values of a row in one stage: the width of a swizzle
constexpr int GROUP_ROWS = 64;  // of x, to a warpgroup
constexpr int MAX_STAGES = 16;
constexpr int BARRIER_BYTES = 1024;  // keeps the tiles behind them on a 1024-byte boundary

struct Work {
  Target to;
  int tiles;   // along the output
  int depths;  // stages of DEPTH values in a row, the last maybe partial
  int split;
  int x_rows;  // of a stage
  int stages;
  int row_blocks, row_group;  // blocks of rows; so many go through all tiles together, and share them in the cache
};

// What a cluster multiplies at once.
template <bool LATE>
struct Item {
  int tile, row_block;

  __device__ Item(const Work& work, int i) : tile(i), row_block(0) {
    if (!LATE) return;
    const int group = i / (work.row_group * work.tiles), first = group * work.row_group;
    const int blocks = min(work.row_group, work.row_blocks - first), inside = i - first * work.tiles;
    tile = inside / blocks;
    row_block = first + inside % blocks;
  }

  static __host__ __device__ __forceinline__ int count(const Work& work) {
    return work.tiles * (LATE ? work.row_blocks : 1);
  }
};

// Shared memory: barriers, stages of W, stages of x, and room for the rows of x that a warpgroup multiplies though they
// do not exist: a product of garbage is garbage in its own row alone.
struct Ring {
  uint32_t base, w_bytes, x_bytes, stages;
  uint32_t stage = 0, parity = 0;

  __device__ uint32_t full() const { return base + stage * 8; }
  __device__ uint32_t empty() const { return base + (MAX_STAGES + stage) * 8; }
  __device__ uint32_t w() const { return base + BARRIER_BYTES + stage * w_bytes; }
  __device__ uint32_t x() const { return base + BARRIER_BYTES + stages * w_bytes + stage * x_bytes; }
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// What one block of the cluster does.
template <bool PAIR>
struct Share {
  int rank = hopper::cluster_rank();
  int half = PAIR ? rank % 2 : 0;  // of the rows of x
  int part;                        // of the depth
  int first, last;                 // stages of the depth
  int item, step;                  // the first item, and from one to the next

  __device__ Share(const Work& work) {
    const int cluster = work.split * (PAIR ? 2 : 1);
    part = PAIR ? rank / 2 : rank;
    first = work.depths * part / work.split;
    last = work.depths * (part + 1) / work.split;
    item = blockIdx.x / cluster;
    step = gridDim.x / cluster;
  }
};

template <int TILE, int GROUPS, bool PAIR, bool LATE>
struct Fetch {
  static constexpr uint32_t HALF_BYTES = TILE / 2 * hopper::SWIZZLE_BYTES;

  // Both halves of a W tile; of a pair of blocks each fetches one for both.
  static __device__ __forceinline__ void weights(
      const CUtensorMap& map, const Work& work, const Share<PAIR>& share, const Ring& ring, int tile, int depth,
      uint64_t policy) {
    hopper::barrier_expect(ring.full(), ring.w_bytes + ring.x_bytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = work.to.gated ? half * work.to.width + tile * (TILE / 2) : tile * TILE + half * (TILE / 2);
      const uint32_t target = ring.w() + half * HALF_BYTES;
      if (!PAIR) {
        hopper::copy_box(target, &map, depth * DEPTH, row, ring.full(), policy);
      } else if (half == share.half) {
        const uint16_t both = 3 << (share.rank & ~1);
        hopper::copy_box_to(target, &map, depth * DEPTH, row, ring.full(), both, policy);
      }
    }
  }

  static __device__ __forceinline__ void rows(
      const CUtensorMap& map, const Share<PAIR>& share, const Ring& ring, int row_block, int depth, uint64_t policy) {
    const int row = (row_block * (PAIR ? 2 : 1) + share.half) * GROUPS * GROUP_ROWS;
    hopper::copy_box(ring.x(), &map, depth * DEPTH, row, ring.full(), policy);
  }

  static __device__ void run(
      const CUtensorMap& w_map, const CUtensorMap& x_map, const Work& work, const Share<PAIR>& share, Ring ring) {
    // One block of rows reads W once and is read often. Of several both are read often.
    const bool several = LATE && work.row_blocks > 1;
    const uint64_t for_w = several ? hopper::evict_normal() : hopper::evict_first();
    const uint64_t for_x = several ? hopper::evict_normal() : hopper::evict_last();
    const int items = Item<LATE>::count(work);
    const Item<LATE> first(work, share.item);
    const int ahead = share.item < items ? min(work.stages, share.last - share.first) : 0;
    Ring later = ring;
    for (int i = 0; i < ahead; ++i, ring.advance()) {
      weights(w_map, work, share, ring, first.tile, share.first + i, for_w);
    }
    hopper::wait_for_kernels_ahead();
    for (int i = 0; i < ahead; ++i, later.advance()) {
      rows(x_map, share, later, first.row_block, share.first + i, for_x);
    }
    int depth = share.first + ahead;
    for (int i = share.item; i < items; i += share.step, depth = share.first) {
      const Item<LATE> item(work, i);
      for (; depth < share.last; ++depth, ring.advance()) {
        hopper::barrier_wait(ring.empty(), ring.parity ^ 1);
        weights(w_map, work, share, ring, item.tile, depth, for_w);
        rows(x_map, share, ring, item.row_block, depth, for_x);
      }
    }
  }
};

template <int TILE, int GROUPS, bool PAIR, bool LATE>
struct Multiply {
  // One lane of each warp, when its warp's reads are done.
  static __device__ __forceinline__ void release(const Share<PAIR>& share, uint32_t barrier) {
    if (threadIdx.x % 32 == 0) {
      hopper::barrier_arrive(barrier);
      if (PAIR) hopper::barrier_arrive_at(barrier, share.rank ^ 1);
    }
  }

  // The products of one stage, when it is there. Those of the first overwrite the sums.
  static __device__ __forceinline__ void start(float (&d)[TILE / 2], const Ring& ring, bool first) {
    const int group = threadIdx.x / 128;
    hopper::barrier_wait(ring.full(), ring.parity);
    const uint64_t a = hopper::operand(ring.x() + group * GROUP_ROWS * hopper::SWIZZLE_BYTES);
    const uint64_t b = hopper::operand(ring.w());
    hopper::wgmma_fence();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; ++i) {
      hopper::Wgmma<TILE>::multiply(d, a + i * hopper::ADVANCE, b + i * hopper::ADVANCE, !first || i > 0);
    }
    hopper::wgmma_commit();
  }

  // A tile, and at each of its first stages a piece of the one that is finished.
  template <int PIECE = 0>
  static __device__ __forceinline__ void tile_after(
      float (&d)[TILE / 2], const Finished<TILE>& finished, const Target& to, const Share<PAIR>& share, Ring& ring,
      uint32_t before = 0) {
    if constexpr (PIECE < Finished<TILE>::PIECES) {
      start(d, ring, PIECE == 0);
      if (finished.at != nullptr) finished.template store<PIECE>(to);
      hopper::wgmma_wait<1>();
      if (PIECE > 0) release(share, before);
      before = ring.empty();
      ring.advance();
      tile_after<PIECE + 1>(d, finished, to, share, ring, before);
    } else {
#pragma unroll 1
      for (int depth = share.first + PIECE; depth < share.last; ++depth, ring.advance()) {
        start(d, ring, false);
        hopper::wgmma_wait<1>();
        release(share, before);
        before = ring.empty();
      }
      hopper::wgmma_wait<0>();
      release(share, before);
    }
  }

  static __device__ __forceinline__ void tile(float (&d)[TILE / 2], const Share<PAIR>& share, Ring& ring) {
    uint32_t before = 0;
#pragma unroll 1
    for (int depth = share.first; depth < share.last; ++depth, ring.advance()) {
      start(d, ring, depth == share.first);
      hopper::wgmma_wait<1>();
      if (before) release(share, before);
      before = ring.empty();
    }
    hopper::wgmma_wait<0>();
    if (before) release(share, before);
  }

  static __device__ void run_late(const Work& work, const Share<PAIR>& share, Ring ring) {
    float d[TILE / 2];
    Finished<TILE> finished;
    for (int i = share.item; i < Item<LATE>::count(work); i += share.step) {
      tile_after(d, finished, work.to, share, ring);
      if (finished.at == nullptr) hopper::wait_for_kernels_ahead();
      const Item<LATE> item(work, i);
      const int block = item.row_block * (PAIR ? 2 : 1) + share.half;
      finished.take(work.to, d, item.tile, (block * GROUPS + threadIdx.x / 128) * GROUP_ROWS);
    }
    if (finished.at != nullptr) finished.store_all(work.to);
  }

  static __device__ void run(const Work& work, const Share<PAIR>& share, Ring ring) {
    const int group = threadIdx.x / 128, first_row = share.half * GROUPS * GROUP_ROWS;
    float d[TILE / 2];
    if (work.split == 1) {
      bool waited = false;
      for (int at = share.item; at < work.tiles; at += share.step) {
        tile(d, share, ring);
        if (!waited) hopper::wait_for_kernels_ahead(), waited = true;
        store_sums<TILE>(work.to, d, at, first_row + group * GROUP_ROWS);
      }
      return;
    }
    tile(d, share, ring);
    hopper::wait_for_kernels_ahead();
    hopper::named_barrier(1, GROUPS * 128);  // nobody multiplies any more: the ring is free
    const int rows = min(work.to.rows - first_row, GROUPS * GROUP_ROWS);
    const uint32_t memory = ring.base + BARRIER_BYTES;
    extern __shared__ char shared[];
    Partials<TILE>::keep(reinterpret_cast<float*>(shared + (memory - hopper::shared_address(shared))), d,
                         group * GROUP_ROWS, rows);
    hopper::cluster_sync();
    Partials<TILE>::reduce(work.to, memory, share.item, first_row, rows, work.split, share.part, share.half,
                           PAIR ? 2 : 1, GROUPS * 128);
  }
};

// One warp fetches; where there are several warpgroups that multiply, it has one of its own, to give registers away.
constexpr int threads(int groups) { return groups * 128 + (groups > 1 ? 128 : 32); }

// Registers of a thread that multiplies and of one that fetches; together no more than a multiprocessor has.
template <int GROUPS>
constexpr int MULTIPLY_REGISTERS = GROUPS == 3 ? 160 : 232;
template <int GROUPS>
constexpr int FETCH_REGISTERS = GROUPS == 3 ? 32 : 40;

template <int TILE, int GROUPS, bool PAIR, bool LATE>
__global__ void __launch_bounds__(threads(GROUPS), 1) linear_kernel(
    const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, const Work work) {
  extern __shared__ char shared[];
  const uint32_t base = (hopper::shared_address(shared) + 1023) & ~1023u;
  Ring ring{base, TILE * hopper::SWIZZLE_BYTES, uint32_t(work.x_rows) * hopper::SWIZZLE_BYTES, uint32_t(work.stages)};
  const Share<PAIR> share(work);
  hopper::launch_dependents();
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&w_map);
    hopper::prefetch_map(&x_map);
    for (Ring each = ring; each.parity == 0; each.advance()) {
      hopper::barrier_init(each.full(), 1);
      hopper::barrier_init(each.empty(), GROUPS * 4 * (PAIR ? 2 : 1));
    }
    hopper::barrier_init_fence();
  }
  // Of a pair each writes into the other's memory: its barriers must be there.
  if (PAIR) {
    hopper::cluster_meet();
  } else {
    __syncthreads();
  }
  if (threadIdx.x >= GROUPS * 128) {
    if (GROUPS > 1) give_registers<FETCH_REGISTERS<GROUPS>>();
    if (threadIdx.x == GROUPS * 128) Fetch<TILE, GROUPS, PAIR, LATE>::run(w_map, x_map, work, share, ring);
    __syncwarp();
    if (work.split > 1) hopper::cluster_sync();
    if (PAIR || work.split > 1) hopper::cluster_meet();
  } else {
    if (GROUPS > 1) take_registers<MULTIPLY_REGISTERS<GROUPS>>();
    if constexpr (LATE) {
      Multiply<TILE, GROUPS, PAIR, LATE>::run_late(work, share, ring);
    } else {
      Multiply<TILE, GROUPS, PAIR, LATE>::run(work, share, ring);
    }
    // Nobody leaves while others read its memory or arrive at its barriers.
    if (PAIR || work.split > 1) hopper::cluster_meet();
  }
}

}  // namespace
