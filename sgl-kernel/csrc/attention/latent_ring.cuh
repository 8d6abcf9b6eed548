// The ring of stages in shared memory through which latent rows come, and the warps that fill it.

#pragma once

#include "lines.cuh"
#include "plan.cuh"

namespace {

constexpr int ROW = DIM + TURNED;  // numbers of a latent row
constexpr int ROW_BYTES = ROW * sizeof(Value);
constexpr int LINES = ROW_BYTES / LINE_BYTES;
constexpr int KEYS = 32;  // of a stage, or as many queries
constexpr int STAGE_BYTES = KEYS * ROW_BYTES;
constexpr int STAGES = 4;  // of keys
constexpr int QUERIES = STAGES;  // the stage for queries, behind them
constexpr int WARPS = 8;    // that compute
constexpr int COPIERS = 4;  // warps that copy, since the copies of a warp are issued one by one
constexpr int THREADS = (WARPS + COPIERS) * 32;
constexpr int COPIED = KEYS / COPIERS;  // rows of a stage that a copying warp copies, each by a lane
constexpr int LOOKED_UP = 4;            // stages whose page table entries are on their way before those of their rows

static_assert(LINES * LINE_BYTES == ROW_BYTES && LINES % 2 == 1, "or chunks of eight rows would share banks");

// Where all of it lies in shared memory. Of each stage's barriers, `full` ends a phase when all copies of it are there,
// `empty` when all computing warps are through with it.
struct Ring {
    uint32_t stages, entries, full, empty;

    __device__ __forceinline__ uint32_t stage(int slot) const { return stages + slot * STAGE_BYTES; }
};

using Turn = TurnOf<STAGES>;

// By a computing warp that waits for a stage, or needs nothing more of it.
__device__ __forceinline__ void await_stage(const Ring& ring, int slot, int parity) {
    await(ring.full + slot * 8, parity);
}

__device__ __forceinline__ void give_back(const Ring& ring, int slot) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(ring.empty + slot * 8);
}

// Queries and latent rows as the copy engine is told of them, for copies of one of either.
struct Maps {
    CUtensorMap queries, rows;
};

// The stages with keys in a list of items, and the key in each that is this thread's.
struct Walk {
    const Params& p;
    const Item *item, *last;
    int row;  // of a stage; a thread that copies none has one behind it
    int key;

    __device__ __forceinline__ Walk(const Params& p, const Item* item, const Item* last, int row)
        : p(p), item(item), last(last), row(row), key(item->begin + row) {}

    __device__ __forceinline__ bool goes_on() const { return item < last; }

    __device__ __forceinline__ bool there() const { return row < KEYS && key < item->end; }

    __device__ __forceinline__ void step() {
        key += KEYS;
        if (key - row >= item->end && ++item < last) key = item->begin + row;
    }

    // Whether the stage may hold a row that the kernel before this one writes.
    __device__ __forceinline__ bool newest() const { return key - row + KEYS > item->fresh; }

    __device__ __forceinline__ const int* entry() const {
        const int* row = p.table + item->slot * p.table_stride;
        return row + (p.page_size == 1 ? key : unsigned(key) / unsigned(p.page_size));
    }

    // The row's first line in the pool.
    __device__ __forceinline__ int line(int page) const {
        const int slot = p.page_size == 1 ? page : page * p.page_size + unsigned(key) % unsigned(p.page_size);
        return slot * LINES;
    }
};

// The first line of a query of the item's tile; -1: there is none.
__device__ __forceinline__ int line_of(const Params& p, const Item& item, int of_tile) {
    const int query = item.first_query + of_tile;
    if (of_tile >= 16 * item.team || query >= item.queries) return -1;
    const int member = query / p.group;
    const int row = item.rows == 1 ? item.source : p.members[item.source + member].x;
    return row * int(p.q_stride / (ROW / LINES)) + (query - member * p.group) * LINES;
}

// What the copying warps do for a list of items. `of_queries` counts the items whose queries were copied, modulo two.
__device__ __forceinline__ void fill(
    const Params& p, const Maps& maps, const Item* begin, const Item* end, const Ring& ring, Turn& turn,
    int& of_queries, bool& ready) {
    const int lane = threadIdx.x % 32, first = (this_warp() - WARPS) * COPIED;
    const int row = lane < COPIED ? first + lane : KEYS;
    const uint32_t entries = ring.entries + row * 4;
    Walk looked(p, begin, end, row), walk = looked;
    // Entries of the page table come so many stages before their rows because they take as long when memory is busy.
    auto look_up = [&](int place) {
        if (looked.goes_on()) {
            if (looked.there()) copy_word(entries + place * KEYS * 4, looked.entry());
            looked.step();
        }
        close_group();
    };
    auto copy = [&](int slot, int parity, const CUtensorMap* map, int line) {
        const uint32_t full = ring.full + slot * 8;
        const int count = __popc(__ballot_sync(ALL, line >= 0));
        await(ring.empty + slot * 8, parity ^ 1);
        if (lane == 0) arrive_expecting(full, count * ROW_BYTES);
        if (line >= 0) copy_lines(ring.stage(slot) + row * ROW_BYTES, map, line, full);
    };
    const Item* asked = begin;
    // The kernel before this one writes the queries, and the rows of new tokens; all else is of earlier steps.
    auto ask = [&]() {
        if (!ready) wait_for_primary();
        ready = true;
        copy(QUERIES, of_queries, &maps.queries, line_of(p, *asked, row));
        of_queries ^= 1;
        ++asked;
    };
#pragma unroll
    for (int s = 0; s < LOOKED_UP; ++s) look_up(s);
    for (int place = 0, ahead = 0; walk.goes_on(); place = (place + 1) % LOOKED_UP, ++ahead) {
        // Queries come before the rows of their item, but for as many stages as have room while they are not there.
        const bool waits = !ready && ahead < STAGES && !walk.newest();
        while (!waits && asked <= walk.item) ask();
        await_groups<LOOKED_UP - 1>();
        const int line = walk.there() ? walk.line(load_word(entries + place * KEYS * 4)) : -1;
        copy(turn.slot, turn.parity, &maps.rows, line);
        turn.step();
        walk.step();
        look_up(place);
    }
    while (asked < end) ask();
    await_groups<0>();
}

}  // namespace
