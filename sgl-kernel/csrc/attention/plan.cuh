// What a launch is given, and how a block's warps walk over its part of the plan.

#pragma once

#include "instructions.cuh"

namespace {

constexpr int DIM = HEAD_DIM;
constexpr int KEYS = 16;  // of one warp in one stage: the depth of one matrix instruction
constexpr int WARPS = DIM <= 128 ? 8 : 4;
constexpr int THREADS = WARPS * 32;
#if defined(__CUDA_ARCH_LIST__) && __CUDA_ARCH_LIST__ < 900
constexpr int STAGES = DIM == 64 ? 4 : 2;  // sm_80 has 163 KB of shared memory for a block
#else
constexpr int STAGES = DIM == 64 ? 6 : 3;
#endif
constexpr int ROW_BYTES = DIM * 2;
constexpr int CHUNKS = DIM / 8;            // of 16 bytes in a row
constexpr int TILE_BYTES = KEYS * ROW_BYTES;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // of one warp: keys, then values
constexpr int STEPS = DIM / 16;
constexpr int BATCHED = DIM <= 128 ? 4 : 1;  // times 16 keys that a warp of a big team works on at once
constexpr int ITEMS_HELD = 128;
constexpr unsigned NO_ROW = 0xffffffffu;
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
    int newest;       // 1: the last key is that of the row's new token
};

struct Params {
    const Value* q;
    const Value* keys;
    const Value* values;
    const int* table;
    const int* indptr;     // [blocks + 1] into items
    const Item* items;
    const int2* members;   // batch row, first partial result
    const int2* joins;     // [rows] first partial result and how many; one: nothing to join
    Value* out;            // [rows, heads, dim]
    float* partial;        // [parts, heads, dim]
    float* partial_lse;    // [parts, heads], base 2
    long q_stride, table_stride;
    int rows, kv_heads, group, page_size;
    float scale, cap;
    int early;             // whether all keys but the rows' newest were there before the kernel ahead of this one began
};

// What one team does of a list of items: how many warps it has, which head and which share of each item's keys.
struct Team {
    int index, size, member, head, share, shares;

    __device__ Team(int warps, int kv_heads) {
        int warp = this_warp(), teams = WARPS / warps;
        int heads = min(teams, kv_heads & -kv_heads);
        index = warp / warps;
        size = warps;
        member = warp % warps;
        head = index % heads;
        share = index / heads;
        shares = teams / heads;
    }

    __device__ __forceinline__ void keys_of(const Item& item, int& begin, int& end) const {
        int keys = item.end - item.begin;
        begin = item.begin + keys * share / shares;
        end = item.begin + keys * (share + 1) / shares;
    }
};

// Where the team's next stage is read from.
struct Walk {
    const Item *item, *last;
    int at, end;

    // To the first item from here on in which the team has keys.
    __device__ __forceinline__ void settle(const Team& team) {
        for (; item < last; ++item) {
            team.keys_of(*item, at, end);
            if (at < end) return;
        }
    }

    __device__ __forceinline__ void step(const Team& team) {
        if (item >= last) return;
        at += KEYS * team.size;
        if (at < end) return;
        ++item;
        settle(team);
    }

    // Whether the next stage holds a key that the kernel before this one writes.
    __device__ __forceinline__ bool newest(const Team& team) const {
        return item < last && item->newest && at + KEYS * team.size >= end;
    }
};

// Of the key that lane l has in the walk's next stage, the l % 16th of this warp's: position, or -1 if there is none.
__device__ __forceinline__ int key_of(const Walk& walk, const Team& team) {
    int at = walk.at + team.member * KEYS + threadIdx.x % KEYS;
    return walk.item < walk.last && at < walk.end ? at : -1;
}

__device__ __forceinline__ const int* entry_of(const Params& p, const Walk& walk, int key) {
    const int* row = p.table + walk.item->slot * p.table_stride;
    return row + (p.page_size == 1 ? key : unsigned(key) / unsigned(p.page_size));
}

// Row of the pool, (KV slot, head), that a key on this page lies in.
__device__ __forceinline__ unsigned row_of(const Params& p, const Walk& walk, const Team& team, int key, int page) {
    if (key < 0) return NO_ROW;
    unsigned slot = p.page_size == 1 ? page : unsigned(page) * p.page_size + unsigned(key) % unsigned(p.page_size);
    return slot * p.kv_heads + walk.item->head + team.head;
}

// Have the page table's entries of the walk's next stage copied, for when that stage is fetched.
__device__ __forceinline__ void look_up(const Params& p, Walk& walk, const Team& team, uint32_t entries) {
    int key = key_of(walk, team);
    if (key >= 0 && threadIdx.x % 32 < KEYS)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(entries + threadIdx.x % KEYS * 4),
                     "l"(entry_of(p, walk, key)));
    walk.step(team);
}

}  // namespace
