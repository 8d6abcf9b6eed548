// What csrc/states/tiles.cuh asks of a warp, by fibers. Addresses in shared memory are offsets.
#pragma once
#include "emulated_hopper.h"

namespace states {

using namespace hopper;

inline void load_blocks(uint32_t (&pairs)[4], uint32_t address) {
  uint64_t all[32];
  emulated::share(address, all);
  for (int m = 0; m < 4; ++m) pairs[m] = shared_at<uint32_t>(all[m * 8 + lane_here() / 4] + lane_here() % 4 * 4);
}
inline uint16_t& turned_at(const uint64_t (&all)[32], int m, int one) {
  return shared_at<uint16_t>(all[m * 8 + lane_here() % 4 * 2 + one] + lane_here() / 4 * 2);
}
inline void load_turned(uint32_t (&pairs)[4], uint32_t address) {
  uint64_t all[32];
  emulated::share(address, all);
  for (int m = 0; m < 4; ++m) pairs[m] = turned_at(all, m, 0) | static_cast<uint32_t>(turned_at(all, m, 1)) << 16;
}
inline void store_turned(uint32_t address, const uint32_t (&pairs)[4]) {
  uint64_t all[32];
  emulated::share(address, all);
  for (int m = 0; m < 4; ++m)
    for (int one = 0; one < 2; ++one) turned_at(all, m, one) = static_cast<uint16_t>(pairs[m] >> 16 * one);
}

// By a warpgroup, whose warps have sixteen rows each.
template <bool ACROSS, class Left>
void multiply(float (&d)[32], const Left& left, uint32_t tile, bool add) {
  uint64_t parts[4][2][32];
  for (int step = 0; step < 4; ++step)
    for (int i = 0; i < 2; ++i)
      emulated::share(left.steps[step][2 * i] | static_cast<uint64_t>(left.steps[step][2 * i + 1]) << 32, parts[step][i]);
  const auto right = [&](int k, int n) {
    const int row = ACROSS ? k : n, number = ACROSS ? n : k;
    return widened(shared_at<uint16_t>(tile + row * 128 + ((number / 8 ^ row % 8) << 4) + number % 8 * 2));
  };
  for (int i = 0; i < 32; ++i) {
    const int below = i / 2 % 2, n = i / 4 * 8 + lane_here() % 4 * 2 + i % 2;
    float sum = add ? d[i] : 0.f;
    for (int k = 0; k < 64; ++k) {
      const int lane = lane_here() / 4 * 4 + k % 8 / 2, shift = 32 * below + k % 2 * 16;
      sum += widened(parts[k / 16][k % 16 / 8][lane] >> shift & 0xffff) * right(k, n);
    }
    d[i] = sum;
  }
}

}  // namespace states
