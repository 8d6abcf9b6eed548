// One warp's arithmetic: scores of its queries with 16 keys and more, softmax, sums of values; and where these go.

#pragma once

#include "lines.cuh"
#include "teams.cuh"

namespace {

// Late plans: which of some keys the queries of a warp see. A row's new tokens follow one another, and each sees the new
// keys up to its own.
struct Reach {
    int position;  // of the first of the keys
    int fresh;     // position of the row's first new token
    int first;     // query of the warp
    int group;     // queries of one token

    // Whether all queries see so many keys.
    __device__ __forceinline__ bool covers(int keys) const { return position + keys <= fresh + 1; }

    // How many of the keys this lane's query in a tile sees.
    __device__ __forceinline__ int seen(int tile, int which) const {
        const int query = first + 8 * tile + threadIdx.x % 4 * 2 + which;
        return fresh + 1 + query / group - position;
    }
};

// Sums over keys of one warp's queries: columns of tile t in this lane are queries 8 t + 2 (lane % 4) and the next.
template <int TILES>
struct Sums {
    float out[STEPS][TILES][4];  // dimension 16 step + lane / 4 of both queries, then dimension + 8
    float highest[TILES][2];
    float weight[TILES][2];      // of the keys that this lane has seen

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int i = 0; i < 4; ++i) out[s][t][i] = 0.f;
            highest[t][0] = highest[t][1] = -INFINITY;
            weight[t][0] = weight[t][1] = 0.f;
        }
    }

    // To base 2, capped before if there is a cap.
    template <int BATCH>
    __device__ __forceinline__ static void scale(const Params& p, float (&scores)[BATCH][TILES][4]) {
        if (p.cap > 0.f) {
            const float to_cap = 2.f * LOG2E * p.scale / p.cap, from_cap = p.cap * LOG2E;
#pragma unroll
            for (int b = 0; b < BATCH; ++b)
#pragma unroll
                for (int t = 0; t < TILES; ++t)
#pragma unroll
                    for (int i = 0; i < 4; ++i)  // tanh(x) = 1 - 2 / (exp(2 x) + 1)
                        scores[b][t][i] =
                            from_cap - __fdividef(2.f * from_cap, power_of_2(scores[b][t][i] * to_cap) + 1.f);
        } else {
            const float factor = p.scale * LOG2E;
#pragma unroll
            for (int b = 0; b < BATCH; ++b)
#pragma unroll
                for (int t = 0; t < TILES; ++t)
#pragma unroll
                    for (int i = 0; i < 4; ++i) scores[b][t][i] *= factor;
        }
    }

    // BATCH times 16 keys from `first` on, of which the first `count` >= 1 are there. Late plans: a query may see fewer
    // of them, or none.
    template <int BATCH, bool LATE>
    __device__ __forceinline__ void add(
        const Params& p, const Teams& teams, uint32_t keys, int first, int count,
        const uint32_t (&queries)[TILES][STEPS][2], const Reach& reach) {
        const int lane = threadIdx.x % 32;
        float scores[BATCH][TILES][4] = {};
        {
            float odd[TILES][4] = {};  // a second chain of dependent instructions where there would be one
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int b = 0; b < BATCH; ++b) {
                    uint32_t a[4];
                    const uint32_t row = keys + teams.place(first + b * KEYS + lane % 16);
                    load_matrices(a, chunk_of(row, s / 4 * 8 + lane / 16) ^ (s % 4 * 32));
#pragma unroll
                    for (int t = 0; t < TILES; ++t)
                        multiply(s % 2 && BATCH * TILES == 1 ? odd[t] : scores[b][t], a, queries[t][s]);
                }
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) scores[0][t][i] += odd[t][i];
        }
        scale<BATCH>(p, scores);
        if (count < BATCH * KEYS || (LATE && !reach.covers(BATCH * KEYS))) {
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int seen = LATE ? min(count, reach.seen(t, j)) : count;
#pragma unroll
                    for (int b = 0; b < BATCH; ++b)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            if (b * KEYS + h * 8 + lane / 4 >= seen) scores[b][t][2 * h + j] = -INFINITY;
                }
        }
        uint32_t weights[BATCH][TILES][2];
        float shrink[TILES][2];
        bool rescale = false;
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float top = -INFINITY;
#pragma unroll
                for (int b = 0; b < BATCH; ++b) top = fmaxf(top, fmaxf(scores[b][t][j], scores[b][t][j + 2]));
                top = fmaxf(highest[t][j], over_keys(top, [](float a, float b) { return fmaxf(a, b); }));
                rescale |= top > highest[t][j];
                // A query that has seen no key yet has no highest score to measure others by.
                const float base = LATE && top == -INFINITY ? 0.f : top;
                shrink[t][j] = power_of_2(highest[t][j] - base);
                highest[t][j] = top;
                float sum = 0.f;
#pragma unroll
                for (int b = 0; b < BATCH; ++b)
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        sum += scores[b][t][2 * h + j] = power_of_2(scores[b][t][2 * h + j] - base);
                weight[t][j] = weight[t][j] * shrink[t][j] + sum;
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    weights[b][t][h] = turned(packed(scores[b][t][2 * h], scores[b][t][2 * h + 1]));
        }
        if (__any_sync(ALL, rescale)) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int t = 0; t < TILES; ++t)
