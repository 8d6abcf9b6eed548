// What the computing warps do with a stage of latent rows: scores, softmax, sums of values; and where these go.

#pragma once

#include "latent_ring.cuh"

namespace {

constexpr int QUARTER_STEPS = ROW / 16 / 4;       // matrix instructions along a warp's quarter of a key
constexpr int SHARE = DIM / WARPS;                // numbers of a value that a warp sums
constexpr int MOST_QUERIES = 32;                  // of a tile
constexpr int AT_ONCE = 2;                        // stages whose rows are computed with at once
constexpr int SCORE_STRIDE = AT_ONCE * KEYS + 8;  // so that neither scores of a warp nor weights lie in one bank

static_assert(ROW % 64 == 0 && SHARE * sizeof(Value) == LINE_BYTES, "a warp sums one line of each value");

// What the warps tell one another.
struct alignas(16) Scratch {
    float scores[4][MOST_QUERIES][SCORE_STRIDE];  // of each quarter
    Value weights[MOST_QUERIES][SCORE_STRIDE];
    float shrink[MOST_QUERIES];  // of the sums so far; at the end one over all weights
};

__device__ __forceinline__ uint32_t shared_place(const void* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Of the computing warps.
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory"); }

// The warp's quarter of the queries in a stage.
template <int TILES>
__device__ __forceinline__ void load_queries(uint32_t (&queries)[TILES][QUARTER_STEPS][4], uint32_t stage) {
    const int lane = threadIdx.x % 32, quarter = this_warp() % 4;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int s = 0; s < QUARTER_STEPS; ++s) {
            const uint32_t row = stage + (16 * t + lane % 16) * ROW_BYTES;
            load_matrices(queries[t][s], chunk_of(row, (quarter * QUARTER_STEPS + s) * 2 + lane / 16));
        }
}

// Sums of a tile of queries: this warp's share of the values, and the softmax of its own queries.
template <int TILES>
struct Sums {
    static constexpr int OWN = 16 * TILES / WARPS;  // queries whose softmax this warp computes

