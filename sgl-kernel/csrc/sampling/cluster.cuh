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

// What the blocks of a cluster tell each other. Every exchange has the other half of the mail, so that a slow block
// still reads the last one while a quick one writes the next.
template <int CLUSTER, int THREADS, int MOST>
struct Mail {
  static constexpr int WARPS = THREADS / LANES;
  uint64_t of_warps[WARPS][MOST];
  uint64_t of_blocks[2][CLUSTER][MOST];
};

template <int CLUSTER, int THREADS, int MOST>
struct Exchange {
  using Box = Mail<CLUSTER, THREADS, MOST>;
  Box* box;
  int rank;
  int turn = 0;

  __device__ Exchange(Box* box, int rank) : box(box), rank(rank) {}

  // Sums over all threads of the cluster, in place; each value is below 2^52.
  template <int COUNT>
  __device__ void sum(uint64_t (&values)[COUNT]) {
    static_assert(COUNT <= MOST, "the mail has no room");
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    for (int i = 0; i < COUNT; ++i) {
      const uint64_t found = warp_sum_of_small(values[i]);
      if (lane == 0) box->of_warps[warp][i] = found;
    }
    __syncthreads();
    if (warp == 0) {
      for (int i = 0; i < COUNT; ++i) {
        const uint64_t found = warp_sum(lane < Box::WARPS ? box->of_warps[lane][i] : 0);
        if (lane < CLUSTER) in_block(box, lane)->of_blocks[turn][rank][i] = found;
      }
    }
    cluster_sync();
    for (int i = 0; i < COUNT; ++i) values[i] = warp_sum(lane < CLUSTER ? box->of_blocks[turn][lane][i] : 0);
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

  // The sum of all threads before this one, blocks and threads in order; `total`: that of all.
  __device__ uint64_t before(uint64_t mine, uint64_t* total) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    uint64_t sum = mine;
    for (int step = 1; step < LANES; step *= 2) {
      const uint64_t left = __shfl_up_sync(ALL_LANES, static_cast<unsigned long long>(sum), step);
      if (lane >= step) sum += left;
    }
    if (lane == LANES - 1) box->of_warps[warp][0] = sum;
    __syncthreads();
    uint64_t block = 0, found = sum - mine;
    for (int i = 0; i < Box::WARPS; ++i) {
      const uint64_t other = box->of_warps[i][0];
      if (i < warp) found += other;
      block += other;
    }
    if (warp == 0 && lane < CLUSTER) in_block(box, lane)->of_blocks[turn][rank][0] = block;
    cluster_sync();
    uint64_t all = 0;
    for (int i = 0; i < CLUSTER; ++i) {
      const uint64_t other = box->of_blocks[turn][i][0];
      if (i < rank) found += other;
      all += other;
    }
    turn ^= 1;
    *total = all;
    return found;
  }

 private:
  static __device__ uint64_t pack(Place place) {
    return static_cast<uint64_t>(place.key) << 32 | static_cast<unsigned>(place.id);
  }
  static __device__ Place unpack(uint64_t bits) {
    return {static_cast<unsigned>(bits >> 32), static_cast<int>(bits & 0xFFFFFFFFu)};
  }
};

}  // namespace mysgl