#pragma unroll
                    for (int i = 0; i < 4; ++i) out[s][t][i] *= shrink[t][i % 2];
        }
        const uint32_t values = keys + HALF_BYTES;
        if (count < BATCH * KEYS) blank(teams, values, first + count, first + BATCH * KEYS);
        const int row = first + lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                uint32_t a[4];
                const uint32_t at = values + teams.place(row + b * KEYS);
                load_matrices_turned(a, chunk_of(at, s / 4 * 8 + lane / 8 % 2) ^ (s % 4 * 32));
#pragma unroll
                for (int t = 0; t < TILES; ++t) multiply(out[s][t], a, weights[b][t]);
            }
    }

    // Values that are not there must be numbers, as their weight is zero.
    __device__ __forceinline__ static void blank(const Teams& teams, uint32_t values, int row, int end) {
        constexpr int CHUNKS = ROW_BYTES / 16;
        for (int i = row * CHUNKS + threadIdx.x % 32; i < end * CHUNKS; i += 32)
            clear_16(values + teams.place(i / CHUNKS) + i % CHUNKS * 16);
        yield_to_copies();
        __syncwarp();
    }

    // A key whose value is zero only takes weight from the others. Of the lanes with the same query, one counts it.
    __device__ __forceinline__ void add_sinks(const Params& p, const Item& item, int kv_head, int first) {
        const int lane = threadIdx.x % 32;
        if (lane >= 4) return;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int query = first + 8 * t + lane * 2 + j;
                if (query >= item.queries) continue;
                const float score = p.sinks[kv_head * p.group + query % p.group];
                weight[t][j] += power_of_2(score * LOG2E - highest[t][j]);
            }
    }

    // Divide by the weights; gives the log-sum-exp of each query: -inf of those that saw no key, NaN of those that saw
    // one which is not finite.
    __device__ __forceinline__ void finish(float (&lse)[TILES][2]) {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float sum = over_keys(weight[t][j], [](float a, float b) { return a + b; });
                float share = sum == 0.f ? 0.f : 1.f / sum;
                lse[t][j] = sum == 0.f ? -INFINITY : highest[t][j] + log2f(sum);
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    out[s][t][j] *= share;
                    out[s][t][j + 2] *= share;
                }
            }
    }
};

template <int TILES>
__device__ __forceinline__ void load_queries(
    const Params& p, const Item& item, int head, int first, uint32_t (&queries)[TILES][STEPS][2]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        int query = first + 8 * t + lane / 4;
        bool there = query < item.queries;
        const Value* from = p.q;
        if (there) {
            int member = query / p.group;
            int row = item.rows == 1 ? item.source : p.members[item.source + member].x;
            from += row * p.q_stride + (head * p.group + query - member * p.group) * DIM;
        }
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const Value* pair = from + s * 16 + i * 8 + lane % 4 * 2;
                queries[t][s][i] = there ? *reinterpret_cast<const uint32_t*>(pair) : 0;
            }
    }
}

// The output of a row that was read as a whole; in late plans, of each of its new tokens.
template <int TILES, bool LATE>
__device__ __forceinline__ void store_output(
    const Params& p, const Item& item, int head, int first, Sums<TILES>& sums) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        int query = first + 8 * t + lane / 4;
        bool there = query < item.queries;
        int row = item.source, of_head = there ? query : 0;
        if (LATE && item.rows > 1) {
            const int member = of_head / p.group;
            row = p.members[item.source + member].x, of_head -= member * p.group;
        }
        Value* to = p.out + (size_t(row) * p.kv_heads * p.group + head * p.group + of_head) * DIM;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                uint32_t pair = turned(packed(sums.out[s][t][2 * i], sums.out[s][t][2 * i + 1]));
                if (there) *reinterpret_cast<uint32_t*>(to + s * 16 + i * 8 + lane % 4 * 2) = pair;
            }
    }
}

template <int TILES>
__device__ __forceinline__ void store_partial(
    const Params& p, const Item& item, int kv_head, int share, int shares, int first, Sums<TILES>& sums,
    float (&lse)[TILES][2]) {
    const int lane = threadIdx.x % 32, heads = p.kv_heads * p.group;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            int query = first + 8 * t + lane % 4 * 2 + j;
            if (query >= item.queries) continue;
            int member = query / p.group, part = item.part + share;
            if (item.rows > 1) part += p.members[item.source + member].y;
            size_t at = size_t(part) * heads + kv_head * p.group + query - member * p.group;
            if (lane < 4) {
                p.partial_lse[at] = lse[t][j];
                for (int i = 1; i <= item.empty; ++i) p.partial_lse[at + size_t(i) * shares * heads] = -INFINITY;
            }
            float* to = p.partial + at * DIM + lane / 4;
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int i = 0; i < 2; ++i) to[s * 16 + i * 8] = sums.out[s][t][2 * i + j];
        }
}

}  // namespace
