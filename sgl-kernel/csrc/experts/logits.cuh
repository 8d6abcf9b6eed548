// The logits of a router: products of some hundred rows with the weight of few experts, which is too small to keep a
// device busy by its size. What counts is how long one block takes.
//
// A block has 16 rows and 16 experts, and its warps share the inputs: each takes every eighth piece of 32. A lane loads 16
// bytes of a row or of an expert at a time, eight numbers that stand together. The tensor cores do not mind which of the
// inputs they add up first, as long as both sides have the same one, so these eight are its numbers of two products.
// Nothing goes through shared memory but the sums of the warps. The first pieces of the weight are asked for before the
// kernel ahead is done, all others of a round at once.
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

class LogitTile {
 public:
  static constexpr int ROWS = 16, EXPERTS = 16, WARPS = 8, THREADS = WARPS * 32;
  static constexpr int PIECE = 32;   // inputs
  static constexpr int PIECES = 8;   // of a warp, in a round
  static constexpr int BYTES = WARPS * ROWS * EXPERTS * 4;

  __device__ LogitTile(const Logits& p, int tile, char* shared)
      : p(p), sums(reinterpret_cast<float*>(shared)), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
    const int across = (p.experts + EXPERTS - 1) / EXPERTS;
    first_row = tile / across * ROWS;
    first_expert = tile % across * EXPERTS;
    for (int half = 0; half < 2; ++half) {
      // Rows and experts that there are not read the last one, and nothing is stored for them.
      const int row = min(first_row + half * 8 + lane / 4, p.rows - 1);
      const int expert = min(first_expert + half * 8 + lane / 4, p.experts - 1);
      x[half] = static_cast<const char*>(p.x) + 2 * (row * p.x_stride + lane % 4 * 8);
      weight[half] = static_cast<const char*>(p.weight) + 2 * (static_cast<long long>(expert) * p.inputs + lane % 4 * 8);
    }
  }

  // Asks for the weights of the first round, which no kernel writes.
  __device__ void prepare() { load(weights, weight, 0); }

  // Computes the tile, after `prepare`.
  __device__ void run() {
    float c[2][4] = {};
    const int pieces = p.inputs / PIECE;
    for (int first = 0; first * WARPS < pieces; first += PIECES) {
      if (first > 0) load(weights, weight, first);
      load(rows, x, first);
#pragma unroll
      for (int i = 0; i < PIECES; ++i) {
        const uint4 top = rows[0][i], below = rows[1][i];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 right = weights[half][i];
          hopper::multiply_add(c[half], {top.x, below.x, top.y, below.y}, right.x, right.y);
          hopper::multiply_add(c[half], {top.z, below.z, top.w, below.w}, right.z, right.w);
        }
      }
    }
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 8 + lane / 4, expert = half * 8 + lane % 4 * 2 + i % 2;
        sums[(warp * ROWS + row) * EXPERTS + expert] = c[half][i];
      }
    __syncthreads();
    store(threadIdx.x / EXPERTS, threadIdx.x % EXPERTS);
  }

 private:
  using Pieces = uint4[2][PIECES];

  const Logits& p;
  float* sums;  // [WARPS, ROWS, EXPERTS]
  int warp, lane, first_row, first_expert;
  const char *x[2], *weight[2];
  Pieces rows, weights;

  // Loads this warp's pieces from its `first` on, zeros behind the last.
  __device__ void load(Pieces& to, const char* const (&from)[2], int first) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < PIECES; ++i) {
        const int piece = (first + i) * WARPS + warp;
        to[half][i] = piece * PIECE < p.inputs ? *reinterpret_cast<const uint4*>(from[half] + piece * PIECE * 2) : uint4{};
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

static_assert(LogitTile::ROWS * LogitTile::EXPERTS == LogitTile::THREADS, "a thread stores one logit");

}  // namespace mysgl
