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
//     keys, values --copy engine--> ring of stages in shared memory, 16 keys of each warp in a stage --> tensor cores
//
// Four more warps keep the ring full, by the copy engine (TMA), all KV heads of a block's token in one copy. The ring
// runs on over the ends of items, so that memory never waits for arithmetic. Scores are computed as
// S^T = K Q^T and outputs as O^T = V^T P^T: keys and head dimensions fill the 16 rows of a matrix instruction, queries,
// of which there are few, its 8 columns. Softmax is online (Milakov and Gimelshein, 2018) and in base 2. Ranges that
// are not all that a row reads leave a partial result and its log-sum-exp, which `join` weighs in a fixed order.
//
// In a step that tries drafts a row may have several new tokens, and only the device knows where they stand. The host
// plans for the longest that each row may be (a late plan), an item's group are the tokens of its row, and `settle` cuts
// off what lies behind the real end before anything is read.
//
// Compiled once for each head dimension (-DHEAD_DIM=64, 128, 256) and type (-DHALF for fp16, else bf16).

#include "join.cuh"
#include "maps.cuh"
#include "ring.cuh"
#include "sums.cuh"

namespace {

// What a computing warp does for the items [begin, end), all with teams of the same size; it works on the keys of BATCH
// warps at once.
template <int TILES, bool LONE, int BATCH, bool LATE>
__device__ void attend_to(const Params& p, const Item* begin, const Item* end, const Ring& ring, Turn& turn) {
    const Teams teams(begin->team, p.kv_heads);
    const int warps = LONE ? 1 : teams.warps, team = this_warp() / warps;
    const int head = team % teams.heads, share = team / teams.heads, first = this_warp() % warps * 8 * TILES;
    const int row = share * warps * KEYS;
    for (; begin < end; ++begin) {
        const Item item = *begin;
        int at = teams.begin_of(item, share), to = teams.begin_of(item, share + 1);
        const bool idle = item.first_query + first >= item.queries;
        uint32_t queries[TILES][STEPS][2];
        load_queries(p, item, item.head + head, item.first_query + first, queries);
        Sums<TILES> sums;
        sums.clear();
        for (int stage = teams.template stages_of<LATE>(item); stage > 0; --stage) {
            await(ring.full + turn.slot * 8, turn.parity);
            if (!idle) {
                for (int c = 0; c < warps; c += BATCH) {
                    int count = to - at - c * KEYS;
                    if (count <= 0) break;
                    sums.template add<BATCH, LATE>(
                        p, teams, ring.stages + turn.slot * STAGE_BYTES + head * ROW_BYTES, row + c * KEYS, count,
                        queries, {at + c * KEYS, item.fresh, item.first_query + first, p.group});
                }
            }
            at += warps * KEYS;
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(ring.empty + turn.slot * 8);
            turn.step();
        }
        if (idle) continue;
        // Sinks count once in a row: here if it is read as a whole, otherwise where its parts are joined.
        if (item.part < 0 && p.sinks != nullptr)
            sums.add_sinks(p, item, item.head + head, item.first_query + first);
        float lse[TILES][2];
        sums.finish(lse);
        if (item.part < 0)
            store_output<TILES, LATE>(p, item, item.head + head, item.first_query + first, sums);
        else
            store_partial(p, item, item.head + head, share, teams.shares, item.first_query + first, sums, lse);
    }
}

template <bool LATE>
__global__ void __launch_bounds__(THREADS, 1) attend(const Params p, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ Item items[ITEMS_HELD];
    __shared__ int entries[COPIERS * 32][LOOKED_UP];
    __shared__ __align__(8) uint64_t barriers[2][STAGES];
    const auto place = [](const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); };
    const Ring ring = {place(shared), place(entries), place(barriers[0]), place(barriers[1])};
    let_dependents_start();
    if (threadIdx.x < STAGES) {
        make_barrier(ring.full + threadIdx.x * 8, COPIERS);
        make_barrier(ring.empty + threadIdx.x * 8, WARPS);
        publish_barriers();
    }
    const bool copies = this_warp() >= WARPS;
    // Only the copying warps have something to do before the kernel ahead of this one is done.
    bool ready = !p.early;
    if (ready) wait_for_primary();
    Turn turn;
    const int end = p.indptr[blockIdx.x + 1];
    for (int at = p.indptr[blockIdx.x]; at < end; at += ITEMS_HELD) {
        const int count = min(end - at, ITEMS_HELD);
        __syncthreads();
        constexpr int PARTS = sizeof(Item) / 16;
        for (int i = threadIdx.x; i < count * PARTS; i += THREADS)
            reinterpret_cast<int4*>(items)[i] = reinterpret_cast<const int4*>(p.items + at)[i];
        __syncthreads();
        if (LATE) {
            for (int i = threadIdx.x; i < count; i += THREADS) settle(p, items[i]);
            __syncthreads();
        }
        if (copies) {
            fill<LATE>(p, maps, items, items + count, ring, turn, ready);
            continue;
        }
        if (!ready) wait_for_primary();
        ready = true;
        for (int i = 0; i < count;) {
            const int warps = items[i].team;
            int j = i + 1;
            while (j < count && items[j].team == warps) ++j;
            if (warps == 0)
                attend_to<1, true, 1, LATE>(p, items + i, items + j, ring, turn);
            else if (warps == 1)
                attend_to<2, true, 1, LATE>(p, items + i, items + j, ring, turn);
            else if (warps == 2 || LATE)  // few queries, where four at once would not fit the registers
                attend_to<2, false, (BATCHED > 1 ? 2 : 1), LATE>(p, items + i, items + j, ring, turn);
            else
                attend_to<2, false, BATCHED, LATE>(p, items + i, items + j, ring, turn);
            i = j;
        }
    }
    // A kernel is complete only when those before it are.
    if (!ready) wait_for_primary();
}

}  // namespace

// Sizes in elements. `lengths`: those of a late plan, or null. `overlap`: programmatic dependent launch; `early`: see
// Params. `lean_join`: one warp for each query head instead of a block.
extern "C" cudaError_t mysgl_decode_attention(
    const void* q, long q_stride, const void* keys, const void* values, long slots, const int* table, long table_stride,
    const int* indptr, const void* items, const void* members, const void* joins, const int* lengths,
    const int* extends, const float* sinks, void* out, float* partial, float* partial_lse, int blocks, int rows, int kv_heads, int group, int page_size, float scale,
    float cap, int overlap, int early, int lean_join, cudaStream_t stream) {
    const Params p = {static_cast<const Value*>(q), table, indptr, static_cast<const Item*>(items),
                      static_cast<const int2*>(members), static_cast<const int2*>(joins), lengths, extends,
                      sinks, static_cast<Value*>(out), partial, partial_lse, q_stride, table_stride, rows, kv_heads, group,
                      page_size, scale, cap, early};
    constexpr int SHARED = STAGES * STAGE_BYTES;
    Maps maps;
    cudaError_t error = describe(maps, keys, values, slots, kv_heads);
    if (error != cudaSuccess) return error;
    const auto attending = lengths == nullptr ? attend<false> : attend<true>;
    error = cudaFuncSetAttribute(attending, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (error == cudaSuccess) error = launch(attending, blocks, THREADS, SHARED, stream, overlap, p, maps);
    if (error != cudaSuccess) return error;
    return launch_join(p, overlap, lean_join, stream);
}

