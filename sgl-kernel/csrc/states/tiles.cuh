// Tiles of 64 tokens in shared memory, and how they come there and are read by warps. Knows no recurrence.
//
// A tile has 64 rows of 64 bf16 numbers, in the form of gemm/swizzle.cuh.
#pragma once

#include "../gemm/swizzle.cuh"
#ifndef MYSGL_EMULATED
#include "../gemm/hopper.cuh"
#include "arithmetic.cuh"
#endif

namespace states {

constexpr int DIM = 128;                       // of keys and of values
constexpr int TOKENS = 64;                     // rows of a tile
constexpr int COLUMNS = 64;                    // numbers of a row
constexpr int TILE_BYTES = TOKENS * COLUMNS * 2;

using hopper::within_tile;

#ifndef MYSGL_EMULATED

using hopper::await_copies;
using hopper::close_copies;
using hopper::copy_or_clear;
using hopper::copy_or_clear_float;
using hopper::load_16;
using hopper::multiply_add;
using hopper::packed;
using hopper::shared_address;
using hopper::store_4;
using hopper::unpacked;

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
