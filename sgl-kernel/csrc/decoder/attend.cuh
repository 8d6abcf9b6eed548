// Attention of one token per row over its paged keys, split over the multiprocessors and merged by them.
//
// A unit is one row's one key-value head, with the query heads that share it, over one span of keys. Its warps take 16
// keys each in turn; what they find is merged within the unit, then between the units of the row's head, each of which
// merges a part of the values.
#pragma once

#include "vectors.cuh"

namespace decoder {

template <int DIM, int ROWS>
struct Attention {
    static constexpr int PITCH = head_pitch(DIM);
    static constexpr int KEYS = Form<ROWS>::KEYS;
    static constexpr int HALF = DIM / 2;

    const Step& s;
    const Layer& layer;
    const Span& span;
    const Packet* qkv;
    Packet *parts, *attended;
    uint32_t round;
    uint32_t queries, new_key, new_value;  // shared memory
    float *highs, *sums, *sinks, *values;  // [ATTENDING][MAX_GROUP], the same, [MAX_GROUP], [ATTENDING][group][DIM]
    int group;

    __device__ Attention(const Step& s, const Layer& layer, const Span& span, const Packet* qkv, Packet* parts,
                         Packet* attended, uint32_t round, unsigned char* scratch)
        : s(s), layer(layer), span(span), qkv(qkv), parts(parts), attended(attended), round(round) {
        queries = shared_address(scratch);
        new_key = queries + MAX_GROUP * PITCH;
        new_value = new_key + PITCH;
        highs = reinterpret_cast<float*>(scratch + (MAX_GROUP + 2) * PITCH);
        sums = highs + ATTENDING * MAX_GROUP;
        sinks = sums + ATTENDING * MAX_GROUP;
        values = sinks + MAX_GROUP;
        group = s.q_heads / s.kv_heads;
    }

    __device__ void run(Ring<ROWS>& ring, int most, const Trace& trace) {
        prepare_heads();
        join();
        trace.mark(4);
        attend(ring);
        join();
        trace.mark(5);
        finish_unit(most);
        trace.mark(6);
        if (span.splits > 1) merge_units(most);
        join();
        trace.mark(7);
    }

    // Norm and turn the queries and the new key, a warp for each; store the new key and value.
    __device__ void prepare_heads() {
        int warp = threadIdx.x / 32;
        int heads = group + (span.newest ? 2 : 0);
        // One unit of the row has the newest key, and the same one has the sinks.
        if (threadIdx.x < group) {
            bool has = span.newest && layer.sinks != nullptr;
            sinks[threadIdx.x] = has ? layer.sinks[span.head * group + threadIdx.x] * LOG2E : -INFINITY;
        }
        for (int i = warp; i < heads; i += WARPS) {
            if (i < group) {
                prepare_head(span.head * group + i, layer.q_norm, true, queries + i * PITCH, nullptr);
            } else if (i == group) {
                prepare_head(s.q_heads + span.head, layer.k_norm, true, new_key, layer.keys);
            } else {
                prepare_head(s.q_heads + s.kv_heads + span.head, nullptr, false, new_value, layer.values);
            }
        }
    }

    // Lane l has dimensions 2 l and 2 l + 1, and those that turn with them, HALF further on.
    __device__ void prepare_head(int head, const bf16* gain, bool turns, uint32_t to, bf16* cache) {
        int lane = threadIdx.x % 32;
        bool has = lane < HALF / 2;
        const Packet* from = qkv + (static_cast<long long>(span.row) * (s.q_heads + 2 * s.kv_heads) + head) * HALF + lane;
        Packet first = 0, second = 0;
        if (has) {
            first = peek(from);
            second = peek(from + HALF / 2);
        }
        float2 cosine = {}, sine = {};
        uint32_t gain_low = 0, gain_high = 0;
        if (has && turns) {
            const float* angles = s.cos_sin + s.positions[span.row] * DIM + 2 * lane;
            cosine = *reinterpret_cast<const float2*>(angles);
            sine = *reinterpret_cast<const float2*>(angles + HALF);
        }
        if (has && gain != nullptr) {
            gain_low = reinterpret_cast<const uint32_t*>(gain)[lane];
            gain_high = reinterpret_cast<const uint32_t*>(gain)[HALF / 2 + lane];
        }
        uint32_t low = 0, high = 0;
        if (has) {
            low = await(from, first, round);
            high = await(from + HALF / 2, second, round);
        }
        float a = low_of(low), b = high_of(low), c = low_of(high), d = high_of(high);
        if (gain != nullptr) {
            float scale = rsqrtf(warp_sum((a * a + b * b) + (c * c + d * d)) / DIM + s.qk_eps);
            a = rounded(a * scale * low_of(gain_low));
            b = rounded(b * scale * high_of(gain_low));
            c = rounded(c * scale * low_of(gain_high));
            d = rounded(d * scale * high_of(gain_high));
        }
        if (turns) {
            low = pack(a * cosine.x - c * sine.x, b * cosine.y - d * sine.y);
            high = pack(c * cosine.x + a * sine.x, d * cosine.y + b * sine.y);
        }
        if (!has) return;
        store_shared_4(to + 4 * lane, low);
        store_shared_4(to + 2 * HALF + 4 * lane, high);
        if (cache != nullptr) {
            long long at = (s.out_cache_locs[layer.space][span.row] * s.kv_heads + span.head) * DIM;
            uint32_t* slot = reinterpret_cast<uint32_t*>(cache + at);
            slot[lane] = low;
            slot[HALF / 2 + lane] = high;
        }
    }

