// How a product's input comes into shared memory: from packets as it is, or added to the residual stream and normed.
// Every multiprocessor keeps the whole residual stream and does this for itself.
#pragma once

#include "layout.cuh"

namespace decoder {

__device__ __forceinline__ void join() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// Packets for everybody, [rows, values / 2], and how many multiprocessors have sent theirs, over all rounds, or null.
struct Incoming {
    const Packet* packets;
    const uint32_t* arrived;
    uint32_t round;

    // Asking for many packets again and again would keep the memory from those who still send.
    __device__ void await_most(const Step& s) const {
        if (arrived == nullptr) return;
        if (threadIdx.x == 0) await_count(arrived, round * s.grid);
        join();
    }
};

// Four values of each row at a time.
template <int ROWS>
__device__ void receive(const Step& s, uint32_t vectors, const Incoming& incoming, int values, const Trace& trace,
                        int first_mark) {
    constexpr int AT_ONCE = 8;
    int fours = values / 4, pitch = vector_pitch(values);
    incoming.await_most(s);
    trace.mark(first_mark);
#pragma unroll 1
    for (int row = 0; row < s.rows; ++row) {
        const Packet* from = incoming.packets + static_cast<long long>(row) * values / 2;
#pragma unroll 1
        for (int i = threadIdx.x; i < fours; i += AT_ONCE * THREADS) {
            uint2 found[AT_ONCE];
            int count = (fours - i + THREADS - 1) / THREADS;
            await_pairs(found, from + 2 * i, 2 * THREADS, count, incoming.round);
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                if (u < count) store_shared_8(vectors + row * pitch + 8 * (i + u * THREADS), found[u]);
            }
        }
    }
    join();
    trace.mark(first_mark + 1);
}

__device__ __forceinline__ float square_sum(uint2 v) {
    float a = low_of(v.x), b = high_of(v.x), c = low_of(v.y), d = high_of(v.y);
    return (a * a + b * b) + (c * c + d * d);
}

// The residual stream begins as the tokens' embeddings.
template <int ROWS>
__device__ void embed(const Step& s, uint32_t residual, float (&squares)[ROWS]) {
    int fours = s.hidden / 4;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        if (row >= s.rows) continue;
        const uint2* from = reinterpret_cast<const uint2*>(s.embedding + s.ids[row] * s.hidden);
#pragma unroll 1
        for (int i = threadIdx.x; i < fours; i += THREADS) {
            uint2 v = from[i];
            squares[row] += square_sum(v);
            store_shared_8(residual + row * s.hidden * 2 + 8 * i, v);
        }
    }
}

// residual += incoming, rounded. Each thread has its own places in the residual stream.
template <int ROWS>
__device__ void add(const Step& s, uint32_t residual, const Incoming& incoming, float (&squares)[ROWS],
                    const Trace& trace, int first_mark) {
    constexpr int AT_ONCE = 4;
    int fours = s.hidden / 4;
    incoming.await_most(s);
    trace.mark(first_mark);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        if (row >= s.rows) continue;
        const Packet* from = incoming.packets + row * s.hidden / 2;
#pragma unroll 1
        for (int i = threadIdx.x; i < fours; i += AT_ONCE * THREADS) {
            uint2 found[AT_ONCE];
            int count = (fours - i + THREADS - 1) / THREADS;
            await_pairs(found, from + 2 * i, 2 * THREADS, count, incoming.round);
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                if (u >= count) continue;
                uint2 v = found[u];
                uint32_t place = residual + row * s.hidden * 2 + 8 * (i + u * THREADS);
                uint2 r = load_shared_8(place);
                v.x = pack(low_of(v.x) + low_of(r.x), high_of(v.x) + high_of(r.x));
                v.y = pack(low_of(v.y) + low_of(r.y), high_of(v.y) + high_of(r.y));
                squares[row] += square_sum(v);
                store_shared_8(place, v);
            }
        }
    }
}

// vectors = rms_norm(residual += incoming) * gain; if nothing comes in, the residual stream begins here.
template <int ROWS>
__device__ void add_and_norm(const Step& s, uint32_t shared_sums, uint32_t residual, uint32_t gain_at, uint32_t vectors,
                             const bf16* gain, const Incoming& incoming, const Trace& trace, int first_mark) {
    int fours = s.hidden / 4, pitch = vector_pitch(s.hidden);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = threadIdx.x; i < fours; i += THREADS) copy_8_bytes(gain_at + 8 * i, gain + 4 * i);
    float squares[ROWS] = {};
    if (incoming.packets == nullptr) {
        embed<ROWS>(s, residual, squares);
    } else {
        add<ROWS>(s, residual, incoming, squares, trace, first_mark);
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        float sum = warp_sum(squares[row]);
        if (lane == 0) store_shared_4(shared_sums + 4 * (row * WARPS + warp), __float_as_uint(sum));
    }
    join();
    trace.mark(first_mark + 1);
    copies_done();
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        float sum = __uint_as_float(load_shared_4(shared_sums + 4 * (row * WARPS + lane % WARPS)));
#pragma unroll
        for (int distance = WARPS / 2; distance > 0; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
        if (row >= s.rows) continue;
        float scale = rsqrtf(__fdividef(sum, s.hidden) + s.eps);
#pragma unroll 1
        for (int i = threadIdx.x; i < fours; i += THREADS) {
            uint2 r = load_shared_8(residual + row * s.hidden * 2 + 8 * i), g = load_shared_8(gain_at + 8 * i);
            uint2 x;
            x.x = pack(low_of(r.x) * scale * low_of(g.x), high_of(r.x) * scale * high_of(g.x));
            x.y = pack(low_of(r.y) * scale * low_of(g.y), high_of(r.y) * scale * high_of(g.y));
            store_shared_8(vectors + row * pitch + 8 * i, x);
        }
    }
    join();
    trace.mark(first_mark + 2);
}

}  // namespace decoder
