// The instructions that decode attention is made of, and the type of its values (-DHALF for fp16, else bf16).

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

#ifdef HALF
using Value = __half;
#else
using Value = __nv_bfloat16;
#endif

constexpr unsigned ALL = 0xffffffffu;  // lanes

__device__ __forceinline__ void let_dependents_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_primary() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

__device__ __forceinline__ void close_stage() { asm volatile("cp.async.commit_group;"); }

template <int PENDING>
__device__ __forceinline__ void await_stage() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_turned(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ uint32_t turned(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef HALF
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
#endif
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t packed(float low, float high) {
#ifdef HALF
    __half2 pair = __floats2half2_rn(low, high);
#else
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
#endif
    return *reinterpret_cast<uint32_t*>(&pair);
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Over the eight lanes that hold the same queries.
template <class F>
__device__ __forceinline__ float over_keys(float x, F f) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x = f(x, __shfl_xor_sync(ALL, x, distance));
    return x;
}

// The same for all lanes, and the compiler knows.
__device__ __forceinline__ int this_warp() { return __shfl_sync(ALL, threadIdx.x / 32, 0); }

}  // namespace
