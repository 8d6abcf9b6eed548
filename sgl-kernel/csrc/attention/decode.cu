// Attention of decode steps over a paged cache: one new token in each row, or several rows over pages that they share.
//
// The host cuts the keys of all rows into one even share for each block of threads, a list of items
// (layers/attention/decode_plan.py). An item is a range of the keys of a segment: of one row, or of a group of rows
// whose pages there are identical, with the query heads that read it. A block walks its list; its warps form teams,
// each on one KV head of the item:
//
//     team 0    one warp, up to 8 queries     a row by itself with up to 8 query heads for each KV head
//     team T    T warps, 16 queries each      more of them: T = 1, 2, 4, 8
//
//     keys, values --cp.async--> ring of stages in shared memory, 16 keys of each warp in a stage --> tensor cores
//
// The ring runs on over the ends of items, so that memory never waits for arithmetic. Scores are computed as
// S^T = K Q^T and outputs as O^T = V^T P^T: keys and head dimensions fill the 16 rows of a matrix instruction, queries,
// of which there are few, its 8 columns. Softmax is online (Milakov and Gimelshein, 2018) and in base 2. Ranges that
// are not all that a row reads leave a partial result and its log-sum-exp; `join` weighs them in a fixed order.
//
// Compiled once for each head dimension (-DHEAD_DIM=64, 128, 256) and type (-DHALF for fp16, else bf16).

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

#ifdef HALF
using Value = __half;
#else
using Value = __nv_bfloat16;
#endif

constexpr int DIM = HEAD_DIM;
constexpr int KEYS = 16;  // of one warp in one stage: the depth of one matrix instruction
constexpr int WARPS = DIM <= 128 ? 8 : 4;
constexpr int THREADS = WARPS * 32;
constexpr int STAGES = DIM == 64 ? 6 : 3;
constexpr int ROW_BYTES = DIM * 2;
constexpr int CHUNKS = DIM / 8;            // of 16 bytes in a row
constexpr int TILE_BYTES = KEYS * ROW_BYTES;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // of one warp: keys, then values
constexpr int STEPS = DIM / 16;
constexpr int BATCHED = DIM <= 128 ? 4 : 1;  // times 16 keys that a warp of a big team works on at once
constexpr int ITEMS_HELD = 128;
constexpr unsigned NO_ROW = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr unsigned ALL = 0xffffffffu;

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

__device__ __forceinline__ void let_dependents_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_primary() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

__device__ __forceinline__ void close_stage() { asm volatile("cp.async.commit_group;"); }

