// The ring of stages in shared memory through which latent rows come, and the warp that fills it.

#pragma once

#include "plan.cuh"

namespace {

constexpr int ROW = DIM + TURNED;  // numbers of a latent row
constexpr int ROW_BYTES = ROW * sizeof(Value);
constexpr int LINE_BYTES = ROW_BYTES + 16;  // in shared memory: eight rows' chunks of 16 bytes lie in different banks
constexpr int KEYS = 32;                    // of a stage: one for each lane that copies; or as many queries
constexpr int STAGE_BYTES = KEYS * LINE_BYTES;
constexpr int STAGES = 5;
constexpr int WARPS = 8;  // that compute
constexpr int THREADS = (WARPS + 1) * 32;
constexpr int LOOKED_UP = 4;  // stages whose page table entries are on their way before those of their rows

static_assert(ROW_BYTES % 128 == 0, "or rows that are neighbours in shared memory would lie in the same banks");

// Where all of it lies in shared memory. Of each stage's barriers, `full` ends a phase when all copies of it are there,
// `empty` when all computing warps are through with it.
struct Ring {
    uint32_t stages, entries, full, empty;
};

// A place in the ring, and how often the ring was gone round, modulo two.
struct Turn {
    int slot = 0, parity = 0;

    __device__ __forceinline__ void step() {
        if (++slot < STAGES) return;
        slot = 0;
        parity ^= 1;
    }
};

// By a computing warp that needs nothing more of this stage.
__device__ __forceinline__ void give_back(const Ring& ring, Turn& turn) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(ring.empty + turn.slot * 8);
    turn.step();
}

// One row of shared memory, by the copy engine.
__device__ __forceinline__ void copy_row(uint32_t to, const Value* from, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
        "n"(ROW_BYTES), "r"(barrier)
        : "memory");
}

// The stages with keys in a list of items, and this lane's key in each.
struct Walk {
    const Params& p;
    const Item *item, *last;
    int key;

    __device__ __forceinline__ Walk(const Params& p, const Item* item, const Item* last) : p(p), item(item), last(last) {
        key = item->begin + threadIdx.x % 32;
    }

    __device__ __forceinline__ bool goes_on() const { return item < last; }

    __device__ __forceinline__ bool there() const { return key < item->end; }

    // True behind the last stage of an item.
    __device__ __forceinline__ bool step() {
        key += KEYS;
        if (key - int(threadIdx.x % 32) < item->end) return false;
        if (++item < last) key = item->begin + threadIdx.x % 32;
        return true;
    }

    __device__ __forceinline__ const int* entry() const {
        const int* row = p.table + item->slot * p.table_stride;
        return row + (p.page_size == 1 ? key : unsigned(key) / unsigned(p.page_size));
    }

    __device__ __forceinline__ long slot(int page) const {
        return p.page_size == 1 ? page : long(page) * p.page_size + unsigned(key) % unsigned(p.page_size);
    }
};

// This lane's query of the item's tile; null: it has none.
__device__ __forceinline__ const Value* query_of(const Params& p, const Item& item) {
    const int lane = threadIdx.x % 32, query = item.first_query + lane;
    if (lane >= 16 * item.team || query >= item.queries) return nullptr;
    const int member = query / p.group;
    const int row = item.rows == 1 ? item.source : p.members[item.source + member].x;
    return p.q + row * p.q_stride + (query - member * p.group) * ROW;
}

// What the copying warp does for a list of items: the queries of an item, then its rows.
__device__ __forceinline__ void fill(
    const Params& p, const Value* rows, const Item* begin, const Item* end, const Ring& ring, Turn& turn) {
    const int lane = threadIdx.x % 32;
    const uint32_t entries = ring.entries + lane * 4;
    Walk looked(p, begin, end), walk = looked;
    // Entries of the page table come so many stages before their rows because they take as long when memory is busy.
    auto look_up = [&](int place) {
        if (looked.goes_on()) {
            if (looked.there()) copy_word(entries + place * 128, looked.entry());
            looked.step();
        }
        close_group();
    };
    auto copy = [&](const Value* from) {
        const uint32_t full = ring.full + turn.slot * 8;
        const int count = __popc(__ballot_sync(ALL, from != nullptr));
        await(ring.empty + turn.slot * 8, turn.parity ^ 1);
        if (lane == 0) arrive_expecting(full, count * ROW_BYTES);
        __syncwarp();
        if (from != nullptr) copy_row(ring.stages + turn.slot * STAGE_BYTES + lane * LINE_BYTES, from, full);
        turn.step();
    };
#pragma unroll
    for (int s = 0; s < LOOKED_UP; ++s) look_up(s);
    bool begins = true;
    for (int place = 0; walk.goes_on(); place = (place + 1) % LOOKED_UP) {
        if (begins) copy(query_of(p, *walk.item));
        await_groups<LOOKED_UP - 1>();
        copy(walk.there() ? rows + walk.slot(load_word(entries + place * 128)) * ROW : nullptr);
        begins = walk.step();
        look_up(place);
    }
    await_groups<0>();
}

}  // namespace