    // What a warp has found so far: lane 4 g + t has head g, and dimensions 8 d + 2 t and the next.
    struct State {
        uint32_t q[DIM / 16][2];
        float out[DIM / 8][2];
        float high = -INFINITY, sum = 0;
    };

    __device__ void attend(Ring<ROWS>& ring) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        State state;
#pragma unroll
        for (int i = 0; i < DIM / 16; ++i) {
            uint32_t at = queries + g * PITCH + 32 * i + 4 * t;
            state.q[i][0] = g < group ? load_shared_4(at) : 0;
            state.q[i][1] = g < group ? load_shared_4(at + 16) : 0;
        }
#pragma unroll
        for (int i = 0; i < DIM / 8; ++i) state.out[i][0] = state.out[i][1] = 0;
        int turn = 0;
        // The newest key comes last, from a place of its own.
        int tiles = (span.to - span.from + KEYS - 1) / KEYS;
#pragma unroll 1
        for (int tile = 0; tile < tiles + span.newest; ++tile) {
            bool cached = tile < tiles;
            int count = cached ? min(KEYS, span.to - span.from - tile * KEYS) : 1;
            if (cached) barrier_wait(ring.full(), ring.parity);
#pragma unroll 1
            for (int i = 0; i < count; i += 16, ++turn) {
                if (turn % ATTENDING != warp) continue;
                uint32_t keys = cached ? ring.data() + i * PITCH : new_key;
                attend_to(state, keys, cached ? keys + KEYS * PITCH : new_value, min(16, count - i));
            }
            if (!cached) break;
            hand_to_bulk_copies();
            __syncwarp();
            if (lane == 0) barrier_arrive(ring.empty());
            ring.advance();
        }
        keep(state, warp, g, t);
    }

