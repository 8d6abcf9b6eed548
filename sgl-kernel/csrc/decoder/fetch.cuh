// The warps that fetch. Weights depend on nothing, and keys and values on nothing that this step computes, so they walk
// through all layers as fast as stages become free, however long the other warps wait for one another.
#pragma once

#include "layout.cuh"

namespace decoder {

// The rows of a weight that belong to a share, 16 to a tile; of a gated one, eight of the gate, then the same eight of
// up, which begins `apart` rows further on. Each warp fetches every fourth row.
template <int ROWS>
__device__ void fetch_weight(Ring<ROWS>& ring, const bf16* weight, int inputs, Share share, int apart, uint64_t policy) {
    int lane = threadIdx.x % 32, r = lane * FETCHERS + threadIdx.x / 32 - WARPS;
    int block = apart ? TILE_ROWS / 2 : TILE_ROWS;
#pragma unroll 1
    for (int first = 0; first < share.count; first += block) {
        int n = first + r % block;
        bool has = r < TILE_ROWS && n < share.count;
        int count = __popc(__ballot_sync(~0u, has));
        const bf16* row = weight + (share.first + n + static_cast<long long>(r / block) * apart) * inputs;
#pragma unroll 1
        for (int k = 0; k < inputs; k += Form<ROWS>::COLUMNS) {
            int bytes = 2 * min(Form<ROWS>::COLUMNS, inputs - k);
            ring.await_turn();
            if (lane == 0) barrier_expect(ring.full(), count * bytes);
            __syncwarp();
            if (has) copy_bulk(ring.data() + r * Form<ROWS>::TILE_PITCH, row + k, bytes, ring.full(), policy);
            __syncwarp();
            ring.advance();
        }
    }
}

// The keys of a span and their values, a stage at a time. They lie apart, in pieces that are too small for bulk copies.
template <int DIM, int ROWS>
__device__ void fetch_keys(Ring<ROWS>& ring, const Step& s, const Layer& layer, const Span& span) {
    constexpr int PITCH = head_pitch(DIM);
    constexpr int KEYS = Form<ROWS>::KEYS;
    constexpr int CHUNKS = DIM / 8;  // of 16 bytes, in one key
    constexpr int AT_ONCE = 32 * FETCHERS / CHUNKS;
    constexpr int TURNS = KEYS / AT_ONCE;
    int index = threadIdx.x - THREADS, chunk = index % CHUNKS;
    const int* pages = s.page_table + s.slots[span.row] * s.max_pages;
    int slots[TURNS];
    auto find_slots = [&](int first) {
#pragma unroll
        for (int i = 0; i < TURNS; ++i) {
            int position = min(first + i * AT_ONCE + index / CHUNKS, span.to - 1);
            slots[i] = pages[position / s.page_size] * s.page_size + position % s.page_size;
        }
    };
    if (span.from < span.to) find_slots(span.from);
#pragma unroll 1
    for (int first = span.from; first < span.to; first += KEYS) {
        ring.await_turn();
#pragma unroll
        for (int i = 0; i < TURNS; ++i) {
            int key = i * AT_ONCE + index / CHUNKS;
            if (first + key >= span.to) continue;
            long long at = (static_cast<long long>(slots[i]) * s.kv_heads + span.head) * DIM + 8 * chunk;
            copy_16_bytes(ring.data() + key * PITCH + 16 * chunk, layer.keys + at);
            copy_16_bytes(ring.data() + (KEYS + key) * PITCH + 16 * chunk, layer.values + at);
        }
        copies_arrive(ring.full());
        __syncwarp();
        if (index % 32 == 0) barrier_arrive(ring.full());
        ring.advance();
        if (first + KEYS < span.to) find_slots(first + KEYS);
    }
}

template <int DIM, int ROWS>
__device__ void fetch_step(Ring<ROWS>& ring, const Step& s) {
    uint64_t policy = read_once_policy();
    int most = splits_of(s), units = s.rows * s.kv_heads * most, rotation = 0;
#pragma unroll 1
    for (int number = 0; number <= 4 * s.layers; ++number) {
        int index = number / 4;
        const Layer& layer = s.layer[min(index, s.layers - 1)];
        Kind kind = index == s.layers ? Kind::LOGITS : static_cast<Kind>(number % 4);
        const bf16* weight = s.lm_head;
        int inputs = s.hidden, apart = 0;
        if (kind == Kind::QKV) weight = layer.qkv;
        if (kind == Kind::O) weight = layer.o, inputs = s.q_heads * DIM;
        if (kind == Kind::GATE_UP) weight = layer.gate_up, apart = s.inner;
        if (kind == Kind::DOWN) weight = layer.down, inputs = s.inner;
        fetch_weight<ROWS>(ring, weight, inputs, share(s, kind, rotation), apart, policy);
        if (kind == Kind::DOWN) rotation = next_rotation(s, rotation);
        if (kind != Kind::QKV) continue;
        for (int unit = blockIdx.x; unit < units; unit += s.grid) {
            Span span(s, unit, most, static_cast<int>(layer.window));
            fetch_keys<DIM, ROWS>(ring, s, layer, span);
        }
    }
}

}  // namespace decoder
