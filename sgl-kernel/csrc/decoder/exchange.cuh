// Values that travel between multiprocessors together with the round they belong to.
//
// A packet is eight bytes, written and read as one: a payload (two bf16 values, or one float) and the number of the
// round. Whoever wants it reads until the round is the one it waits for; so there is neither a barrier nor a second
// trip to memory, and no fence (which waits for thousands of ticks while weights stream in): a packet says for itself
// that it is whole. A buffer is written once in each round, by writers that have seen packets which its readers of the
// last round sent after reading it.
#pragma once

#include "machine.cuh"

namespace decoder {

using Packet = unsigned long long;

__device__ __forceinline__ Packet packet(uint32_t payload, uint32_t round) {
    return static_cast<Packet>(round) << 32 | payload;
}

__device__ __forceinline__ void send(Packet* to, uint32_t payload, uint32_t round) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(packet(payload, round)) : "memory");
}

// Two neighbours, 16-byte aligned; each is whole for itself.
__device__ __forceinline__ void send(Packet* to, uint32_t first, uint32_t second, uint32_t round) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(packet(first, round)),
                 "l"(packet(second, round))
                 : "memory");
}

__device__ __forceinline__ Packet peek(const Packet* from) {
    Packet v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
    return v;
}

// Two neighbours: payload and round of the one, then of the other.
__device__ __forceinline__ uint4 peek_pair(const Packet* from) {
    uint4 v;
    asm volatile(
        "{\n.reg .b64 a, b;\n"
        "ld.relaxed.gpu.global.v2.u64 {a, b}, [%4];\n"
        "mov.b64 {%0, %1}, a;\n"
        "mov.b64 {%2, %3}, b;\n}"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from)
        : "memory");
    return v;
}

// `seen` is what an earlier peek found: several may be on their way before the first is waited for.
__device__ __forceinline__ uint32_t await(const Packet* from, Packet seen, uint32_t round) {
    Patience patience;
    while (static_cast<uint32_t>(seen >> 32) != round) {
        patience.tried();
        seen = peek(from);
    }
    return static_cast<uint32_t>(seen);
}

__device__ __forceinline__ uint2 await_pair(const Packet* from, uint4 seen, uint32_t round) {
    Patience patience;
    while (seen.y != round || seen.w != round) {
        patience.tried();
        seen = peek_pair(from);
    }
    return make_uint2(seen.x, seen.z);
}

// Up to MOST pairs, at from, from + apart, …: all are on their way before the first is waited for.
template <int MOST>
__device__ __forceinline__ void await_pairs(uint2 (&found)[MOST], const Packet* from, int apart, int count,
                                            uint32_t round) {
    uint4 seen[MOST];
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        seen[i] = make_uint4(0, round, 0, round);
        if (i < count) seen[i] = peek_pair(from + i * apart);
    }
    Patience patience;
    while (true) {
        bool complete = true;
#pragma unroll
        for (int i = 0; i < MOST; ++i) complete &= seen[i].y == round && seen[i].w == round;
        if (complete) break;
        patience.tried();
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            if (seen[i].y != round || seen[i].w != round) seen[i] = peek_pair(from + i * apart);
        }
    }
#pragma unroll
    for (int i = 0; i < MOST; ++i) found[i] = make_uint2(seen[i].x, seen[i].z);
}

// A count of senders that are through. It carries no data and orders nothing: who waits for it before it reads packets
// leaves the memory alone until most of them are there.
__device__ __forceinline__ void announce(uint32_t* count) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}

__device__ __forceinline__ void await_count(const uint32_t* count, uint32_t wanted) {
    Patience patience;
    uint32_t seen;
    do {
        patience.tried();
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    } while (static_cast<int32_t>(seen - wanted) < 0);
}

}  // namespace decoder
