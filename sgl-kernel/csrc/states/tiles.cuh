// Tiles of 64 tokens in shared memory, and products of tiles whose left side lies in registers. Knows no recurrence.
//
// A tile has 64 rows of 64 bf16 numbers, 128 bytes, with the 128-byte swizzle: of row r, the sixteen bytes that belong
// at place p lie at place p ^ (r % 8). This is the form in which wgmma reads a right side, along its rows or across.
#pragma once

#include "../gemm/hopper.cuh"
#include "../gemm/wgmma.cuh"

namespace states {

constexpr int TOKENS = 64;                     // rows of a tile
constexpr int COLUMNS = 64;                    // numbers of a row
constexpr int TILE_BYTES = TOKENS * COLUMNS * 2;

// Where the `place`-th sixteen bytes of a row begin in a tile.
__device__ __forceinline__ uint32_t within_tile(int row, int place) {
  return row * 128 + ((place ^ (row & 7)) << 4);
}

// --- copies that the threads start themselves ------------------------------------------------------------------------

// Sixteen bytes, or zeros in their place.
__device__ __forceinline__ void copy_or_clear(uint32_t target, const void* source, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(there ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void copy_or_clear_float(uint32_t target, const float* source, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(there ? 4 : 0)
               : "memory");
}

__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all groups but the last PENDING of this thread are there, also for wgmma.
template <int PENDING>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;\nfence.proxy.async.shared::cta;" ::"n"(PENDING) : "memory");
}

// --- four blocks of eight by eight numbers, turned -------------------------------------------------------------------

__device__ __forceinline__ void load_turned(uint32_t (&pairs)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void store_turned(uint32_t address, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

__device__ __forceinline__ uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ float2 unpacked(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

// --- products --------------------------------------------------------------------------------------------------------

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

  __device__ __forceinline__ void set(const Square& x) {
#pragma unroll
    for (int j = 0; j < 8; ++j) set(j, x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
  }
};

// d += left right, or without what d holds if not `add`. ACROSS: the rows of right's tile are the rows of the product's
// right side; otherwise they are its columns.
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

template <bool ACROSS>
__device__ __forceinline__ void multiply(Square& d, const Left& left, uint32_t tile, bool add) {
  // Sixteen rows further, or sixteen numbers of each row.
  constexpr uint64_t advance = ACROSS ? (16 * 128) >> 4 : hopper::ADVANCE;
  const uint64_t right = hopper::operand(tile);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    multiply_step<ACROSS ? 1 : 0>(d, left.steps[step], right + step * advance, add || step > 0);
}

}  // namespace states
