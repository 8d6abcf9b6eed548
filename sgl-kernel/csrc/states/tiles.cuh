// Tiles of 64 tokens in shared memory, and how they come there and are read by warps. Knows no recurrence.
//
// A tile has 64 rows of 64 bf16 numbers, 128 bytes, with the 128-byte swizzle: of row r, the sixteen bytes that belong
// at place p lie at place p ^ (r % 8). So eight rows of one place lie in different banks, and wgmma reads this form.
#pragma once

#ifndef MYSGL_EMULATED
#include "../gemm/hopper.cuh"
#endif

namespace states {

constexpr int DIM = 128;                       // of keys and of values
constexpr int TOKENS = 64;                     // rows of a tile
constexpr int COLUMNS = 64;                    // numbers of a row
constexpr int TILE_BYTES = TOKENS * COLUMNS * 2;

// Where the `place`-th sixteen bytes of a row begin in a tile.
__device__ __forceinline__ uint32_t within_tile(int row, int place) {
  return row * 128 + ((place ^ (row & 7)) << 4);
}

#ifndef MYSGL_EMULATED

using hopper::shared_address;

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

// --- four blocks of eight by eight numbers ---------------------------------------------------------------------------
//
// Lanes 8 m to 8 m + 7 give the addresses of the rows of block m. A lane gets two neighbours of row lane / 4 of each
// block, from column lane % 4 * 2 on; turned, of column lane / 4.

__device__ __forceinline__ void load_blocks(uint32_t (&pairs)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}

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

// c += a b^T for 16 rows of a and 8 of b, 16 deep, by one warp.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b_low, uint32_t b_high) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

__device__ __forceinline__ uint4 load_16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

__device__ __forceinline__ void store_4(uint32_t address, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

#endif

// Where this lane's row of the blocks begins that load_blocks needs: sixteen rows from `row` on, 16 numbers from place
// `place` on. LEFT: in the order in which a product takes its left side, else that of two right sides.
template <bool LEFT>
__device__ __forceinline__ uint32_t lane_in_blocks(int row, int place) {
  const int lane = threadIdx.x % 32, further = lane / 8;
  const int below = LEFT ? further % 2 : further / 2, right = LEFT ? further / 2 : further % 2;
  return within_tile(row + below * 8 + lane % 8, place + right);
}

// Of two times eight rows from `row` on, eight numbers from place `place` on and the next eight, for load_turned and
// store_turned: pairs[2 i + h] are then those of rows 8 i and of numbers 8 h.
__device__ __forceinline__ uint32_t lane_in_turned(int row, int place) {
  return lane_in_blocks<false>(row, place);
}

}  // namespace states
