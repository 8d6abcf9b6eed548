// The sort of (row, expert) pairs by expert in one block, each expert's padded to whole blocks of rows.
//
// Every warp has a piece of the list. It counts its pairs of each expert, 32 at a time: lanes with the same expert find
// one another, so a pair learns how many of its expert stand before it in the piece. Then the counts of all pieces are
// added up, expert by expert, and blocks over all experts. The sorted list is made in shared memory, full of the number
// that stands for no pair, and written in one go. Pairs of an expert keep their order: the same routing always gives the
// same blocks.
#pragma once

#ifndef MYSGL_EMULATED
#include <cstdint>
#include <cuda_runtime.h>
#endif

namespace mysgl {

struct SortedPairs {
  const int* ids;  // [pairs], experts
  int* order;      // [length]: pairs by expert, in blocks; `pairs` where there is none
  int* block_experts;
  int* used;  // the number of blocks
  int pairs, experts, rows, length;
};

template <int WARPS>
class PairSorter {
 public:
  static constexpr int THREADS = WARPS * 32;
  static constexpr int MOST_TURNS = 8;  // of 32 pairs, for each warp
  static constexpr int MOST_PAIRS = MOST_TURNS * THREADS;

  static bool fits(const SortedPairs& p) { return p.pairs <= MOST_PAIRS && p.experts <= THREADS; }

  static __host__ __device__ int bytes(int experts, int length) {
    return 4 * (length + experts + WARPS) + 2 * WARPS * experts;
  }

  __device__ PairSorter(const SortedPairs& p, char* shared)
      : p(p), thread(threadIdx.x), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
    order = reinterpret_cast<int*>(shared);
    begins = order + p.length;
    sums = begins + p.experts;
    counts = reinterpret_cast<uint16_t*>(sums + WARPS);
  }

  // What needs no pair: shared memory as it is before the first of them.
  __device__ void prepare() {
    for (int expert = lane; expert < p.experts; expert += 32) counts[warp * p.experts + expert] = 0;
    for (int place = thread; place < p.length; place += THREADS) order[place] = p.pairs;
    __syncwarp();
  }

  // Sorts, after `prepare`.
  __device__ void run() {
    const int turns = (p.pairs + THREADS - 1) / THREADS, first = warp * turns * 32 + lane;
    int experts[MOST_TURNS], earlier[MOST_TURNS];
#pragma unroll
    for (int turn = 0; turn < MOST_TURNS; ++turn) {
      const int pair = first + turn * 32;
      experts[turn] = turn < turns && pair < p.pairs ? p.ids[pair] : -1;
    }
#pragma unroll
    for (int turn = 0; turn < MOST_TURNS; ++turn)
      if (turn < turns) earlier[turn] = count(experts[turn]);
    __syncthreads();
    const int used = place_experts();
#pragma unroll
    for (int turn = 0; turn < MOST_TURNS; ++turn) {
      const int expert = experts[turn];
      if (expert < 0) continue;
      order[begins[expert] + counts[warp * p.experts + expert] + earlier[turn]] = first + turn * 32;
    }
    __syncthreads();
    for (int place = thread; place < used * p.rows; place += THREADS) p.order[place] = order[place];
    if (thread == 0) *p.used = used;
  }

 private:
  static constexpr unsigned ALL = 0xffffffffu;

  const SortedPairs& p;
  int thread, warp, lane;
  int *order, *begins, *sums;
  uint16_t* counts;  // [WARPS, experts]: of each warp's piece, then of all pieces before it

  // Counts this lane's pair, and returns how many of its expert stand before it in the piece; -1: no pair.
  __device__ int count(int expert) {
    const unsigned same = __match_any_sync(ALL, expert);
    const int before = __popc(same & ((1u << lane) - 1));
    uint16_t* own = counts + warp * p.experts + expert;
    const int so_far = expert < 0 ? 0 : *own;
    __syncwarp();
    if (expert >= 0 && before == 0) *own = static_cast<uint16_t>(so_far + __popc(same));
    __syncwarp();
    return so_far + before;
  }

  __device__ int up_to_lane(int value) const {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(ALL, value, step);
      if (lane >= step) value += other;
    }
    return value;
  }

  // Finds where each expert's blocks begin, a thread for each, and what each piece has before it. Returns the number of
  // blocks.
  __device__ int place_experts() {
    const int expert = thread;
    int total = 0;
    if (expert < p.experts) {
      constexpr int AT_ONCE = WARPS < 16 ? WARPS : 16;  // more do not fit into the registers of so many threads
#pragma unroll 1
      for (int first = 0; first < WARPS; first += AT_ONCE) {
        uint16_t* own = counts + first * p.experts + expert;
        int found[AT_ONCE];
#pragma unroll
        for (int piece = 0; piece < AT_ONCE; ++piece) found[piece] = own[piece * p.experts];
#pragma unroll
        for (int piece = 0; piece < AT_ONCE; ++piece) {
          own[piece * p.experts] = static_cast<uint16_t>(total);
          total += found[piece];
        }
      }
    }
    const int blocks = (total + p.rows - 1) / p.rows, up_to = up_to_lane(blocks);
    if (lane == 31) sums[warp] = up_to;
    __syncthreads();
    int before = up_to - blocks, all = 0;
    // Every thread adds up what the warps have, which is as fast as one warp that tells the others.
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
      const int its = sums[other];
      if (other < warp) before += its;
      all += its;
    }
    if (expert < p.experts) {
      begins[expert] = before * p.rows;
      for (int block = 0; block < blocks; ++block) p.block_experts[before + block] = expert;
    }
    __syncthreads();
    return all;
  }
};

}  // namespace mysgl
