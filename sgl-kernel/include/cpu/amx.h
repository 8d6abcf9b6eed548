// Tiles of Intel's AMX: eight registers of each thread, of 16 rows of 64 bytes, and products of bfloat16 between them.
//
// The instructions are written out, so a library for AVX512-BF16 has them without other options of the compiler. They
// run where `usable()` says so. Elsewhere, and in the tests of a processor without AMX (MYSGL_EMULATED_TILES), plain C++
// keeps the rules of Intel's manual (volume 2, TDPBF16PS, TILELOADD, LDTILECFG) and ends the program where the
// processor would raise an exception.
#pragma once

#include <cstdint>

#include "cpu/vec.h"

#if defined(__AVX512BF16__) && defined(__linux__) && defined(__x86_64__) && !defined(MYSGL_EMULATED_TILES)
#define MYSGL_REAL_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <cstdlib>
#endif

namespace mysgl::amx {

constexpr int TILES = 8;
constexpr int SIDE = 16;   // rows of a tile, and floats of a row
constexpr int DEPTH = 32;  // bfloat16 of a row: what one instruction sums over
constexpr int ROW_BYTES = 64;

// What LDTILECFG reads: the sizes of each tile.
struct alignas(64) Config {
  uint8_t palette, start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// All tiles whole.
constexpr Config whole_tiles() {
  Config config{};
  config.palette = 1;
  for (int i = 0; i < TILES; i++) config.row_bytes[i] = ROW_BYTES, config.rows[i] = SIDE;
  return config;
}

#ifdef MYSGL_REAL_TILES

// True if this process may use tiles. Linux is asked once, since it keeps more memory for threads that use them; threads
// that exist already may use them then, too.
inline bool usable() {
  static const bool answer = [] {
    constexpr unsigned BF16_BIT = 1u << 22, TILE_BIT = 1u << 24;  // of CPUID 7, 0, EDX
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;   // of arch_prctl; a component of the saved state
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (BF16_BIT | TILE_BIT)) != (BF16_BIT | TILE_BIT)) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  }();
  return answer;
}

// The tiles of this thread get these sizes and become zero.
inline void configure(const Config &config) { asm volatile("ldtilecfg %0" ::"m"(config) : "memory"); }

// The thread has no tiles any more, so the system need not save them.
inline void release() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

// Rows are `stride` bytes apart. Reads memory: whoever writes it first must be done (`written`).
template <int T>
inline void load(const void *from, long stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride));
}

template <int T>
inline void store(void *to, long stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
}

// Floats of C += rows of A times columns of B. A row of B is the pairs (cpu/vec.h) of all columns.
template <int C, int A, int B>
inline void dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// What was written before is in memory, where `load` reads it.
inline void written() { asm volatile("" ::: "memory"); }

#else

inline void require(bool condition) {
  if (!condition) std::abort();
}

struct Registers {
  bool configured = false;
  Config config{};
  unsigned char bytes[TILES][SIDE][ROW_BYTES];

  const uint16_t &width(int tile) const {
    require(configured && config.rows[tile] > 0);
    return config.row_bytes[tile];
  }
};

inline Registers &registers() {
  thread_local Registers of_this_thread;
  return of_this_thread;
}

inline bool usable() {
#ifdef MYSGL_EMULATED_TILES
  return true;
#else
  return false;
#endif
}

inline void configure(const Config &config) {
  require(config.palette == 1 && config.start_row == 0);
  for (int i = 0; i < 16; i++) {
    require(config.rows[i] <= SIDE && config.row_bytes[i] <= ROW_BYTES && config.row_bytes[i] % 4 == 0);
    require((config.rows[i] == 0) == (config.row_bytes[i] == 0) && (i < TILES || config.rows[i] == 0));
  }
  registers().configured = true, registers().config = config;
  std::memset(registers().bytes, 0, sizeof registers().bytes);
}

inline void release() { registers().configured = false; }

template <int T>
inline void zero() {
  registers().width(T);
  std::memset(registers().bytes[T], 0, sizeof registers().bytes[T]);
}

template <int T>
inline void load(const void *from, long stride) {
  const long width = registers().width(T);
  zero<T>();
  for (int row = 0; row < registers().config.rows[T]; row++)
    std::memcpy(registers().bytes[T][row], static_cast<const char *>(from) + row * stride, width);
}

template <int T>
inline void store(void *to, long stride) {
  const long width = registers().width(T);
  for (int row = 0; row < registers().config.rows[T]; row++)
    std::memcpy(static_cast<char *>(to) + row * stride, registers().bytes[T][row], width);
}

// First and second numbers of the pairs are summed apart, and the two sums are added to C.
template <int C, int A, int B>
inline void dot() {
  static_assert(C != A && C != B && A != B);
  Registers &all = registers();
  const int columns = all.width(C) / 4, pairs = all.width(A) / 4;
  require(all.config.rows[C] == all.config.rows[A] && all.config.rows[B] == pairs && all.width(B) == all.width(C));
  for (int m = 0; m < all.config.rows[C]; m++) {
    float apart[2][SIDE] = {}, sums[SIDE];
    bf16 row[DEPTH], line[DEPTH];
    std::memcpy(row, all.bytes[A][m], sizeof row);
    for (int k = 0; k < pairs; k++) {
      std::memcpy(line, all.bytes[B][k], sizeof line);
      for (int n = 0; n < columns; n++)
        for (int half = 0; half < 2; half++)
          apart[half][n] += to_float(row[2 * k + half]) * to_float(line[2 * n + half]);
    }
    std::memcpy(sums, all.bytes[C][m], sizeof sums);
    for (int n = 0; n < columns; n++) sums[n] += apart[0][n] + apart[1][n];
    std::memcpy(all.bytes[C][m], sums, sizeof sums);
  }
}

inline void written() {}

#endif

}  // namespace mysgl::amx