    // Up to 16 keys: scores, weights, weighted values. Online softmax: Milakov and Gimelshein (2018).
    __device__ void attend_to(State& state, uint32_t keys, uint32_t values_at, int count) {
        int lane = threadIdx.x % 32, t = lane % 4;
        float first[4] = {}, second[4] = {};
        // Rows past the last key read that again; their weight is 0.
        uint32_t key = keys + min(lane / 16 * 8 + lane % 8, count - 1) * PITCH + lane / 8 % 2 * 16;
#pragma unroll
        for (int i = 0; i < DIM / 16; ++i) {
            uint4 k = load_matrices(key + 32 * i);
            multiply_add(first, state.q[i][0], 0, state.q[i][1], 0, k.x, k.y);
            multiply_add(second, state.q[i][0], 0, state.q[i][1], 0, k.z, k.w);
        }
        float scores[4] = {first[0], first[1], second[0], second[1]};
        float high = state.high;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int number = i / 2 * 8 + 2 * t + i % 2;
            scores[i] = number < count ? scores[i] * (s.scale * LOG2E) : -INFINITY;
            high = fmaxf(high, scores[i]);
        }
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
        float fade = exp2f(state.high - high);
        state.high = high;
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[i] = exp2f(scores[i] - high);
        state.sum = state.sum * fade + ((scores[0] + scores[1]) + (scores[2] + scores[3]));
        uint32_t low_weights = pack(scores[0], scores[1]), high_weights = pack(scores[2], scores[3]);
        uint32_t value = values_at + min(lane % 16, count - 1) * PITCH + lane / 16 * 16;
#pragma unroll
        for (int i = 0; i < DIM / 16; ++i) {
            uint4 v = load_matrices_transposed(value + 32 * i);
            float c[4] = {state.out[2 * i][0] * fade, state.out[2 * i][1] * fade, 0, 0};
            float d[4] = {state.out[2 * i + 1][0] * fade, state.out[2 * i + 1][1] * fade, 0, 0};
            multiply_add(c, low_weights, 0, high_weights, 0, v.x, v.y);
            multiply_add(d, low_weights, 0, high_weights, 0, v.z, v.w);
            state.out[2 * i][0] = c[0];
            state.out[2 * i][1] = c[1];
            state.out[2 * i + 1][0] = d[0];
            state.out[2 * i + 1][1] = d[1];
        }
    }

    __device__ void keep(const State& state, int warp, int g, int t) {
        float sum = state.sum;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (g >= group) return;
        if (t == 0) {
            highs[warp * MAX_GROUP + g] = state.high;
            sums[warp * MAX_GROUP + g] = sum;
        }
        float* own = values + (warp * group + g) * DIM + 2 * t;
#pragma unroll
        for (int i = 0; i < DIM / 8; ++i) {
            *reinterpret_cast<float2*>(own + 8 * i) = make_float2(state.out[i][0], state.out[i][1]);
        }
    }

    __device__ Packet* part(int unit) const { return parts + unit * part_packets(group, DIM); }

    __device__ Packet* result(int pair) const {
        return attended + (static_cast<long long>(span.row) * s.q_heads + span.head * group) * HALF + pair;
    }

    // Merge what the warps found: the answer if this is the row's only split, else a part of it.
    __device__ void finish_unit(int most) {
        Packet* own = part((span.row * s.kv_heads + span.head) * most + span.split);
        #pragma unroll 1
        for (int pair = threadIdx.x; pair < group * HALF; pair += THREADS) {
            int head = pair / HALF;
            float high = sinks[head], a = 0, b = 0;
#pragma unroll
            for (int warp = 0; warp < ATTENDING; ++warp) high = fmaxf(high, highs[warp * MAX_GROUP + head]);
            float sum = exp2f(sinks[head] - high);
#pragma unroll
            for (int warp = 0; warp < ATTENDING; ++warp) {
                float weight = exp2f(highs[warp * MAX_GROUP + head] - high);
                float2 v = *reinterpret_cast<const float2*>(values + warp * group * DIM + 2 * pair);
                sum += weight * sums[warp * MAX_GROUP + head];
                a += weight * v.x;
                b += weight * v.y;
            }
            if (span.splits == 1) {
                send(result(pair), pack(__fdividef(a, sum), __fdividef(b, sum)), round);
                continue;
            }
            send(own + 2 * pair, __float_as_uint(a), __float_as_uint(b), round);
            if (pair % HALF == 0) {
                send(own + group * DIM + 2 * head, __float_as_uint(high), __float_as_uint(sum), round);
            }
        }
    }

    // This unit's share of the pairs of values: a lane for each split, added up crosswise.
    __device__ void merge_units(int most) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int lanes = span.splits > 1 ? 1 << (32 - __clz(span.splits - 1)) : 1;
        int pairs = group * HALF, at_once = 32 / lanes, split = lane % lanes;
        int begin = pairs * span.split / span.splits, end = pairs * (span.split + 1) / span.splits;
        const Packet* from = part((span.row * s.kv_heads + span.head) * most + split);
        for (int first = begin + warp * at_once; first < end; first += WARPS * at_once) {
            int pair = first + lane / lanes;
            float high = -INFINITY, sum = 0, a = 0, b = 0;
            if (pair < end && split < span.splits) {
                const Packet *facts_at = from + group * DIM + 2 * (pair / HALF), *values_at = from + 2 * pair;
                uint2 found[2];
                await_pairs(found, facts_at, static_cast<int>(values_at - facts_at), 2, round);
                high = __uint_as_float(found[0].x);
                sum = __uint_as_float(found[0].y);
                a = __uint_as_float(found[1].x);
                b = __uint_as_float(found[1].y);
            }
            float highest = high;
            for (int distance = lanes / 2; distance > 0; distance /= 2) {
                highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, distance));
            }
            float weight = high == -INFINITY ? 0.0f : exp2f(high - highest);
            sum *= weight, a *= weight, b *= weight;
            for (int distance = lanes / 2; distance > 0; distance /= 2) {
                sum += __shfl_xor_sync(~0u, sum, distance);
                a += __shfl_xor_sync(~0u, a, distance);
                b += __shfl_xor_sync(~0u, b, distance);
            }
            if (split == 0 && pair < end) send(result(pair), pack(__fdividef(a, sum), __fdividef(b, sum)), round);
        }
    }
};

}  // namespace decoder
