// What a launch is given, and how a block's warps share an item of the plan.

#pragma once

#include "instructions.cuh"

namespace {

constexpr int DIM = HEAD_DIM;
constexpr int KEYS = 16;  // of one warp in one stage: the depth of one matrix instruction
constexpr int WARPS = DIM <= 128 ? 8 : 4;  // that compute
constexpr int COPIERS = 4;                 // warps that copy
constexpr int THREADS = (WARPS + COPIERS) * 32;
constexpr int STAGES = DIM == 64 ? 6 : 3;
constexpr int ROW_BYTES = DIM * 2;
constexpr int LINE_BYTES = 128;  // of all banks of shared memory, and what the copy engine swizzles
constexpr int HALF_BYTES = WARPS * KEYS * ROW_BYTES * 9 / 8;  // of a stage: keys, then values; see Teams::place
constexpr int STAGE_BYTES = 2 * HALF_BYTES;
constexpr int STEPS = DIM / 16;
constexpr int BATCHED = DIM <= 128 ? 4 : 1;  // times 16 keys that a warp of a big team works on at once
constexpr int ITEMS_HELD = 128;
constexpr float LOG2E = 1.4426950408889634f;

struct alignas(16) Item {
    int slot;         // row of the page table
    int begin, end;   // positions of keys
    int head;         // first KV head of the block's teams
    int team;         // warps of a team; 0: one warp with half as many queries
    int source;       // the batch row, or the first of the group's entries in `members`
    int first_query;  // of the team's tile; query i of a group is head i % heads of its member i / heads
    int queries;      // of the whole group and one KV head
    int rows;         // 1: source is a batch row
    int part;         // where the partial result goes (of a group: after each member's own); -1: straight to the output
    int empty;        // how many partial results after this one nobody else writes
    int fresh;        // position of the first key that this step writes; of a late plan the batch row, see `settle`
};

struct Params {
    const Value* q;
    const int* table;
    const int* indptr;     // [blocks + 1] into items
    const Item* items;
    const int2* members;   // batch row, first partial result
    const int2* joins;     // [rows] first partial result and how many; one: nothing to join
    const int* lengths;    // late plans: [batch rows] tokens of each with those of this step
    const int* extends;    // late plans: [batch rows] how many those of this step are
    const float* sinks;    // [heads] the score of one more key, whose value is zero; or null
    Value* out;            // [rows, heads, dim]
    float* partial;        // [parts, heads, dim]
    float* partial_lse;    // [parts, heads], base 2
    long q_stride, table_stride;
    int rows, kv_heads, group, page_size;
    float scale, cap;
    int early;             // whether all keys but those of this step were there before the kernel ahead of this one began
};

// Late plans: the host knew how long rows are at most, so what lies behind a row's real end is cut off here. An item of
// which nothing is left still leaves its partial results, of no weight.
__device__ __forceinline__ void settle(const Params& p, Item& item) {
    const int row = item.fresh, length = p.lengths[row];
    item.end = max(min(item.end, length), item.begin);
    item.fresh = length - p.extends[row];
}

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