template <int PENDING>
__device__ __forceinline__ void await_stage() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_turned(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ uint32_t turned(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef HALF
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
#endif
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t packed(float low, float high) {
#ifdef HALF
    __half2 pair = __floats2half2_rn(low, high);
#else
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
#endif
    return *reinterpret_cast<uint32_t*>(&pair);
}

// Over the eight lanes that hold the same queries.
template <class F>
__device__ __forceinline__ float over_keys(float x, F f) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x = f(x, __shfl_xor_sync(ALL, x, distance));
    return x;
}

// What one team does of a list of items: how many warps it has, which head and which share of each item's keys.
struct Team {
    int index, size, member, head, share, shares;

    __device__ Team(int warps, int kv_heads) {
        int warp = threadIdx.x / 32, teams = WARPS / warps;
        int heads = min(teams, kv_heads & -kv_heads);
        index = warp / warps;
        size = warps;
        member = warp % warps;
        head = index % heads;
        share = index / heads;
        shares = teams / heads;
    }

    __device__ __forceinline__ void keys_of(const Item& item, int& begin, int& end) const {
        int span = (item.end - item.begin + shares - 1) / shares;
        begin = item.begin + share * span;
        end = min(begin + span, item.end);
    }
};

// Where the team's next stage is read from: it walks over items, skipping those in which the team has no keys.
struct Walk {
    const Item* items;
    int last, item, at, end;

    __device__ __forceinline__ void enter(int i, const Team& team) {
        for (item = i; item < last; ++item) {
            team.keys_of(items[item], at, end);
            if (at < end) return;
        }
    }

    __device__ __forceinline__ void step(const Team& team) {
        at += KEYS * team.size;
        if (at >= end) enter(item + 1, team);
    }
};

// Lane l: row of the pool, (KV slot, head), that the l % 16th of this warp's keys in the next stage lies in.
__device__ __forceinline__ unsigned look_up(const Params& p, Walk& walk, const Team& team) {
    unsigned row = NO_ROW;
    if (walk.item < walk.last) {
        const Item& item = walk.items[walk.item];
        int at = walk.at + team.member * KEYS + threadIdx.x % KEYS;
        if (at < walk.end) {
            int page = at / p.page_size;
            unsigned slot = __ldg(p.table + item.slot * p.table_stride + page) * p.page_size + at - page * p.page_size;
            row = slot * p.kv_heads + item.head + team.head;
        }
        walk.step(team);
    }
    return row;
}

// A chunk of row r lies at chunk ^ (r % 8), so that the eight rows of a matrix lie in different banks.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
    return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

__device__ __forceinline__ void fetch(const Params& p, uint32_t stage, unsigned rows) {
    constexpr int AT_ONCE = CHUNKS >= 32 ? 1 : 32 / CHUNKS;  // rows that a warp copies in one instruction
    int lane = threadIdx.x % 32, chunk = lane % CHUNKS;
#pragma unroll
    for (int first = 0; first < KEYS; first += AT_ONCE) {
        int key = first + lane / CHUNKS;
        unsigned row = __shfl_sync(ALL, rows, key);
        bool there = row != NO_ROW;
        size_t from = there ? size_t(row) * DIM + chunk * 8 : 0;
        uint32_t to = stage + swizzled(key, chunk);
        copy_16(to, p.keys + from, there);
        copy_16(to + TILE_BYTES, p.values + from, there);
    }
}

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

    // BATCH times 16 keys, of which the first `count` >= 1 are there; those of the next warp lie `distance` further.
    template <int BATCH>
    __device__ __forceinline__ void add(
        const Params& p, uint32_t keys, int distance, int count, const uint32_t (&queries)[TILES][STEPS][2]) {
        int lane = threadIdx.x % 32;
        float scores[BATCH][TILES][4] = {};
        {
            float odd[TILES][4] = {};  // a second chain of dependent instructions where there would be one
            int row = lane % 16;
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int b = 0; b < BATCH; ++b) {
                    uint32_t a[4];
                    load_matrices(a, keys + b * distance + swizzled(row, 2 * s + lane / 16));
#pragma unroll
                    for (int t = 0; t < TILES; ++t)
                        multiply(s % 2 && BATCH * TILES == 1 ? odd[t] : scores[b][t], a, queries[t][s]);
                }
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) scores[0][t][i] += odd[t][i];
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
                for (int b = 0; b < BATCH; ++b)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float x = scores[b][t][2 * h + j];
                        x = p.cap > 0.f ? p.cap * LOG2E * tanhf(x * p.scale / p.cap) : x * (p.scale * LOG2E);
                        if (b * KEYS + h * 8 + lane / 4 >= count) x = -INFINITY;
                        scores[b][t][2 * h + j] = x;
                        top = fmaxf(top, x);
                    }
                top = fmaxf(highest[t][j], over_keys(top, [](float a, float b) { return fmaxf(a, b); }));
                rescale |= top > highest[t][j];
                shrink[t][j] = exp2f(highest[t][j] - top);
                highest[t][j] = top;
                float sum = 0.f;
#pragma unroll
                for (int b = 0; b < BATCH; ++b)
