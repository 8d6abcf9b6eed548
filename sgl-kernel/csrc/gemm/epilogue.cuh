// What happens to the sums of a tile: bias, gate, rounding, and the way to memory.
#pragma once

#include "gate.cuh"
#include "hopper.cuh"
#include "lanes.cuh"

// Where a tile of weight rows belongs. A gated product multiplies as many rows of the gate as of the other half, the
// gate's first, and its output is half as wide as the weight.
struct Target {
  __nv_bfloat16* out;
  const __nv_bfloat16* bias;  // of all weight rows, or null
  int rows;                   // of out
  int width;                  // of out, a multiple of 8
  bool gated;
  Gate gate;
};

__device__ __forceinline__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

// gate_rounded of values that are rounded first, as if the product had been written and read again.
__device__ __forceinline__ float gate(const Gate& of, float g, float up) {
  return gate_rounded(of, rounded(g), rounded(up));
}

using hopper::packed;

// gate_rounded of two pairs.
__device__ __forceinline__ uint32_t gate_pairs(const Gate& of, uint32_t gates, uint32_t ups) {
  const float2 g = hopper::unpacked(gates), up = hopper::unpacked(ups);
  return packed(gate_rounded(of, g.x, up.x), gate_rounded(of, g.y, up.y));
}

// BLOCKS blocks of eight columns from `column` on; `row` and eight below are this thread's rows.
template <int BLOCKS, int SUMS>
__device__ __forceinline__ void store_blocks(const Target& to, const float (&d)[SUMS], int row, int column, int lane) {
  const int quarter = lane % 4;
#pragma unroll
  for (int first = 0; first < BLOCKS; first += 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * (first + j) + 2 * half;
        pairs[j] = first + j < BLOCKS ? packed(d[at], d[at + 1]) : 0;
      }
      const uint4 values = block_of_lane(pairs[0], pairs[1], pairs[2], pairs[3], quarter);
      const int block = first + quarter, at = column + 8 * block;
      if (block < BLOCKS && row + 8 * half < to.rows && at < to.width) {
        *reinterpret_cast<uint4*>(to.out + int64_t(row + 8 * half) * to.width + at) = values;
      }
    }
  }
}

// To the sums of a tile of TILE weight rows whose first column is `column`.
template <int TILE>
__device__ __forceinline__ void add_bias(const Target& to, float (&d)[TILE / 2], int column) {
  if (to.bias == nullptr) return;
#pragma unroll
  for (int j = 0; j < TILE / 8; ++j) {
    const int second = to.gated && j >= TILE / 16;
    const int inside = column + 8 * (j - second * (TILE / 16)) + threadIdx.x % 4 * 2;
    if (inside < to.width) {
      const float2 added = __bfloat1622float2(
          *reinterpret_cast<const __nv_bfloat162*>(to.bias + second * to.width + inside));
      d[4 * j] += added.x, d[4 * j + 1] += added.y;
      d[4 * j + 2] += added.x, d[4 * j + 3] += added.y;
    }
  }
}

// A whole tile straight from the registers of its warpgroup.
template <int TILE>
__device__ __forceinline__ void store_sums(const Target& to, float (&d)[TILE / 2], int tile, int first_row) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int row = first_row + thread / 32 * 16 + lane / 4;
  const int column = tile * (to.gated ? TILE / 2 : TILE);
  add_bias<TILE>(to, d, column);
  if (to.gated) {
#pragma unroll
    for (int i = 0; i < TILE / 4; ++i) d[i] = gate(to.gate, d[i], d[i + TILE / 4]);
    store_blocks<TILE / 16>(to, d, row, column, lane);
  } else {
    store_blocks<TILE / 8>(to, d, row, column, lane);
  }
}

// A gated tile whose sums are there, rounded. It goes to memory piece by piece while the next one is multiplied.
template <int TILE>
struct Finished {
  static constexpr int BLOCKS = TILE / 16;            // of eight columns
  static constexpr int PIECES = (BLOCKS + 3) / 4 * 2;  // four of them in every eighth row

  uint32_t pairs[TILE / 4];
  __nv_bfloat16* at = nullptr;  // the thread's first row, the tile's first column; null: nothing is finished
  int rows, columns;            // that there are from there on

