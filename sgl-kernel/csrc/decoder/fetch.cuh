// The warps that fetch. Weights depend on nothing, and keys and values on nothing that this step computes, so they walk
// through all layers as fast as stages become free, however long the other warps wait for one another; a few stages at a
// time for products that are not begun. Only for experts do they wait until these are chosen.
#pragma once

#include "layout.cuh"

namespace decoder {

// Where the rows of a weight begin. A gated one has the rows of up `apart` rows behind those of the gate. Of experts,
// `each` outputs belong to each chosen one in turn, or every output has inputs in all of them, a segment for each.
struct Rows {
    const bf16* weight;
    int inputs, apart = 0;
    const int* experts = nullptr;  // those that are chosen
    int each = 0, segments = 1;
    long long expert_size = 0;  // values of one expert

    __device__ const bf16* at(int output, int half, int segment) const {
        const bf16* from = weight;
        if (experts != nullptr) {
            int place = each > 0 ? output / each : segment;
            output -= place * each;
            from += experts[place] * expert_size;
        }
        return from + (output + static_cast<long long>(half) * apart) * inputs;
    }
};

// The rows of a weight that belong to a share, 16 to a tile; of a gated one, eight of the gate, then the same eight of
// up. Each warp fetches every fourth row.
template <int ROWS>
__device__ void fetch_weight(Ring<ROWS>& ring, const Rows& rows, Share share, int product, uint64_t policy) {
    int lane = threadIdx.x % 32, r = lane * FETCHERS + threadIdx.x / 32 - WARPS;
    int block = rows.apart ? TILE_ROWS / 2 : TILE_ROWS;
#pragma unroll 1
    for (int first = 0; first < share.count; first += block) {
        int n = first + r % block;
        bool has = r < TILE_ROWS && n < share.count;
        int count = __popc(__ballot_sync(~0u, has));
#pragma unroll 1
        for (int segment = 0; segment < rows.segments; ++segment) {
            const bf16* row = has ? rows.at(share.first + n, r / block, segment) : nullptr;
#pragma unroll 1
            for (int k = 0; k < rows.inputs; k += Form<ROWS>::COLUMNS) {
                int bytes = 2 * min(Form<ROWS>::COLUMNS, rows.inputs - k);
                ring.await_turn(product);
                if (lane == 0) barrier_expect(ring.full(), count * bytes);
                __syncwarp();
                if (has) copy_bulk(ring.data() + r * Form<ROWS>::TILE_PITCH, row + k, bytes, ring.full(), policy);
                __syncwarp();
                ring.advance();
            }
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
    const int* pages = s.page_tables[layer.space] + s.slots[span.row] * s.max_pages;
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
        ring.await_turn(0);  // keys are few, and always count as needed now
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

// The weights of one product. Which experts are meant is known once the other warps have chosen them.
template <int DIM, int ROWS, bool MIXTURE>
__device__ Rows rows_of(const Ring<ROWS>& ring, const Step& s, const Layer& layer, Kind kind, int index,
                        const Chosen* chosen) {
    if (kind == Kind::QKV) return {layer.qkv, s.hidden};
    if (kind == Kind::O) return {layer.o, s.q_heads * DIM};
    if (MIXTURE && kind == Kind::ROUTE) return {layer.router, s.hidden};
    if (kind == Kind::LOGITS) return {s.lm_head, s.hidden};
    Rows rows{kind == Kind::DOWN ? layer.down : layer.gate_up, kind == Kind::DOWN ? s.inner : s.hidden};
    rows.apart = kind == Kind::GATE_UP ? s.inner : 0;
    if (!MIXTURE) return rows;
    if (kind == Kind::GATE_UP) barrier_wait(ring.experts_known(), index % 2);
    rows.experts = chosen[index % 2].experts;
    rows.expert_size = static_cast<long long>(s.hidden) * s.inner * (kind == Kind::GATE_UP ? 2 : 1);
    if (kind == Kind::GATE_UP) rows.each = s.inner;
    if (kind == Kind::DOWN) rows.segments = s.chosen;
    return rows;
}

template <int DIM, int ROWS, bool MIXTURE>
__device__ void fetch_step(Ring<ROWS>& ring, const Step& s, const Chosen* chosen) {
    constexpr int products = products_of_a_layer<MIXTURE>();
    uint64_t policy = read_once_policy();
    int most = splits_of(s), units = s.rows * s.kv_heads * most, rotation = 0;
#pragma unroll 1
    for (int number = 0; number <= products * s.layers; ++number) {
        int index = number / products;
        const Layer& layer = s.layer[min(index, s.layers - 1)];
        Kind kind = index == s.layers ? Kind::LOGITS : kind_of<MIXTURE>(number);
        Rows rows = rows_of<DIM, ROWS, MIXTURE>(ring, s, layer, kind, index, chosen);
        fetch_weight<ROWS>(ring, rows, share(s, kind, rotation), number, policy);
        if (kind == Kind::DOWN) rotation = next_rotation(s, rotation);
        if (kind != Kind::QKV) continue;
        for (int unit = blockIdx.x; unit < units; unit += s.grid) {
            Span span(s, unit, most, static_cast<int>(layer.window));
            fetch_keys<DIM, ROWS>(ring, s, layer, span);
        }
    }
}

}  // namespace decoder