#pragma unroll
                    for (int h = 0; h < 2; ++h) sum += scores[b][t][2 * h + j] = exp2f(scores[b][t][2 * h + j] - top);
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
        uint32_t values = keys + TILE_BYTES;
        int row = lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                uint32_t a[4];
                load_matrices_turned(a, values + b * distance + swizzled(row, 2 * s + lane / 8 % 2));
#pragma unroll
                for (int t = 0; t < TILES; ++t) multiply(out[s][t], a, weights[b][t]);
            }
    }

    // Divide by the weights; gives the log-sum-exp of each query, -inf of those that saw no key.
    __device__ __forceinline__ void finish(float (&lse)[TILES][2]) {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float sum = over_keys(weight[t][j], [](float a, float b) { return a + b; });
                float share = sum > 0.f ? 1.f / sum : 0.f;
                lse[t][j] = sum > 0.f ? highest[t][j] + log2f(sum) : -INFINITY;
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

// The output of a row that was read as a whole.
template <int TILES>
__device__ __forceinline__ void store_output(
    const Params& p, const Item& item, int head, int first, Sums<TILES>& sums) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        int query = first + 8 * t + lane / 4;
        bool there = query < item.queries;
        Value* to = p.out + (size_t(item.source) * p.kv_heads * p.group + head * p.group + (there ? query : 0)) * DIM;
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
    const Params& p, const Item& item, const Team& team, int first, Sums<TILES>& sums, float (&lse)[TILES][2]) {
    int lane = threadIdx.x % 32, head = item.head + team.head, heads = p.kv_heads * p.group;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            int query = first + 8 * t + lane % 4 * 2 + j;
            if (query >= item.queries) continue;
            int member = query / p.group, part = item.part + team.share;
            if (item.rows > 1) part += p.members[item.source + member].y;
            size_t at = size_t(part) * heads + head * p.group + query - member * p.group;
            if (lane < 4) {
                p.partial_lse[at] = lse[t][j];
                for (int i = 1; i <= item.empty; ++i) p.partial_lse[at + size_t(i) * team.shares * heads] = -INFINITY;
            }
            float* to = p.partial + at * DIM + lane / 4;
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int i = 0; i < 2; ++i) to[s * 16 + i * 8] = sums.out[s][t][2 * i + j];
        }
}

template <bool LONE>
__device__ __forceinline__ void meet(const Team& team) {
    if (LONE)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(team.index + 1), "r"(team.size * 32) : "memory");
}

// Items [begin, end), all with teams of the same size; a team works on the keys of BATCH warps at once. `ready`: whether
// this block has waited for the kernel before it.
template <int TILES, bool LONE, int BATCH>
__device__ void run(const Params& p, const Item* items, int begin, int end, int warps, uint32_t ring, bool& ready) {
    const Team team(LONE ? 1 : warps, p.kv_heads);
    const int first = team.member * 8 * TILES;
    const uint32_t team_ring = ring + (threadIdx.x / 32 - team.member) * STAGES * STAGE_BYTES;
    const uint32_t own_ring = team_ring + team.member * STAGES * STAGE_BYTES;
    Walk walk{items, end, begin, 0, 0};
    walk.enter(begin, team);

    // What the kernel before this one writes is the new token; plan, page table and older keys are of earlier steps.
    unsigned rows[STAGES];
    bool newest[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
        newest[s] = walk.item < walk.last && items[walk.item].newest && walk.at + KEYS * team.size >= walk.end;
        rows[s] = look_up(p, walk, team);
    }
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (newest[s] && !ready) {
            wait_for_primary();
            ready = true;
        }
        fetch(p, own_ring + s * STAGE_BYTES, rows[s]);
        close_stage();
    }
    if (!ready) wait_for_primary();
    ready = true;
    unsigned next = rows[STAGES - 1];  // looked up one stage before it is fetched
    int full = 0, free = STAGES - 1;

    for (int i = begin; i < end; ++i) {
        const Item item = items[i];
        int at, to;
        team.keys_of(item, at, to);
        const bool idle = item.first_query + first >= item.queries;
        uint32_t queries[TILES][STEPS][2];
        load_queries(p, item, item.head + team.head, item.first_query + first, queries);
        Sums<TILES> sums;
        sums.clear();
        for (; at < to; at += KEYS * team.size) {
            await_stage<STAGES - 2>();
            meet<LONE>(team);
            fetch(p, own_ring + free * STAGE_BYTES, next);
            close_stage();
            next = look_up(p, walk, team);
            if (!idle) {
                constexpr int DISTANCE = STAGES * STAGE_BYTES;
                for (int c = 0; c < team.size; c += BATCH) {
                    int count = to - at - c * KEYS;
                    if (count <= 0) break;
                    sums.template add<BATCH>(
                        p, team_ring + c * DISTANCE + full * STAGE_BYTES, DISTANCE, count, queries);
                }
            }
            full = full + 1 == STAGES ? 0 : full + 1;
            free = free + 1 == STAGES ? 0 : free + 1;
        }
        if (idle) continue;
        float lse[TILES][2];
        sums.finish(lse);
        if (item.part < 0)
            store_output(p, item, item.head + team.head, item.first_query + first, sums);
        else
            store_partial(p, item, team, item.first_query + first, sums, lse);
    }
    await_stage<0>();
}

