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
//
// This code runs once in a layer, so each instruction has to be fetched from afar, and everybody waits: as few as can be
// are executed, and gates are computed once, behind the loop.
__device__ inline void choose_experts(const Step& s, const Packet* routed, uint32_t round, Chosen& chosen,
                                      const Trace& trace, int first_mark) {
    constexpr int PAIRS = MAX_EXPERTS / 128;  // of packets in a lane
    int lane = threadIdx.x % 32, pairs = s.experts / 4;
    uint2 found[PAIRS];
    await_pairs(found, routed + 2 * lane, 64, (pairs - lane + 31) / 32, round);
    uint32_t keys[4 * PAIRS];
    bool broken = false;
#pragma unroll
    for (int i = 0; i < 4 * PAIRS; ++i) {
        int pair = lane + i / 4 * 32;
        uint32_t both = i % 4 < 2 ? found[i / 4].x : found[i / 4].y, bits = i % 2 ? both >> 16 : both & 0xffffu;
        bool known = (bits & 0x7fffu) <= 0x7f80u;
        broken |= !known;
        // Lower experts have higher keys. Zero: no expert.
        keys[i] = (known ? ordered(bits) : 0) << 16 | (0xffffu - 4 * pair - i % 4);
        if (pair >= pairs) keys[i] = 0;
    }
    trace.mark(first_mark);
    uint32_t own = 0, highest = 0;
#pragma unroll 1
    for (int place = 0; place < s.chosen; ++place) {
        uint32_t best = 0;
#pragma unroll
        for (int i = 0; i < 4 * PAIRS; ++i) best = max(best, keys[i]);
        best = __reduce_max_sync(~0u, best);
#pragma unroll
        for (int i = 0; i < 4 * PAIRS; ++i) keys[i] = keys[i] == best ? 0 : keys[i];
        if (place == 0) highest = best;
        if (lane == place) own = best;
    }
    float logit = of_ordered(own >> 16), top = of_ordered(highest >> 16);
    float gate = lane < s.chosen ? __expf(logit - top) : 0.0f, sum = gate;
    if (!s.renormalize) {
#pragma unroll
        for (int i = 0; i < 4 * PAIRS; ++i) sum += keys[i] ? __expf(of_ordered(keys[i] >> 16) - top) : 0.0f;
    }
    gate = __any_sync(~0u, broken) ? NAN : __fdividef(gate, warp_sum(sum));
    if (lane < s.chosen) {
        chosen.experts[lane] = 0xffffu - (own & 0xffffu);
        chosen.gates[lane] = gate;
    }
    __syncwarp();
}

}  // namespace decoder
