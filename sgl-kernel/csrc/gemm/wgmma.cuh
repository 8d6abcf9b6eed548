// wgmma: 64 rows times N columns, 16 deep, bfloat16 in shared memory, float32 sums in the registers of a warpgroup.
//
// Both operands lie in shared memory as the copy engine leaves boxes of 64 values (128 bytes) a row with the 128-byte
// swizzle: eight rows to an atom of 1024 bytes, atoms one after another. In the sums, thread t of the warpgroup has for
// block j of eight columns: d[4j], d[4j + 1] at row t / 32 * 16 + t % 32 / 4, columns 8j + t % 4 * 2 and the next, and
// d[4j + 2], d[4j + 3] eight rows below.
#pragma once

#include <cstdint>

#include "swizzle.cuh"

namespace hopper {

// Of an operand that begins at a 1024-byte boundary; 16 values further along is ADVANCE more.
__device__ __forceinline__ uint64_t operand(uint32_t address) {
  constexpr uint64_t atom = 1024, swizzle_128 = 1;
  return (uint64_t(address & 0x3ffff) >> 4) | (uint64_t(1) << 16) | ((atom >> 4) << 32) | (swizzle_128 << 62);
}

constexpr uint64_t ADVANCE = 32 >> 4;

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most PENDING committed groups are under way.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

template <int N>
struct Wgmma;

// PTX wants every register by number: eight to a line, one line more for sixteen columns more.
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_32 REGISTERS_16 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_48 REGISTERS_32 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_64 REGISTERS_48 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_80 REGISTERS_64 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define REGISTERS_96 REGISTERS_80 ", " "%40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_112 REGISTERS_96 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_128 REGISTERS_112 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_144 REGISTERS_128 ", " "%64, %65, %66, %67, %68, %69, %70, %71"
#define REGISTERS_160 REGISTERS_144 ", " "%72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_176 REGISTERS_160 ", " "%80, %81, %82, %83, %84, %85, %86, %87"
#define REGISTERS_192 REGISTERS_176 ", " "%88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_208 REGISTERS_192 ", " "%96, %97, %98, %99, %100, %101, %102, %103"
#define REGISTERS_224 REGISTERS_208 ", " "%104, %105, %106, %107, %108, %109, %110, %111"
#define REGISTERS_240 REGISTERS_224 ", " "%112, %113, %114, %115, %116, %117, %118, %119"
#define REGISTERS_256 REGISTERS_240 ", " "%120, %121, %122, %123, %124, %125, %126, %127"
#define EIGHT(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define SUMS_16 EIGHT(0)
#define SUMS_32 SUMS_16, EIGHT(8)
#define SUMS_48 SUMS_32, EIGHT(16)
#define SUMS_64 SUMS_48, EIGHT(24)
#define SUMS_80 SUMS_64, EIGHT(32)
#define SUMS_96 SUMS_80, EIGHT(40)
#define SUMS_112 SUMS_96, EIGHT(48)
#define SUMS_128 SUMS_112, EIGHT(56)
#define SUMS_144 SUMS_128, EIGHT(64)
#define SUMS_160 SUMS_144, EIGHT(72)
#define SUMS_176 SUMS_160, EIGHT(80)
#define SUMS_192 SUMS_176, EIGHT(88)
#define SUMS_208 SUMS_192, EIGHT(96)
#define SUMS_224 SUMS_208, EIGHT(104)
#define SUMS_240 SUMS_224, EIGHT(112)
#define SUMS_256 SUMS_240, EIGHT(120)

#define WGMMA(N, A, B, C)                                                                                 \
  template <>                                                                                             \
  struct Wgmma<N> {                                                                                       \
    /* d = a b^T, added to what d holds unless `add` is 0 */                                              \
    static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\n"                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS_##N "}, %" #A   \
                   ", %" #B ", p, 1, 1, 0, 0;\n}"                                                         \
                   : SUMS_##N                                                                             \
                   : "l"(a), "l"(b), "r"(add));                                                           \
    }                                                                                                     \
  };

WGMMA(16, 8, 9, 10)
WGMMA(32, 16, 17, 18)
WGMMA(48, 24, 25, 26)
WGMMA(64, 32, 33, 34)
WGMMA(80, 40, 41, 42)
WGMMA(96, 48, 49, 50)
WGMMA(112, 56, 57, 58)
WGMMA(128, 64, 65, 66)
WGMMA(144, 72, 73, 74)
WGMMA(160, 80, 81, 82)
WGMMA(176, 88, 89, 90)
WGMMA(192, 96, 97, 98)
WGMMA(208, 104, 105, 106)
WGMMA(224, 112, 113, 114)
WGMMA(240, 120, 121, 122)
WGMMA(256, 128, 129, 130)

#undef WGMMA
#undef EIGHT

}  // namespace hopper
