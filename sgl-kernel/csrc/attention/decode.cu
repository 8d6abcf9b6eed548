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
// are not all that a row reads leave a partial result and its log-sum-exp, which `join` weighs in a fixed order.
//
// Compiled once for each head dimension (-DHEAD_DIM=64, 128, 256) and type (-DHALF for fp16, else bf16).

#include "join.cuh"
#include "sums.cuh"

namespace {

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

template <bool LONE>
__device__ __forceinline__ void meet(const Team& team) {
    if (LONE)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(team.index + 1), "r"(team.size * 32) : "memory");
}

// The items [begin, end), all with teams of the same size; a team works on the keys of BATCH warps at once. `ready`:
// whether this block has waited for the kernel before it.
template <int TILES, bool LONE, int BATCH>
__device__ void run(
    const Params& p, const Item* begin, const Item* end, int warps, uint32_t ring, uint32_t entries, bool& ready) {
    const Team team(LONE ? 1 : warps, p.kv_heads);
    const int first = team.member * 8 * TILES;
    constexpr int DISTANCE = STAGES * STAGE_BYTES;
    const uint32_t team_ring = ring + (this_warp() - team.member) * DISTANCE;
    const uint32_t own_ring = team_ring + team.member * DISTANCE;
    // Entries of the page table come as many stages before their keys as these come before they are needed: when memory
    // is busy, they take as long.
    Walk looked{begin, end, 0, 0};
    looked.settle(team);
    Walk fetched = looked;
    int pages[STAGES - 1];
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        int key = key_of(looked, team);
        pages[s] = key < 0 ? 0 : __ldg(entry_of(p, looked, key));
        looked.step(team);
    }
    // What the kernel before this one writes is the new token; plan, page table and older keys are of earlier steps.
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (!ready && fetched.newest(team)) {
            wait_for_primary();
            ready = true;
        }
        fetch(p, own_ring + s * STAGE_BYTES, row_of(p, fetched, team, key_of(fetched, team), pages[s]));
        fetched.step(team);
        look_up(p, looked, team, entries + (s + STAGES - 1) % STAGES * KEYS * 4);
        close_stage();
    }
    if (!ready) wait_for_primary();
    ready = true;
    int full = 0, free = STAGES - 1;

    for (; begin < end; ++begin) {
        const Item item = *begin;
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
            int page;
            const uint32_t entry = entries + (free * KEYS + threadIdx.x % KEYS) * 4;
            asm volatile("ld.shared.s32 %0, [%1];" : "=r"(page) : "r"(entry));
            fetch(p, own_ring + free * STAGE_BYTES, row_of(p, fetched, team, key_of(fetched, team), page));
            fetched.step(team);
            look_up(p, looked, team, entries + (free == 0 ? STAGES - 1 : free - 1) * KEYS * 4);
            close_stage();
            if (!idle) {
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
    __shared__ int found[WARPS][STAGES][KEYS];
    const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const uint32_t entries = static_cast<uint32_t>(__cvta_generic_to_shared(found[threadIdx.x / 32]));
    let_dependents_start();
    bool ready = !p.early;
    if (ready) wait_for_primary();
    const int end = p.indptr[blockIdx.x + 1];
    for (int at = p.indptr[blockIdx.x]; at < end; at += ITEMS_HELD) {
        const int count = min(end - at, ITEMS_HELD);
        __syncthreads();
        constexpr int PARTS = sizeof(Item) / 16;
        for (int i = threadIdx.x; i < count * PARTS; i += THREADS)
            reinterpret_cast<int4*>(items)[i] = reinterpret_cast<const int4*>(p.items + at)[i];
        __syncthreads();
        for (int i = 0; i < count;) {
            const int warps = items[i].team;
            int j = i + 1;
            while (j < count && items[j].team == warps) ++j;
            if (warps == 0)
                run<1, true, 1>(p, items + i, items + j, 1, ring, entries, ready);
            else if (warps == 1)
                run<2, true, 1>(p, items + i, items + j, 1, ring, entries, ready);
            else if (warps == 2)
                run<2, false, (BATCHED > 1 ? 2 : 1)>(p, items + i, items + j, 2, ring, entries, ready);
            else
                run<2, false, BATCHED>(p, items + i, items + j, warps, ring, entries, ready);
            i = j;
            if (i < count) __syncthreads();
        }
    }
    // A kernel is complete only when those before it are.
    if (!ready) wait_for_primary();
}

template <class Kernel>
cudaError_t launch(
    Kernel kernel, int blocks, int threads, size_t shared, cudaStream_t stream, bool overlap, const Params& p) {
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

// Sizes in elements. `overlap`: programmatic dependent launch; `early`: see Params. `lean_join`: one warp for each
// query head instead of a block.
extern "C" cudaError_t mysgl_decode_attention(
    const void* q, long q_stride, const void* keys, const void* values, const int* table, long table_stride,
    const int* indptr, const void* items, const void* members, const void* joins, void* out, float* partial,
    float* partial_lse, int blocks, int rows, int kv_heads, int group, int page_size, float scale,
    float cap, int overlap, int early, int lean_join, cudaStream_t stream) {
    const Params p = {static_cast<const Value*>(q), static_cast<const Value*>(keys), static_cast<const Value*>(values),
                      table, indptr, static_cast<const Item*>(items), static_cast<const int2*>(members),
                      static_cast<const int2*>(joins), static_cast<Value*>(out), partial, partial_lse,
                      q_stride, table_stride, rows, kv_heads, group, page_size, scale, cap, early};
    constexpr int SHARED = WARPS * STAGES * STAGE_BYTES;
    cudaError_t error = cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (error == cudaSuccess) error = launch(attend, blocks, THREADS, SHARED, stream, overlap, p);
    if (error != cudaSuccess) return error;
    // A multiprocessor divides its memory anew, for which it must be empty, when a kernel asks for another division.
    const auto joining = lean_join ? join<false> : join<true>;
    error = cudaFuncSetAttribute(
        joining, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
    const int units = rows * kv_heads * group;
    return launch(
        joining, lean_join ? (units + JOINERS - 1) / JOINERS : units, JOINERS * 32, 0, stream, overlap, p);
}
