// Joins the partial results of a query head, in their order.

#pragma once

#include "launch.cuh"
#include "plan.cuh"

namespace {

constexpr int SLICES = DIM > 256 ? DIM / 128 : 1;  // of a query head, each joined by itself
constexpr int WIDTH = DIM / SLICES / 32;           // dimensions of one lane when a warp joins

// Partial results of one query head, weighed as they come.
struct Joined {
    float top, sum, out[WIDTH];

    __device__ __forceinline__ void clear() {
        top = -INFINITY, sum = 0.f;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) out[w] = 0.f;
    }

    __device__ __forceinline__ void add(float lse, const float (&x)[WIDTH]) {
        if (lse == -INFINITY) return;  // nothing was written there
        float higher = fmaxf(top, lse), shrink = power_of_2(top - higher), weight = power_of_2(lse - higher);
        sum = sum * shrink + weight;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) out[w] = out[w] * shrink + x[w] * weight;
        top = higher;
    }

    __device__ __forceinline__ void add(const Joined& other) {
        if (other.sum == 0.f) return;  // nothing was added there; a NaN was, where only the top is -inf
        float higher = fmaxf(top, other.top);
        float shrink = power_of_2(top - higher), weight = power_of_2(other.top - higher);
        sum = sum * shrink + other.sum * weight;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) out[w] = out[w] * shrink + other.out[w] * weight;
        top = higher;
    }

    // A key whose value is zero only takes weight from the others.
    __device__ __forceinline__ void add_sink(float score) { sum += power_of_2(score * LOG2E - top); }

    __device__ __forceinline__ void store(Value* to) const {
        float share = 1.f / sum;
#pragma unroll
        for (int w = 0; w < WIDTH; w += 2)
            *reinterpret_cast<uint32_t*>(to + w) = packed(out[w] * share, out[w + 1] * share);
    }
};

constexpr int JOINERS = 8;  // warps of a block

// From the second level of cache: other multiprocessors wrote it.
__device__ __forceinline__ void load_partial(float (&x)[WIDTH], const float* from) {
#pragma unroll
    for (int w = 0; w < WIDTH; w += 2) {
        float2 pair = __ldcg(reinterpret_cast<const float2*>(from + w));
        x[w] = pair.x, x[w + 1] = pair.y;
    }
}

// The partial results of one query head of one row, by one warp, or, SPLIT, by a block.
template <bool SPLIT>
__global__ void __launch_bounds__(JOINERS * 32) join(const Params p) {
    __shared__ Joined of_warps[SPLIT ? JOINERS : 1][32];
    let_dependents_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, heads = p.kv_heads * p.group;
    const int unit = SPLIT ? blockIdx.x : blockIdx.x * JOINERS + warp;
    const int of_row = unit / SLICES, row = of_row / heads, head = of_row - row * heads;
    const int first = unit % SLICES * (DIM / SLICES) + lane * WIDTH;
    const int2 parts = row < p.rows ? p.joins[row] : int2{0, 0};
    wait_for_primary();
    if (parts.y <= 1) return;
    constexpr int STRIDE = SPLIT ? JOINERS : 1, AT_ONCE = SPLIT ? 8 : 4;
    Joined joined;
    joined.clear();
    for (int i = SPLIT ? warp : 0; i < parts.y; i += STRIDE * AT_ONCE) {
        float lse[AT_ONCE], x[AT_ONCE][WIDTH];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            lse[u] = -INFINITY;
            if (i + u * STRIDE >= parts.y) continue;
            size_t part = size_t(parts.x + i + u * STRIDE) * heads + head;
            lse[u] = __ldcg(p.partial_lse + part);
            load_partial(x[u], p.partial + part * DIM + first);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) joined.add(lse[u], x[u]);
    }
    if (SPLIT) {
        of_warps[warp][lane] = joined;
        __syncthreads();
        if (warp > 0) return;
#pragma unroll
        for (int w = 1; w < JOINERS; ++w) joined.add(of_warps[w][lane]);
    }
    if (p.sinks != nullptr) joined.add_sink(p.sinks[head]);
    joined.store(p.out + (size_t(row) * heads + head) * DIM + first);
}

// `lean`: one warp for each query head instead of a block.
cudaError_t launch_join(const Params& p, bool overlap, bool lean, cudaStream_t stream) {
    const auto joining = lean ? join<false> : join<true>;
    // A multiprocessor divides its memory anew, for which it must be empty, when a kernel asks for another division.
    const cudaError_t error = cudaFuncSetAttribute(
        joining, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
    const int units = p.rows * p.kv_heads * p.group * SLICES;
    return launch(joining, lean ? (units + JOINERS - 1) / JOINERS : units, JOINERS * 32, 0, stream, overlap, p);
}

}  // namespace