  __device__ __forceinline__ void take(const Target& to, float (&d)[TILE / 2], int tile, int first_row) {
    const int thread = threadIdx.x % 128;
    const int row = first_row + thread / 32 * 16 + thread % 32 / 4, column = tile * (TILE / 2);
    add_bias<TILE>(to, d, column);
#pragma unroll
    for (int i = 0; i < TILE / 4; ++i) pairs[i] = packed(d[2 * i], d[2 * i + 1]);
    at = to.out + int64_t(row) * to.width + column;
    rows = to.rows - row, columns = to.width - column;
  }

  template <int PIECE>
  __device__ __forceinline__ void store(const Target& to) const {
    constexpr int first = PIECE / 2 * 4, half = PIECE % 2;
    const int quarter = threadIdx.x % 4, column = 8 * (first + quarter);
    uint32_t gated[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = 2 * (first + j) + half;
      gated[j] = first + j < BLOCKS ? gate_pairs(to.gate, pairs[i], pairs[i + TILE / 8]) : 0;
    }
    const uint4 values = block_of_lane(gated[0], gated[1], gated[2], gated[3], quarter);
    if (first + quarter < BLOCKS && 8 * half < rows && column < columns) {
      *reinterpret_cast<uint4*>(at + int64_t(8 * half) * to.width + column) = values;
    }
  }

  template <int PIECE = 0>
  __device__ __forceinline__ void store_all(const Target& to) const {
    if constexpr (PIECE < PIECES) {
      store<PIECE>(to);
      store_all<PIECE + 1>(to);
    }
  }
};

constexpr int MAX_SPLIT = 8;  // the largest cluster that every device takes

// Partial sums of one tile in the shared memory of `split` blocks of the cluster: rows of TILE + 8 values, so that the
// rows that a warp writes fall into different banks.
template <int TILE>
struct Partials {
  static constexpr int ROW = TILE + 8;

  static __device__ __forceinline__ void keep(float* memory, const float (&d)[TILE / 2], int first_row, int rows) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int row = first_row + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half < rows) {
        float* at = memory + (row + 8 * half) * ROW + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < TILE / 8; ++j) {
          *reinterpret_cast<float2*>(at + 8 * j) = make_float2(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
        }
      }
    }
  }

  // Eight sums at (row, column) of the tile, the blocks' parts added in their order. Block i has rank base + i * step.
  static __device__ __forceinline__ void add(
      float (&sum)[8], uint32_t memory, int row, int column, int split, int base, int step) {
    const uint32_t at = memory + (row * ROW + column) * 4;
    float4 low[MAX_SPLIT], high[MAX_SPLIT];  // all on their way before the first is added
#pragma unroll
    for (int part = 0; part < MAX_SPLIT; ++part) {
      if (part < split) {
        low[part] = hopper::load_from(at, base + part * step);
        high[part] = hopper::load_from(at + 16, base + part * step);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = 0.0f;
#pragma unroll
    for (int part = 0; part < MAX_SPLIT; ++part) {
      if (part < split) {
        sum[0] += low[part].x, sum[1] += low[part].y, sum[2] += low[part].z, sum[3] += low[part].w;
        sum[4] += high[part].x, sum[5] += high[part].y, sum[6] += high[part].z, sum[7] += high[part].w;
      }
    }
  }

  // This block's share of the tile: every split-th run of eight columns for each of its threads.
  static __device__ __forceinline__ void reduce(
      const Target& to, uint32_t memory, int tile, int first_row, int rows, int split, int part, int base, int step,
      int threads) {
    const int runs = (to.gated ? TILE / 2 : TILE) / 8;
    for (int i = part * threads + threadIdx.x; i < rows * runs; i += split * threads) {
      const int row = i / runs, inside = i % runs * 8, column = tile * runs * 8 + inside;
      float sum[8], up[8];
      add(sum, memory, row, inside, split, base, step);
      if (to.gated) add(up, memory, row, TILE / 2 + inside, split, base, step);
      if (column >= to.width) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (to.bias != nullptr) {
          sum[j] += __bfloat162float(to.bias[column + j]);
          if (to.gated) up[j] += __bfloat162float(to.bias[to.width + column + j]);
        }
        if (to.gated) sum[j] = gate(to.gate, sum[j], up[j]);
      }
      *reinterpret_cast<uint4*>(to.out + int64_t(first_row + row) * to.width + column) = make_uint4(
          packed(sum[0], sum[1]), packed(sum[2], sum[3]), packed(sum[4], sum[5]), packed(sum[6], sum[7]));
    }
  }
};