    float out[TILES][SHARE / 8][4];  // queries lane / 4 and 8 further, two numbers each
    float highest[OWN];
    float weight[OWN];               // of the keys that this lane has seen

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int n = 0; n < SHARE / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) out[t][n][i] = 0.f;
#pragma unroll
        for (int r = 0; r < OWN; ++r) highest[r] = -INFINITY, weight[r] = 0.f;
    }

    // The first `count` >= 1 rows of two stages, or of one.
    __device__ __forceinline__ void add(
        const Params& p, const uint32_t (&stages)[AT_ONCE], int count,
        const uint32_t (&queries)[TILES][QUARTER_STEPS][4], Scratch& scratch) {
        const int of_warp = this_warp() / 4;
        if (of_warp * KEYS < count) score(of_warp > 0 ? stages[1] : stages[0], of_warp * KEYS, queries, scratch);
        if (count % KEYS != 0) blank(count > KEYS ? stages[1] : stages[0], count % KEYS);
        meet();
        weigh(p, count, scratch);
        meet();
        rescale(scratch);
        sum(stages[0], 0, scratch);
        if (count > KEYS) sum(stages[1], KEYS, scratch);
    }

    // Scores of the keys of a stage, by a quarter of their numbers. first: of the keys among those of both stages.
    __device__ __forceinline__ void score(
        uint32_t stage, int first, const uint32_t (&queries)[TILES][QUARTER_STEPS][4], Scratch& scratch) const {
        const int lane = threadIdx.x % 32, quarter = this_warp() % 4;
        const uint32_t row = stage + (lane / 16 * 8 + lane % 8) * ROW_BYTES;
        float scores[TILES][KEYS / 8][4] = {};
#pragma unroll
        for (int s = 0; s < QUARTER_STEPS; ++s)
#pragma unroll
            for (int m = 0; m < KEYS / 16; ++m) {
                uint32_t keys[4];
                load_matrices(
                    keys, chunk_of(row + m * 16 * ROW_BYTES, (quarter * QUARTER_STEPS + s) * 2 + lane / 8 % 2));
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const uint32_t eight[2] = {keys[2 * n], keys[2 * n + 1]};
#pragma unroll
                    for (int t = 0; t < TILES; ++t) multiply(scores[t][2 * m + n], queries[t][s], eight);
                }
            }
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float* of_query = scratch.scores[quarter][16 * t + 8 * half + lane / 4];
                    *reinterpret_cast<float2*>(of_query + first + 8 * n + lane % 4 * 2) = {
                        scores[t][n][2 * half], scores[t][n][2 * half + 1]};
                }
    }

    // Weights of all keys for this warp's queries. A lane has one key of each stage.
    __device__ __forceinline__ void weigh(const Params& p, int count, Scratch& scratch) {
        const int lane = threadIdx.x % 32, first = this_warp() * OWN;
        float scores[OWN][AT_ONCE], top[OWN];
#pragma unroll
        for (int r = 0; r < OWN; ++r) {
            top[r] = -INFINITY;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                float whole = 0.f;
#pragma unroll
                for (int quarter = 0; quarter < 4; ++quarter)
                    whole += scratch.scores[quarter][first + r][i * KEYS + lane];
                scores[r][i] = i * KEYS + lane < count ? whole * (p.scale * LOG2E) : -INFINITY;
                top[r] = fmaxf(top[r], scores[r][i]);
            }
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
#pragma unroll
            for (int r = 0; r < OWN; ++r) top[r] = fmaxf(top[r], __shfl_xor_sync(ALL, top[r], distance));
#pragma unroll
        for (int r = 0; r < OWN; ++r) {
            top[r] = fmaxf(top[r], highest[r]);
            const float shrink = power_of_2(highest[r] - top[r]);
            weight[r] *= shrink;
            highest[r] = top[r];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const float own = power_of_2(scores[r][i] - top[r]);
                weight[r] += own;
                scratch.weights[first + r][i * KEYS + lane] = static_cast<Value>(own);
            }
            if (lane == 0) scratch.shrink[first + r] = shrink;
        }
    }

    // This warp's share of the values shrinks as its queries' weights do.
    __device__ __forceinline__ void rescale(const Scratch& scratch) {
        const int lane = threadIdx.x % 32;
        float shrink[TILES][2];
        bool changed = false;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                shrink[t][half] = scratch.shrink[16 * t + 8 * half + lane / 4];
                changed |= shrink[t][half] != 1.f;
            }
        if (!__any_sync(ALL, changed)) return;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int n = 0; n < SHARE / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) out[t][n][i] *= shrink[t][i / 2];
    }

    // Sums of this warp's share of the values of a stage. first: of its keys among those of both stages.
    __device__ __forceinline__ void sum(uint32_t stage, int first, const Scratch& scratch) {
        const int lane = threadIdx.x % 32;
        const uint32_t of_weights = shared_place(scratch.weights[lane % 16] + first) + lane / 16 * 16;
        // A warp's share of a value is one line.
        const uint32_t row = stage + (lane / 8 % 2 * 8 + lane % 8) * ROW_BYTES;
        const uint32_t values = chunk_of(row, this_warp() * 8 + lane / 16);
#pragma unroll
        for (int s = 0; s < KEYS / 16; ++s) {
            uint32_t weights[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; ++t)
                load_matrices(weights[t], of_weights + t * 16 * SCORE_STRIDE * int(sizeof(Value)) + s * 32);
#pragma unroll
            for (int n = 0; n < SHARE / 16; ++n) {
                uint32_t pair[4];
                load_matrices_turned(pair, (values + s * 16 * ROW_BYTES) ^ (n * 32));
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const uint32_t eight[2] = {pair[2 * i], pair[2 * i + 1]};
#pragma unroll
                    for (int t = 0; t < TILES; ++t) multiply(out[t][2 * n + i], weights[t], eight);
                }
            }
        }
    }

    // Values that are not there must be numbers, as their weight is zero.
    __device__ __forceinline__ static void blank(uint32_t stage, int count) {
        for (int at = count * ROW_BYTES + threadIdx.x * 16; at < STAGE_BYTES; at += WARPS * 32 * 16)
            clear_16(stage + at);
        yield_to_copies();
    }

    // Divides by the weights, and stores the output, or a partial result with its log-sum-exp: NaN of queries that saw
    // a key which is not finite.
    __device__ __forceinline__ void finish(const Params& p, const Item& item, Scratch& scratch) {
        const int lane = threadIdx.x % 32, warp = this_warp();
        meet();  // all have read `shrink`
#pragma unroll
        for (int r = 0; r < OWN; ++r)
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                weight[r] += __shfl_xor_sync(ALL, weight[r], distance);
        // Each of the warp's queries by a lane of its own.
#pragma unroll
        for (int r = 0; r < OWN; ++r)
            if (lane == r) tell(p, item, warp * OWN + r, highest[r], weight[r], scratch);
        meet();
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int of_tile = 16 * t + 8 * half + lane / 4, query = item.first_query + of_tile;
                if (query >= item.queries) continue;
                const float share = scratch.shrink[of_tile];
                const size_t at = place(p, item, query) * DIM + warp * SHARE + lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < SHARE / 8; ++n) {
                    const float2 pair = {out[t][n][2 * half] * share, out[t][n][2 * half + 1] * share};
                    if (item.part < 0)
                        *reinterpret_cast<uint32_t*>(p.out + at + 8 * n) = packed(pair.x, pair.y);
                    else
                        *reinterpret_cast<float2*>(p.partial + at + 8 * n) = pair;
                }
            }
    }

    // The log-sum-exp of a query of the tile, and what its sums are multiplied with.
    __device__ __forceinline__ static void tell(
        const Params& p, const Item& item, int of_tile, float highest, float whole, Scratch& scratch) {
        scratch.shrink[of_tile] = 1.f / whole;
        const int query = item.first_query + of_tile;
        if (item.part < 0 || query >= item.queries) return;
        const size_t at = place(p, item, query);
        p.partial_lse[at] = highest + log2f(whole);
        for (int i = 1; i <= item.empty; ++i) p.partial_lse[at + size_t(i) * p.group] = -INFINITY;
    }

    // Where the result of a query goes: a query head of the output, or of the partial results.
    __device__ __forceinline__ static size_t place(const Params& p, const Item& item, int query) {
        const int member = query / p.group;
        int first = item.part < 0 ? item.source : item.part;
        if (item.rows > 1) first += p.members[item.source + member].y;
        return size_t(first) * p.group + query - member * p.group;
    }
};

}  // namespace