__global__ void __launch_bounds__(THREADS, 1) attend(const Params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Item items[ITEMS_HELD];
    const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    let_dependents_start();
    bool ready = !p.early;
    if (ready) wait_for_primary();
    int begin = p.indptr[blockIdx.x];
    const int end = p.indptr[blockIdx.x + 1];
    while (begin < end) {
        const int held = min(end - begin, ITEMS_HELD);
        __syncthreads();
        constexpr int PARTS = sizeof(Item) / 16;
        for (int i = threadIdx.x; i < held * PARTS; i += THREADS)
            reinterpret_cast<int4*>(items)[i] = reinterpret_cast<const int4*>(p.items + begin)[i];
        __syncthreads();
        for (int i = 0; i < held;) {
            const int warps = items[i].team;
            int j = i + 1;
            while (j < held && items[j].team == warps) ++j;
            if (warps == 0)
                run<1, true, 1>(p, items, i, j, 1, ring, ready);
            else if (warps == 1)
                run<2, false, 1>(p, items, i, j, 1, ring, ready);
            else if (warps == 2)
                run<2, false, (BATCHED > 1 ? 2 : 1)>(p, items, i, j, 2, ring, ready);
            else
                run<2, false, BATCHED>(p, items, i, j, warps, ring, ready);
            i = j;
            if (i < held) __syncthreads();
        }
        begin += held;
    }
    // A kernel is complete only when those before it are.
    if (!ready) wait_for_primary();
}

constexpr int JOINERS = 8;  // warps of a block

