// Tiles in shared memory as the copy engine leaves them and wgmma reads them: rows of 64 numbers of 16 bits, 128 bytes,
// with the 128-byte swizzle. Of row r, the sixteen bytes that belong at place p lie at place p ^ (r % 8), so eight rows
// of one place lie in different banks.
#pragma once

#include <cstdint>

namespace hopper {

constexpr int SWIZZLE_BYTES = 128;

// Where the `place`-th sixteen bytes of a row begin in a tile, which begins at a boundary of 1024 bytes.
__device__ __forceinline__ uint32_t within_tile(int row, int place) {
  return row * SWIZZLE_BYTES + ((place ^ (row & 7)) << 4);
}

}  // namespace hopper
