// The ring of stages in shared memory: the warps that fill it, and how the others wait for it.

#pragma once

#include "maps.cuh"

namespace {

constexpr int LOOKED_UP = 4;  // stages whose page table entries are on their way before those of their keys

// Where all of it lies in shared memory. Of each stage's barriers, `full` ends a phase when all copies of it are there,
// `empty` when all computing warps are through with it.
struct Ring {
    uint32_t stages, entries, full, empty;
};

using Turn = TurnOf<STAGES>;

// The stages of a list of items, and what one copying thread has to do with each: one row of keys, or of values, or, if
// there are as many rows as threads, of both.
template <bool LATE>
struct Walk {
    const Params& p;
    const Item *item, *last;
    int thread;
    Teams teams;
    int stage, stages;
    int key, end;  // position of the row's key, where there is none if not below `end`

    __device__ __forceinline__ Walk(const Params& p, const Item* item, const Item* last, int thread)
        : p(p), item(item), last(last), thread(thread), teams(item->team, p.kv_heads) {
        settle();
    }

    __device__ __forceinline__ void settle() {
        teams = Teams(item->team, p.kv_heads);
        stage = 0;
        stages = teams.template stages_of<LATE>(*item);
        const int share = row() >> teams.width_bits;
        key = teams.begin_of(*item, share) + row() - (share << teams.width_bits);
        end = thread < 2 * teams.rows() ? teams.begin_of(*item, share + 1) : -1;
    }

    __device__ __forceinline__ int row() const { return thread & (teams.rows() - 1); }

    __device__ __forceinline__ bool goes_on() const { return item < last; }

    __device__ __forceinline__ bool there() const { return key < end; }

    __device__ __forceinline__ void step() {
        key += 1 << teams.width_bits;
        if (++stage < stages) return;
        if (++item < last) settle();
    }

    // Whether the stage may hold a key that the kernel before this one writes. Up to KEYS of those end a row, so they
    // are in no stage before the last two.
    __device__ __forceinline__ bool newest() const { return item->end > item->fresh && stage + (LATE ? 2 : 1) >= stages; }

    __device__ __forceinline__ const int* entry() const {
        const int* row = p.table + item->slot * p.table_stride;
        return row + (p.page_size == 1 ? key : unsigned(key) / unsigned(p.page_size));
    }

    // The row's first line in the pool.
    __device__ __forceinline__ int line(int page) const {
        int slot = page;
        if (p.page_size > 1) slot = slot * p.page_size + unsigned(key) % unsigned(p.page_size);
        return (slot * p.kv_heads + item->head) * LINES;
    }
};

// What the copying warps do for a list of items.
template <bool LATE>
__device__ __forceinline__ void fill(
    const Params& p, const Maps& maps, const Item* begin, const Item* end, const Ring& ring, Turn& turn, bool& ready) {
    // Neighbours in different warps, as a warp's copies are issued one by one.
    const int lane = threadIdx.x % 32, thread = lane * COPIERS + this_warp() - WARPS;
    const uint32_t entries = ring.entries + thread * LOOKED_UP * 4;
    Walk<LATE> looked(p, begin, end, thread), walk = looked;
    // Entries of the page table come so many stages before their keys because they take as long when memory is busy.
    auto look_up = [&](int place) {
        if (looked.goes_on()) {
            if (looked.there()) copy_word(entries + place * 4, looked.entry());
            looked.step();
        }
        close_group();
    };
#pragma unroll
    for (int s = 0; s < LOOKED_UP; ++s) look_up(s);
    for (int place = 0; walk.goes_on(); place = (place + 1) % LOOKED_UP) {
        // What the kernel before this one writes are the new tokens; all else is of earlier steps.
        if (!ready && walk.newest()) {
            wait_for_primary();
            ready = true;
        }
        await_groups<LOOKED_UP - 1>();
        const bool there = walk.there(), both = walk.teams.rows() == COPIERS * 32;
        const bool values = !both && thread >= walk.teams.rows();
        const int bytes = walk.teams.heads * ROW_BYTES;
        const int line = there ? walk.line(load_word(entries + place * 4)) : 0;
        const uint32_t full = ring.full + turn.slot * 8;
        const uint32_t to =
            ring.stages + turn.slot * STAGE_BYTES + (values ? HALF_BYTES : 0) + walk.teams.place(walk.row());
        const int count = __popc(__ballot_sync(ALL, there));
        await(ring.empty + turn.slot * 8, turn.parity ^ 1);
        if (lane == 0) arrive_expecting(full, count * bytes << int(both));
        if (there) {
            const int map = __ffs(walk.teams.heads) - 1;
            copy_lines(to, (values ? maps.values : maps.keys) + map, line, full);
            if (both) copy_lines(to + HALF_BYTES, maps.values + map, line, full);
        }
        walk.step();
        turn.step();
        look_up(place);
    }
    await_groups<0>();
}

}  // namespace