// The partial results of one query head of one row, by one warp, or, SPLIT, by a block.
template <bool SPLIT>
__global__ void __launch_bounds__(JOINERS * 32) join(const Params p) {
    constexpr int WIDTH = DIM / 32;
    __shared__ float tops[JOINERS], sums[JOINERS], outs[JOINERS][DIM];
    let_dependents_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, heads = p.kv_heads * p.group;
    const int unit = SPLIT ? blockIdx.x : blockIdx.x * JOINERS + warp;
    const int row = unit / heads, head = unit - row * heads;
    const int2 parts = row < p.rows ? p.joins[row] : int2{0, 0};
    wait_for_primary();
    if (parts.y <= 1) return;
    const float* lse = p.partial_lse + size_t(parts.x) * heads + head;
    const float* from = p.partial + (size_t(parts.x) * heads + head) * DIM + lane * WIDTH;
    float top = -INFINITY, sum = 0.f, acc[WIDTH] = {};
    constexpr int STRIDE = SPLIT ? JOINERS : 1;
    constexpr int AT_ONCE = SPLIT ? 8 : 4;
    for (int i = SPLIT ? warp : 0; i < parts.y; i += STRIDE * AT_ONCE) {
        float x[AT_ONCE], o[AT_ONCE][WIDTH];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            int part = i + u * STRIDE;
            bool there = part < parts.y;
            x[u] = there ? lse[size_t(part) * heads] : -INFINITY;
            const float* at = from + size_t(there ? part : i) * heads * DIM;
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) o[u][w] = at[w];
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            if (x[u] == -INFINITY) continue;  // nothing was written there
            float higher = fmaxf(top, x[u]), shrink = exp2f(top - higher), weight = exp2f(x[u] - higher);
            sum = sum * shrink + weight;
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) acc[w] = acc[w] * shrink + o[u][w] * weight;
            top = higher;
        }
    }
    if (SPLIT) {
        if (lane == 0) tops[warp] = top, sums[warp] = sum;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) outs[warp][lane * WIDTH + w] = acc[w];
        __syncthreads();
        if (warp > 0) return;
        float highest = tops[0];
#pragma unroll
        for (int j = 1; j < JOINERS; ++j) highest = fmaxf(highest, tops[j]);
        sum = 0.f;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) acc[w] = 0.f;
#pragma unroll
        for (int j = 0; j < JOINERS; ++j) {
            float weight = exp2f(tops[j] - highest);
            sum += weight * sums[j];
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) acc[w] += weight * outs[j][lane * WIDTH + w];
        }
    }
    Value* to = p.out + (size_t(row) * heads + head) * DIM + lane * WIDTH;
#pragma unroll
    for (int w = 0; w < WIDTH; w += 2) *reinterpret_cast<uint32_t*>(to + w) = packed(acc[w] / sum, acc[w + 1] / sum);
}

template <class Kernel>
cudaError_t launch(Kernel kernel, int blocks, int threads, size_t shared, cudaStream_t stream, bool overlap, const Params& p) {
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace

// Sizes in elements. `overlap`: programmatic dependent launch; `early`: see Params. `lean_join`: one warp for each head instead of a block.
extern "C" cudaError_t mysgl_decode_attention(
    const void* q, long q_stride, const void* keys, const void* values, const int* table, long table_stride,
    const int* indptr, const void* items, const void* members, const void* joins, void* out, float* partial,
    float* partial_lse, int blocks, int rows, int kv_heads, int group, int page_size, float scale, float cap,
    int overlap, int early, int lean_join, cudaStream_t stream) {
    const Params p = {static_cast<const Value*>(q), static_cast<const Value*>(keys), static_cast<const Value*>(values),
                      table, indptr, static_cast<const Item*>(items), static_cast<const int2*>(members),
                      static_cast<const int2*>(joins), static_cast<Value*>(out), partial, partial_lse, q_stride,
                      table_stride, rows, kv_heads, group, page_size, scale, cap, early};
    constexpr int SHARED = WARPS * STAGES * STAGE_BYTES;
    cudaError_t error = cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    // A multiprocessor divides its memory anew, for which it must be empty, when a kernel asks for another division.
    const auto carveout = cudaFuncAttributePreferredSharedMemoryCarveout;
    if (error == cudaSuccess) error = cudaFuncSetAttribute(join<true>, carveout, cudaSharedmemCarveoutMaxShared);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(join<false>, carveout, cudaSharedmemCarveoutMaxShared);
    if (error == cudaSuccess) error = launch(attend, blocks, THREADS, SHARED, stream, overlap, p);
    if (error != cudaSuccess) return error;
    const int units = rows * kv_heads * group;
    if (lean_join)
        return launch(join<false>, (units + JOINERS - 1) / JOINERS, JOINERS * 32, 0, stream, overlap, p);
    return launch(join<true>, units, JOINERS * 32, 0, stream, overlap, p);
}
