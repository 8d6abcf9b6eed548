// Values that lanes exchange before they are stored, sixteen bytes for each lane.
#pragma once

#include <cstdint>

__device__ __forceinline__ void swap_lanes(uint32_t& low, uint32_t& high, int lane_bit, bool upper) {
  uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, lane_bit);
  if (upper) {
    low = got;
  } else {
    high = got;
  }
}

// Four neighbouring lanes hold two values each of four blocks; afterwards each holds all eight of one block.
__device__ __forceinline__ uint4 block_of_lane(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int lane) {
  swap_lanes(a, b, 1, lane & 1);
  swap_lanes(c, d, 1, lane & 1);
  swap_lanes(a, c, 2, lane & 2);
  swap_lanes(b, d, 2, lane & 2);
  return uint4{a, b, c, d};
}
