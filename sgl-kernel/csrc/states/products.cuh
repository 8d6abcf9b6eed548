// Products by a warpgroup of wgmma, whose left sides lie in registers and whose right sides are tiles.
#pragma once

#include "tiles.cuh"
#ifndef MYSGL_EMULATED
#include "../gemm/wgmma.cuh"
#endif

namespace states {

// A warpgroup's 64 by 64 numbers; which thread has which is said in wgmma.cuh.
using Square = float[32];

// The same numbers in bf16 as the left side of a product: four steps of sixteen columns.
struct Left {
  uint32_t steps[4][4];

  // Columns 2 p, 2 p + 1 of this thread's place in block j of eight columns: upper row, then the one eight below.
  __device__ __forceinline__ void set(int j, float upper_0, float upper_1, float lower_0, float lower_1) {
    steps[j / 2][j % 2 * 2] = packed(upper_0, upper_1);
    steps[j / 2][j % 2 * 2 + 1] = packed(lower_0, lower_1);
  }

  __device__ __forceinline__ uint32_t upper(int j) const { return steps[j / 2][j % 2 * 2]; }
  __device__ __forceinline__ uint32_t lower(int j) const { return steps[j / 2][j % 2 * 2 + 1]; }

  __device__ __forceinline__ void set(const Square& x) {
#pragma unroll
    for (int j = 0; j < 8; ++j) set(j, x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
  }
};

#ifndef MYSGL_EMULATED

using hopper::wgmma_commit;
using hopper::wgmma_fence;
using hopper::wgmma_wait;

// One of four steps, sixteen deep.
template <int ACROSS>
__device__ __forceinline__ void multiply_step(Square& d, const uint32_t (&a)[4], uint64_t right, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_64
               "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                 "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                 "+f"(d[30]), "+f"(d[31])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "r"(add), "n"(ACROSS));
}

// d += left right, or without what d holds if not `add`. ACROSS: the rows of right's tile are the rows of the product's
// right side; otherwise they are its columns.
template <bool ACROSS>
__device__ __forceinline__ void multiply(Square& d, const Left& left, uint32_t tile, bool add) {
  // Sixteen rows further, or sixteen numbers of each row.
  constexpr uint64_t advance = ACROSS ? (16 * 128) >> 4 : hopper::ADVANCE;
  const uint64_t right = hopper::operand(tile);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    multiply_step<ACROSS ? 1 : 0>(d, left.steps[step], right + step * advance, add || step > 0);
}

#endif

}  // namespace states
