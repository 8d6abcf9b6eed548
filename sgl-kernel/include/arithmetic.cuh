// Functions of one number, and sums over a warp.

#pragma once

constexpr float LOG2E = 1.4426950408889634f;

// 2^x by one instruction; numbers too small for float32's exponents become 0.
__device__ __forceinline__ float power_of_2(float x) {
#ifdef MYSGL_EMULATED
    return std::exp2(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// x * sigmoid(x), with a fast division, whose error is far below rounding to sixteen bits.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }

// For all lanes.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}
