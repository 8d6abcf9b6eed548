// What csrc/gemm/hopper.cuh and wgmma.cuh ask of a device, by fibers. Addresses in shared memory are offsets; copies and
// products are done when they are asked for.
#pragma once
#include "emulated_cuda.h"

inline uint16_t rounded(float x) {
  const unsigned bits = __float_as_uint(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float widened(uint32_t bits) { return __uint_as_float(bits << 16); }

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float x) : bits(rounded(x)) {}
  operator float() const { return widened(bits); }
};

namespace hopper {

inline uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(static_cast<const char*>(at) - mysgl::shared_memory());
}

template <typename T>
T& shared_at(uint32_t address) {
  return *reinterpret_cast<T*>(mysgl::shared_memory() + address);
}

inline void copy_or_clear(uint32_t target, const void* source, bool there) {
  std::memset(&shared_at<char>(target), 0, 16);
  if (there) std::memcpy(&shared_at<char>(target), source, 16);
}
inline void copy_or_clear_float(uint32_t target, const float* source, bool there) {
  shared_at<float>(target) = there ? *source : 0.f;
}
inline void close_copies() {}
template <int PENDING>
void await_copies() {}

inline uint4 load_16(uint32_t address) { return shared_at<uint4>(address); }
inline uint32_t load_4(uint32_t address) { return shared_at<uint32_t>(address); }
inline void store_16(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  shared_at<uint4>(address) = {a, b, c, d};
}
inline void store_4(uint32_t address, uint32_t x) { shared_at<uint32_t>(address) = x; }

inline uint32_t packed(float low, float high) { return rounded(low) | static_cast<uint32_t>(rounded(high)) << 16; }
inline float2 unpacked(uint32_t pair) { return {widened(pair & 0xffff), widened(pair >> 16)}; }

// Of a block: how many arrive in a phase, how many are still to come, and the bytes that are, with the phase's parity.
struct Phases {
  int16_t arrivals, missing;
  int32_t bytes_and_parity;

  void pass() {
    if (missing > 0 || bytes_and_parity / 2 != 0) return;
    missing = arrivals;
    bytes_and_parity ^= 1;
  }
};

inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  const auto count = static_cast<int16_t>(arrivals);
  shared_at<Phases>(barrier) = {count, count, 0};
}
inline void barrier_init_fence() {}
inline void barrier_arrive(uint32_t barrier) {
  --shared_at<Phases>(barrier).missing;
  shared_at<Phases>(barrier).pass();
}
inline void barrier_arrive_after_copies(uint32_t barrier) { barrier_arrive(barrier); }
inline void show_to_engines() {}
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  shared_at<Phases>(barrier).bytes_and_parity += 2 * bytes;
  barrier_arrive(barrier);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (shared_at<Phases>(barrier).bytes_and_parity % 2 == parity) emulated::yield();
}
inline void named_barrier(int id, int threads) { emulated::wait(emulated::cluster->named[id], threads); }
inline uint64_t evict_normal() { return 0; }

inline int lane_here() { return emulated::cluster->now->thread % 32; }

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b_low, uint32_t b_high) {
  uint64_t left[2][32], right[32];
  for (int i = 0; i < 2; ++i) emulated::share(a[2 * i] | static_cast<uint64_t>(a[2 * i + 1]) << 32, left[i]);
  emulated::share(b_low | static_cast<uint64_t>(b_high) << 32, right);
  for (int n = 0; n < 4; ++n) {
    const int row = n / 2, column = lane_here() % 4 * 2 + n % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int there = k % 8 / 2, shift = k % 2 * 16;
      const uint64_t x = left[k / 8][lane_here() / 4 * 4 + there] >> (32 * row + shift);
      const uint64_t y = right[column * 4 + there] >> (32 * (k / 8) + shift);
      sum += widened(x & 0xffff) * widened(y & 0xffff);
    }
    c[n] += sum;
  }
}

}  // namespace hopper

// Of a matrix whose boxes have 64 numbers of some rows.
struct CUtensorMap {
  const __nv_bfloat16* matrix;
  int rows, columns, box_rows;
};

namespace hopper {

inline void copy_box(uint32_t target, const CUtensorMap* map, int column, int row, uint32_t barrier, uint64_t) {
  for (int i = 0; i < map->box_rows; ++i)
    for (int j = 0; j < 64; ++j) {
      const uint32_t at = target + i * 128 + ((j / 8 ^ i % 8) << 4) + j % 8 * 2;
      const bool inside = row + i < map->rows && column + j < map->columns;
      shared_at<uint16_t>(at) = inside ? map->matrix[long(row + i) * map->columns + column + j].bits : 0;
    }
  shared_at<Phases>(barrier).bytes_and_parity -= 2 * 128 * map->box_rows;
  shared_at<Phases>(barrier).pass();
}

inline void copy_in(uint32_t target, const void* source, int bytes, uint32_t barrier) {
  std::memcpy(&shared_at<char>(target), source, bytes);
  shared_at<Phases>(barrier).bytes_and_parity -= 2 * bytes;
  shared_at<Phases>(barrier).pass();
}
inline void copy_out(void* target, uint32_t source, int bytes) {
  std::memcpy(target, &shared_at<char>(source), bytes);
}
template <int PENDING>
void await_taken() {}

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int PENDING>
void wgmma_wait() {}

constexpr uint64_t ADVANCE = 2;
inline uint64_t operand(uint32_t address) { return address >> 4; }

template <int N>
struct Wgmma {
  static float at(uint64_t operand, int row, int k) {
    const uint32_t address = static_cast<uint32_t>(operand << 4) + row * 128 + k * 2;
    return widened(shared_at<uint16_t>(address ^ (address >> 7 & 7) << 4));
  }

  static void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
    const int thread = emulated::cluster->now->thread % 128;
    for (int half = 0; half < 2; ++half) {
      float left[16];
      for (int k = 0; k < 16; ++k) left[k] = at(a, thread / 32 * 16 + thread % 32 / 4 + 8 * half, k);
      for (int j = 0; j < N / 8; ++j)
        for (int one = 0; one < 2; ++one) {
          float& sum = d[4 * j + 2 * half + one];
          if (!add) sum = 0.f;
          for (int k = 0; k < 16; ++k) sum += left[k] * at(b, 8 * j + thread % 4 * 2 + one, k);
        }
    }
  }
};

}  // namespace hopper
