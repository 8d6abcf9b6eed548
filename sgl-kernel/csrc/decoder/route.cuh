// Which experts a token goes through, from the logits of a router. Every multiprocessor chooses for itself.
#pragma once

#include "layout.cuh"

namespace decoder {

// The order of bf16 numbers as unsigned ones, and back. Both zeros are one; the least stands for what is no number.
__device__ __forceinline__ uint32_t ordered(uint32_t bits) {
    if (bits == 0x8000u) bits = 0;
    return bits & 0x8000u ? ~bits & 0xffffu : bits | 0x8000u;
}

__device__ __forceinline__ float of_ordered(uint32_t order) {
    return __uint_as_float((order & 0x8000u ? order & 0x7fffu : ~order & 0xffffu) << 16);
}

// The experts with the highest logits, the lowest number among equals, and their shares of a softmax over all logits; if
// `renormalize`, over theirs. By one warp. A logit that is no number makes all gates so.
__device__ inline void choose_experts(const Step& s, const Packet* routed, uint32_t round, Chosen& chosen) {
    constexpr int PAIRS = MAX_EXPERTS / 128;  // of packets in a lane
    int lane = threadIdx.x % 32;
    uint32_t keys[4 * PAIRS];
    float logits[4 * PAIRS], highest = -INFINITY, sum = 0;
    int pairs = s.experts / 4;
    uint2 found[PAIRS];
    await_pairs(found, routed + 2 * lane, 64, (pairs - lane + 31) / 32, round);
#pragma unroll
    for (int i = 0; i < 4 * PAIRS; ++i) {
        int pair = lane + i / 4 * 32, expert = 4 * pair + i % 4;
        uint32_t both = i % 4 < 2 ? found[i / 4].x : found[i / 4].y, bits = i % 2 ? both >> 16 : both & 0xffffu;
        bool exists = pair < pairs;
        logits[i] = exists ? __uint_as_float(bits << 16) : -INFINITY;
        bool number = logits[i] == logits[i];
        // Lower experts have higher keys. Zero: no expert.
        keys[i] = exists ? (number ? ordered(bits) : 0) << 16 | (0xffffu - expert) : 0;
        highest = fmaxf(highest, logits[i]);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) {
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, distance));
    }
#pragma unroll
    for (int i = 0; i < 4 * PAIRS; ++i) sum += __expf(logits[i] - highest);
    sum = warp_sum(sum);
    int own = 0;
    float gate = 0;
#pragma unroll 1
    for (int place = 0; place < s.chosen; ++place) {
        uint32_t best = 0;
#pragma unroll
        for (int i = 0; i < 4 * PAIRS; ++i) best = max(best, keys[i]);
        best = __reduce_max_sync(~0u, best);
#pragma unroll
        for (int i = 0; i < 4 * PAIRS; ++i) keys[i] = keys[i] == best ? 0 : keys[i];
        if (lane != place) continue;
        own = 0xffffu - (best & 0xffffu);
        gate = __fdividef(__expf(of_ordered(best >> 16) - highest), sum);
    }
    if (s.renormalize) gate = __fdividef(gate, warp_sum(gate));
    if (lane < s.chosen) chosen.experts[lane] = own, chosen.gates[lane] = gate;
    __syncwarp();
}

}  // namespace decoder
