// The instructions that decode attention is made of, and the type of its values (-DHALF for fp16, else bf16).

#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "arithmetic.cuh"

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

// Barriers in shared memory, on which threads arrive and which copies tell how much of them is there.

__device__ __forceinline__ void make_barrier(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// To the copy engine too.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_expecting(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Until the phase of this parity is over; that of parity 1 is, before the first.
__device__ __forceinline__ void await(uint32_t barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@!over bra again;\n"
        "}" ::"r"(barrier), "r"(parity) : "memory");
}

// Lines of 128 bytes from this one on, by the copy engine, which keeps no other access of the multiprocessor waiting.
__device__ __forceinline__ void copy_lines(uint32_t to, const CUtensorMap* map, int line, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {0, %2}], [%3];" ::"r"(to),
        "l"(map), "r"(line), "r"(barrier)
        : "memory");
}

// What this thread wrote to shared memory comes before what the copy engine will.
__device__ __forceinline__ void yield_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void copy_word(uint32_t to, const int* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void await_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ int load_word(uint32_t from) {
    int word;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

__device__ __forceinline__ void clear_16(uint32_t at) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
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

// Over the eight lanes that hold the same queries.
template <class F>
__device__ __forceinline__ float over_keys(float x, F f) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x = f(x, __shfl_xor_sync(ALL, x, distance));
    return x;
}

// The same for all lanes, and the compiler knows. All lanes of the warp must call it: not in a branch of some.
__device__ __forceinline__ int this_warp() { return __shfl_sync(ALL, threadIdx.x / 32, 0); }

}  // namespace
