// How a block's warps share an item of the plan, and the sizes of what they share.

#pragma once

#include "lines.cuh"
#include "plan.cuh"

namespace {

constexpr int KEYS = 16;  // of one warp in one stage: the depth of one matrix instruction
constexpr int WARPS = DIM <= 128 ? 8 : 4;  // that compute
constexpr int COPIERS = 4;                 // warps that copy
constexpr int THREADS = (WARPS + COPIERS) * 32;
constexpr int STAGES = DIM == 64 ? 6 : 3;
constexpr int ROW_BYTES = DIM * 2;
constexpr int HALF_BYTES = WARPS * KEYS * ROW_BYTES * 9 / 8;  // of a stage: keys, then values; see Teams::place
constexpr int STAGE_BYTES = 2 * HALF_BYTES;
constexpr int STEPS = DIM / 16;
constexpr int BATCHED = DIM <= 128 ? 4 : 1;  // times 16 keys that a warp of a big team works on at once

// How the warps of a block share an item: teams of so many warps, each on one KV head and one share of the keys.
struct Teams {
    int warps, heads, shares;    // all powers of two
    int width_bits, share_bits;  // of the keys of a team in one stage, and of the shares
    int row_bits;                // of the bytes of a token, all heads

    __device__ __forceinline__ Teams(int team, int kv_heads) {
        warps = max(team, 1);
        const int team_bits = __ffs(WARPS / warps) - 1, head_bits = min(team_bits, __ffs(kv_heads) - 1);
        heads = 1 << head_bits;
        share_bits = team_bits - head_bits;
        shares = 1 << share_bits;
        width_bits = __ffs(warps * KEYS) - 1;
        row_bits = __ffs(heads * ROW_BYTES) - 1;
    }

    __device__ __forceinline__ int begin_of(const Item& item, int share) const {
        int units = (item.end - item.begin + KEYS - 1) / KEYS;
        return min(item.begin + (units * share >> share_bits) * KEYS, item.end);
    }

    // The last share is the longest. An item of a late plan may have no key, and takes a stage all the same.
    template <bool LATE>
    __device__ __forceinline__ int stages_of(const Item& item) const {
        int keys = item.end - begin_of(item, shares - 1);
        int stages = (keys + (1 << width_bits) - 1) >> width_bits;
        return LATE ? max(stages, 1) : stages;
    }

    // Where a token lies in its half of a stage. A line is left free after every eight, or after each token if it has
    // more, so that eight tokens' chunks, which the copy engine permutes by the line's address, lie in different banks.
    __device__ __forceinline__ int place(int row) const {
        return (row << row_bits) + ((row << row_bits) >> max(10, row_bits)) * LINE_BYTES;
    }

    // Tokens of one stage.
    __device__ __forceinline__ int rows() const { return shares << width_bits; }
};

}  // namespace
