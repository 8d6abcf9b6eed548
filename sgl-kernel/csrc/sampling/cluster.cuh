// What the threads of a cluster do together: barriers, a look at each other's shared memory, sums and extremes.
//
// tests/unit/emulated_cuda.h has the same few names for a machine without a GPU.
#pragma once

#ifndef MYSGL_EMULATED
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mysgl {

__device__ __forceinline__ char* shared_memory() {
  extern __shared__ __align__(16) char memory[];
  return memory;
}

__device__ __forceinline__ int cluster_rank() {
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
}

// All threads of all blocks of the cluster; what one wrote before, all read after.
__device__ __forceinline__ void cluster_sync() { cooperative_groups::this_cluster().sync(); }

// The same variable in the shared memory of another block of the cluster.
template <typename T>
__device__ __forceinline__ T* in_block(T* mine, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
}

}  // namespace mysgl
#endif

#include <cstdint>

namespace mysgl {

constexpr unsigned ALL_LANES = 0xFFFFFFFFu;
constexpr int LANES = 32;
// A sum travels through a warp in parts, so that none overflows 32 bits: 32 lanes of 26 bits.
constexpr int PART_BITS = 26;

// Of values below 2^52.
__device__ inline uint64_t warp_sum_of_small(uint64_t value) {
  const unsigned low = __reduce_add_sync(ALL_LANES, static_cast<unsigned>(value & ((1ull << PART_BITS) - 1)));
  const unsigned high = __reduce_add_sync(ALL_LANES, static_cast<unsigned>(value >> PART_BITS));
  return (static_cast<uint64_t>(high) << PART_BITS) + low;
}

__device__ inline uint64_t warp_sum(uint64_t value) {
  const unsigned low = __reduce_add_sync(ALL_LANES, static_cast<unsigned>(value & ((1ull << PART_BITS) - 1)));
  const uint64_t rest = value >> PART_BITS;
  const unsigned middle = __reduce_add_sync(ALL_LANES, static_cast<unsigned>(rest & ((1ull << PART_BITS) - 1)));
  const unsigned high = __reduce_add_sync(ALL_LANES, static_cast<unsigned>(rest >> PART_BITS));
  return (((static_cast<uint64_t>(high) << PART_BITS) + middle) << PART_BITS) + low;
}

// A place in an order of (key falling, id rising).
struct Place {
  unsigned key;
  int id;
};

constexpr int NO_ID = 0x7FFFFFFF;

__device__ inline Place warp_first(Place mine) {
  const unsigned key = __reduce_max_sync(ALL_LANES, mine.key);
  const int id = __reduce_min_sync(ALL_LANES, mine.key == key ? mine.id : NO_ID);
  return {key, id};
}

// From the smallest to the largest; the largest is 0 if there is nothing.
struct Range {
  unsigned smallest = 0xFFFFFFFFu;
  unsigned largest = 0;
};

__device__ inline Range warp_range(Range mine) {
  return {__reduce_min_sync(ALL_LANES, mine.smallest), __reduce_max_sync(ALL_LANES, mine.largest)};
}

__device__ inline uint64_t shuffled(uint64_t value, int step) {
  return __shfl_xor_sync(ALL_LANES, static_cast<unsigned long long>(value), step);
}

__device__ inline uint64_t lane_sum(uint64_t value) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) value += shuffled(value, step);
  return value;
}

// What threads have found among some weights.
struct Tally {
  static constexpr int MASSES = 3, COUNTS = 4;
  uint64_t masses[MASSES];
  unsigned counts[COUNTS];  // of one thread below 256
  Range range;
};

// What the blocks of a cluster tell each other. Every exchange has the other half of the mail, so that a slow block
// still reads the last one while a quick one writes the next.
template <int CLUSTER, int THREADS, int MOST>
struct Mail {
  static constexpr int WARPS = THREADS / LANES;
  uint64_t of_warps[WARPS][MOST];
  uint64_t of_blocks[2][CLUSTER][MOST];
  uint64_t result[MOST];
};

template <int CLUSTER, int THREADS, int MOST>
struct Exchange {
  using Box = Mail<CLUSTER, THREADS, MOST>;
  Box* box;
  int rank;
  int turn = 0;

  __device__ Exchange(Box* box, int rank) : box(box), rank(rank) {}

  // The sum over all threads of the cluster; each value is below 2^52.
  __device__ uint64_t sum(uint64_t value) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    value = warp_sum_of_small(value);
    if (lane == 0) box->of_warps[warp][0] = value;
    __syncthreads();
    if (warp == 0) {
      value = warp_sum(lane < Box::WARPS ? box->of_warps[lane][0] : 0);
      if (lane < CLUSTER) in_block(box, lane)->of_blocks[turn][rank][0] = value;
    }
    cluster_sync();
    value = warp_sum(lane < CLUSTER ? box->of_blocks[turn][lane][0] : 0);
    turn ^= 1;
    return value;
  }

  // The tally of all threads of the cluster. The sums of a warp are halved among its lanes at every step, and those of
  // the block and of the cluster belong to a warp each.
  __device__ void sum(Tally& tally) {
    constexpr int COUNTS_AT = 3, RANGE_AT = 4, MORE_COUNTS_AT = 5, SLOTS = 6;
    static_assert(SLOTS <= MOST && Tally::MASSES == COUNTS_AT && Tally::COUNTS == 4, "the mail has other room");
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    // 1. A warp: lanes of which bit 4 is set go on with the last two values, then those with bit 3 with the second.
    const unsigned(&counts)[4] = tally.counts;
    uint64_t values[4] = {tally.masses[0], tally.masses[1], tally.masses[2],
                          static_cast<uint64_t>(counts[0] | counts[1] << 16) |
                              static_cast<uint64_t>(counts[2] | counts[3] << 16) << 32};
    const bool upper = lane & 16, second = lane & 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint64_t given = upper ? values[i] : values[i + 2];
      values[i] = (upper ? values[i + 2] : values[i]) + shuffled(given, 16);
    }
    uint64_t value = (second ? values[1] : values[0]) + shuffled(second ? values[0] : values[1], 8);
