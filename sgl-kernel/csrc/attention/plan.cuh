// What a launch is given: the plan, and where results go.

#pragma once

#include "instructions.cuh"

namespace {

constexpr int DIM = HEAD_DIM;  // of a value
constexpr int ITEMS_HELD = 128;

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

}  // namespace
