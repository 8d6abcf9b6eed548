// The logits of a router: products of up to some thousand rows with the weight of few experts, which is too small to
// keep a device busy by its size. What counts is how long one block takes.
//
// A block has 16 or 32 rows and as many experts, and its warps share the inputs: each takes every eighth piece of 32. A
// lane loads 16 bytes of a row or of an expert at a time, eight numbers that stand together. The tensor cores do not
// mind which of the inputs they add up first, as long as both sides have the same one, so these eight are its numbers
// of two products. Nothing goes through shared memory but the sums of the warps. The first pieces of the weight are
// asked for before the kernel ahead is done, all others of a round at once.
//
// Larger blocks read less in all, and are for more logits: what one multiprocessor reads takes longer than the
// products. Every logit is summed in the same order, whatever the block.
#pragma once

#ifndef MYSGL_EMULATED
#include "../gemm/hopper.cuh"
#endif

namespace mysgl {

struct Logits {
  const void* x;       // [rows, inputs] bf16, rows at distances of x_stride
  const void* weight;  // [experts, inputs] bf16
  const void* bias;    // [experts] bf16, or null
  void* out;           // [rows, experts], bf16 or float32
  long long x_stride;
  int rows, experts, inputs, wide;  // wide: float32
};

// DOWN, ACROSS: times 16 rows and times 16 experts. PIECES: of a warp, in a round.
template <int DOWN, int ACROSS, int PIECES>
class LogitTile {
 public:
  static constexpr int ROWS = 16 * DOWN, EXPERTS = 16 * ACROSS, WARPS = 8, THREADS = WARPS * 32;
  static constexpr int PIECE = 32;  // inputs
  static constexpr int BYTES = WARPS * ROWS * EXPERTS * 4;

  static __host__ __device__ int across(int experts) { return (experts + EXPERTS - 1) / EXPERTS; }
  static __host__ __device__ int count(int rows, int experts) { return (rows + ROWS - 1) / ROWS * across(experts); }

  __device__ LogitTile(const Logits& p, int tile, char* shared)
      : p(p), sums(reinterpret_cast<float*>(shared)), warp(threadIdx.x / 32), lane(threadIdx.x % 32),
        first_row(tile / across(p.experts) * ROWS), first_expert(tile % across(p.experts) * EXPERTS) {}

  // Asks for the weights of the first round, which no kernel writes.
  __device__ void prepare() { load_weights(0); }

  // Computes the tile, after `prepare`.
  __device__ void run() {
    float c[DOWN][2 * ACROSS][4] = {};
    const int pieces = p.inputs / PIECE;
    for (int first = 0; first * WARPS < pieces; first += PIECES) {
      if (first > 0) load_weights(first);
      load_rows(first);
#pragma unroll
      for (int i = 0; i < PIECES; ++i)
#pragma unroll
        for (int down = 0; down < DOWN; ++down) {
          const uint4 top = rows[2 * down][i], below = rows[2 * down + 1][i];
#pragma unroll
          for (int eight = 0; eight < 2 * ACROSS; ++eight) {
            const uint4 right = weights[eight][i];
            hopper::multiply_add(c[down][eight], {top.x, below.x, top.y, below.y}, right.x, right.y);
            hopper::multiply_add(c[down][eight], {top.z, below.z, top.w, below.w}, right.z, right.w);
          }
        }
    }
#pragma unroll
    for (int down = 0; down < DOWN; ++down)
#pragma unroll
      for (int eight = 0; eight < 2 * ACROSS; ++eight)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = down * 16 + i / 2 * 8 + lane / 4, expert = eight * 8 + lane % 4 * 2 + i % 2;
          sums[(warp * ROWS + row) * EXPERTS + expert] = c[down][eight][i];
        }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * EXPERTS; i += THREADS) store(i / EXPERTS, i % EXPERTS);
  }

 private:
  const Logits& p;
  float* sums;  // [WARPS, ROWS, EXPERTS]
  int warp, lane, first_row, first_expert;
  uint4 rows[2 * DOWN][PIECES], weights[2 * ACROSS][PIECES];  // of every eight rows and experts

  // This warp's pieces of a row or an expert from its `first` on, zeros behind the last.
  __device__ __forceinline__ void load(uint4 (&to)[PIECES], const void* from, long long number, int first) const {
    const char* own = static_cast<const char*>(from) + 2 * (number + lane % 4 * 8);
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      const int piece = (first + i) * WARPS + warp;
      to[i] = piece * PIECE < p.inputs ? *reinterpret_cast<const uint4*>(own + piece * PIECE * 2) : uint4{};
    }
  }

  // Rows and experts that there are not read the last one, and nothing is stored for them.
  __device__ __forceinline__ void load_rows(int first) {
#pragma unroll
    for (int eight = 0; eight < 2 * DOWN; ++eight)
      load(rows[eight], p.x, min(first_row + eight * 8 + lane / 4, p.rows - 1) * p.x_stride, first);
  }

  __device__ __forceinline__ void load_weights(int first) {
#pragma unroll
    for (int eight = 0; eight < 2 * ACROSS; ++eight) {
      const long long expert = min(first_expert + eight * 8 + lane / 4, p.experts - 1);
      load(weights[eight], p.weight, expert * p.inputs, first);
    }
  }

  // Adds up what the warps have, always in the same order.
  __device__ void store(int row, int expert) {
    float sum = 0.f;
#pragma unroll
    for (int other = 0; other < WARPS; ++other) sum += sums[(other * ROWS + row) * EXPERTS + expert];
    const int e = first_expert + expert;
    if (first_row + row >= p.rows || e >= p.experts) return;
    if (p.bias != nullptr) sum += hopper::unpacked(static_cast<const uint16_t*>(p.bias)[e]).x;
    const long long at = static_cast<long long>(first_row + row) * p.experts + e;
    if (p.wide)
      static_cast<float*>(p.out)[at] = sum;
    else
      static_cast<uint16_t*>(p.out)[at] = static_cast<uint16_t>(hopper::packed(sum, 0.f));
  }
};

// By their numbers, from the smallest. All pieces of 2,048 inputs are one round where registers allow it.
using Small = LogitTile<1, 1, 8>;
using Wide = LogitTile<1, 2, 8>;
using Large = LogitTile<2, 2, 4>;

}  // namespace mysgl