#pragma unroll
    for (int step = 4; step > 0; step /= 2) value += shuffled(value, step);
    const Range range = warp_range(tally.range);
    if (lane % 8 == 0) box->of_warps[warp][lane / 8] = value;
    if (lane == 0) box->of_warps[warp][RANGE_AT] = pack(range);
    __syncthreads();
    // 2. The block.
    for (int slot = warp; slot <= RANGE_AT; slot += Box::WARPS) {
      const bool there = lane < Box::WARPS;
      const uint64_t mine = there ? box->of_warps[lane][slot] : 0;
      if (slot == RANGE_AT) {
        post(RANGE_AT, pack(warp_range(there ? range_of(mine) : Range{})));
      } else if (slot == COUNTS_AT) {
        post(COUNTS_AT, lane_sum((mine & 0xFFFF) | (mine >> 16 & 0xFFFF) << 32));
        post(MORE_COUNTS_AT, lane_sum((mine >> 32 & 0xFFFF) | mine >> 48 << 32));
      } else {
        post(slot, lane_sum(mine));
      }
    }
    cluster_sync();
    // 3. The cluster.
    for (int slot = warp; slot < SLOTS; slot += Box::WARPS) {
      const bool there = lane < CLUSTER;
      const uint64_t mine = there ? box->of_blocks[turn][lane][slot] : 0;
      const uint64_t found =
          slot == RANGE_AT ? pack(warp_range(there ? range_of(mine) : Range{})) : lane_sum(mine);
      if (lane == 0) box->result[slot] = found;
    }
    __syncthreads();
    for (int i = 0; i < Tally::MASSES; ++i) tally.masses[i] = box->result[i];
    const uint64_t first_counts = box->result[COUNTS_AT], more_counts = box->result[MORE_COUNTS_AT];
    tally.counts[0] = static_cast<unsigned>(first_counts & 0xFFFFFFFFu);
    tally.counts[1] = static_cast<unsigned>(first_counts >> 32);
    tally.counts[2] = static_cast<unsigned>(more_counts & 0xFFFFFFFFu);
    tally.counts[3] = static_cast<unsigned>(more_counts >> 32);
    tally.range = range_of(box->result[RANGE_AT]);
    turn ^= 1;
  }

  // The first place of all threads of the cluster.
  __device__ Place first(Place mine) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    mine = warp_first(mine);
    if (lane == 0) box->of_warps[warp][0] = pack(mine);
    __syncthreads();
    if (warp == 0) {
      mine = warp_first(lane < Box::WARPS ? unpack(box->of_warps[lane][0]) : Place{0, NO_ID});
      if (lane < CLUSTER) in_block(box, lane)->of_blocks[turn][rank][0] = pack(mine);
    }
    cluster_sync();
    mine = warp_first(lane < CLUSTER ? unpack(box->of_blocks[turn][lane][0]) : Place{0, NO_ID});
    turn ^= 1;
    return mine;
  }

  // Of each value the sum of all threads before this one, blocks and threads in order; `totals`: those of all.
  template <int COUNT>
  __device__ void before(uint64_t (&values)[COUNT], uint64_t (&totals)[COUNT]) {
    static_assert(COUNT <= MOST, "the mail has no room");
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      uint64_t sum = values[i];
#pragma unroll
      for (int step = 1; step < LANES; step *= 2) {
        const uint64_t left = __shfl_up_sync(ALL_LANES, static_cast<unsigned long long>(sum), step);
        if (lane >= step) sum += left;
      }
      if (lane == LANES - 1) box->of_warps[warp][i] = sum;
      values[i] = sum - values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      uint64_t block = 0;
      for (int other = 0; other < Box::WARPS; ++other) {
        const uint64_t sum = box->of_warps[other][i];
        if (other < warp) values[i] += sum;
        block += sum;
      }
      if (warp == 0 && lane < CLUSTER) in_block(box, lane)->of_blocks[turn][rank][i] = block;
    }
    cluster_sync();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      totals[i] = 0;
      for (int other = 0; other < CLUSTER; ++other) {
        const uint64_t sum = box->of_blocks[turn][other][i];
        if (other < rank) values[i] += sum;
        totals[i] += sum;
      }
    }
    turn ^= 1;
  }

 private:
  // Tell all blocks of the cluster.
  __device__ void post(int slot, uint64_t value) {
    const int lane = threadIdx.x % LANES;
    if (lane < CLUSTER) in_block(box, lane)->of_blocks[turn][rank][slot] = value;
  }

  static __device__ uint64_t pack(Place place) {
    return static_cast<uint64_t>(place.key) << 32 | static_cast<unsigned>(place.id);
  }
  static __device__ uint64_t pack(Range range) {
    return static_cast<uint64_t>(range.largest) << 32 | range.smallest;
  }
  static __device__ Range range_of(uint64_t bits) {
    return {static_cast<unsigned>(bits & 0xFFFFFFFFu), static_cast<unsigned>(bits >> 32)};
  }
  static __device__ Place unpack(uint64_t bits) {
    return {static_cast<unsigned>(bits >> 32), static_cast<int>(bits & 0xFFFFFFFFu)};
  }
};

}  // namespace mysgl
