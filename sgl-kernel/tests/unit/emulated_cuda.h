// The few names of CUDA that sources of csrc use, for a compiler of C++ alone: a thread of a cluster is a fiber, which
// runs until it comes to a barrier.
#pragma once
#define MYSGL_EMULATED

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __host__
#define __forceinline__ inline

using std::max;
using std::min;

struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
struct float2 {
  float x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Dim {
  unsigned x;
};

namespace emulated {

struct Barrier {
  int waiting = 0;
  int round = 0;
};

struct Warp {
  Barrier barrier;
  uint64_t lanes[32];
};

// Its first turn begins at `context`; from then on it is left and entered by jumps, which need no system call.
struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  bool begun = false;
  std::vector<char> stack;
  int block, thread;
  bool done = false;
};

struct Cluster {
  int blocks, threads;
  std::vector<std::vector<uint64_t>> memory;
  std::vector<Barrier> of_blocks;
  std::vector<Warp> warps;
  Barrier whole, named[16];
  std::vector<std::unique_ptr<Fiber>> fibers;
  jmp_buf home;
  Fiber* now = nullptr;
  std::function<void()> kernel;
};

inline Cluster* cluster = nullptr;

inline void yield() {
  if (_setjmp(cluster->now->jump) == 0) _longjmp(cluster->home, 1);
}

inline void wait(Barrier& barrier, int count) {
  const int round = barrier.round;
  if (++barrier.waiting == count) {
    barrier.waiting = 0;
    ++barrier.round;
    return;
  }
  while (barrier.round == round) yield();
}

inline Warp& warp() { return cluster->warps[(cluster->now->block * cluster->threads + cluster->now->thread) / 32]; }

// What all lanes of the warp hand in.
inline void share(uint64_t mine, uint64_t (&all)[32]) {
  Warp& of = warp();
  of.lanes[cluster->now->thread % 32] = mine;
  wait(of.barrier, 32);
  std::memcpy(all, of.lanes, sizeof all);
  wait(of.barrier, 32);
}

inline void enter() {
  cluster->kernel();
  cluster->now->done = true;
  _longjmp(cluster->home, 1);
}

// Run one cluster to its end.
inline void run(int blocks, int threads, int64_t bytes, std::function<void()> kernel) {
  Cluster made;
  cluster = &made;
  made.blocks = blocks;
  made.threads = threads;
  made.memory.assign(blocks, std::vector<uint64_t>((bytes + 7) / 8 + 2, 0x7FC000007FC00000ull));
  made.of_blocks.resize(blocks);
  made.warps.resize(blocks * threads / 32);
  made.kernel = std::move(kernel);
  for (int i = 0; i < blocks * threads; ++i) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack.resize(1 << 16);
    fiber->block = i / threads;
    fiber->thread = i % threads;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.data();
    fiber->context.uc_stack.ss_size = fiber->stack.size();
    makecontext(&fiber->context, enter, 0);
    made.fibers.push_back(std::move(fiber));
  }
  for (bool left = true; left;) {
    left = false;
    for (auto& fiber : made.fibers) {
      if (fiber->done) continue;
      left = true;
      made.now = fiber.get();
      if (_setjmp(made.home) != 0) continue;
      if (fiber->begun) _longjmp(fiber->jump, 1);
      fiber->begun = true;
      setcontext(&fiber->context);
    }
  }
  cluster = nullptr;
}

}  // namespace emulated

#define threadIdx (Dim{static_cast<unsigned>(emulated::cluster->now->thread)})

inline void __syncthreads() {
  emulated::wait(emulated::cluster->of_blocks[emulated::cluster->now->block], emulated::cluster->threads);
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  uint64_t all[32];
  emulated::share(value, all);
  unsigned sum = 0;
  for (uint64_t one : all) sum += static_cast<unsigned>(one);
  return sum;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  uint64_t all[32];
  emulated::share(value, all);
  return static_cast<unsigned>(*std::max_element(all, all + 32));
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  uint64_t all[32];
  emulated::share(value, all);
  return static_cast<unsigned>(*std::min_element(all, all + 32));
}
inline int __reduce_min_sync(unsigned, int value) {
  uint64_t all[32];
  emulated::share(static_cast<unsigned>(value), all);
  int least = value;
  for (uint64_t one : all) least = min(least, static_cast<int>(static_cast<unsigned>(one)));
  return least;
}
inline unsigned long long __shfl_up_sync(unsigned, unsigned long long value, int step) {
  uint64_t all[32];
  emulated::share(value, all);
  const int lane = emulated::cluster->now->thread % 32;
  return all[lane >= step ? lane - step : lane];
}
inline unsigned long long __shfl_xor_sync(unsigned, unsigned long long value, int mask) {
  uint64_t all[32];
  emulated::share(value, all);
  return all[(emulated::cluster->now->thread % 32) ^ mask];
}
inline void __syncwarp() { emulated::wait(emulated::warp().barrier, 32); }
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline int __shfl_up_sync(unsigned mask, int value, int step) {
  return static_cast<int>(__shfl_up_sync(mask, static_cast<unsigned long long>(static_cast<unsigned>(value)), step));
}
inline unsigned __match_any_sync(unsigned, int value) {
  uint64_t all[32];
  emulated::share(static_cast<unsigned>(value), all);
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane) same |= static_cast<unsigned>(all[lane] == static_cast<unsigned>(value)) << lane;
  return same;
}
inline int atomicAdd(int* to, int value) {
  const int before = *to;
  *to += value;
  return before;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline float __shfl_up_sync(unsigned mask, float value, int step) {
  return __uint_as_float(__shfl_up_sync(mask, static_cast<unsigned long long>(__float_as_uint(value)), step));
}
inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int other) {
  return static_cast<unsigned>(__shfl_xor_sync(mask, static_cast<unsigned long long>(value), other));
}
inline float __shfl_xor_sync(unsigned mask, float value, int other) {
  return __uint_as_float(__shfl_xor_sync(mask, static_cast<unsigned long long>(__float_as_uint(value)), other));
}
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }

namespace mysgl {
inline char* shared_memory() {
  auto& memory = emulated::cluster->memory[emulated::cluster->now->block];
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
}
inline int cluster_rank() { return emulated::cluster->now->block; }
inline void cluster_sync() {
  emulated::wait(emulated::cluster->whole, emulated::cluster->blocks * emulated::cluster->threads);
}
template <typename T>
T* in_block(T* mine, int rank) {
  const int64_t offset = reinterpret_cast<char*>(mine) - shared_memory();
  auto& memory = emulated::cluster->memory[rank];
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16 + offset);
}
}  // namespace mysgl

#include "../../include/arithmetic.cuh"
