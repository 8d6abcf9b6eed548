// Attention of decode steps over paged latent rows (multi-head latent attention): one row of a token is the key of all
// heads, and its first DIM numbers are their value.
//
// The plan is that of decode.cu, with one KV head. A block walks its list of items with all of its warps at once, for a
// tile of 16 or 32 queries (`team`: how many times 16):
//
//     queries of an item, then its rows, KEYS at a time --copy engine--> ring of stages in shared memory
//     scores    a warp has a quarter of each key's numbers and half of the keys; four partial scores are added
//     softmax   online (Milakov and Gimelshein, 2018), in base 2; a warp has some of the queries
//     sums      a warp has an eighth of the value's numbers, for all queries and keys
//
// So a query's numbers lie in registers, each warp those of its quarter, and a row is read from shared memory once for
// its scores and once for the sums, whatever the number of queries is. One more warp keeps the ring full, over the ends
// of items. Ranges that are not all that a row reads leave a partial result, which `join` weighs in a fixed order.
//
// Compiled for each type (-DHALF for fp16, else bf16), with the sizes of DeepSeek's rows: -DHEAD_DIM=512, the latent,
// and -DTURNED=64, the rotary part.

#include "join.cuh"
#include "latent_ring.cuh"
#include "latent_sums.cuh"

namespace {

template <int TILES>
__device__ void attend_to(const Params& p, const Item* begin, const Item* end, const Ring& ring, Turn& turn, Scratch& scratch) {
    for (; begin < end; ++begin) {
        const Item item = *begin;
        uint32_t queries[TILES][QUARTER_STEPS][4];
        await(ring.full + turn.slot * 8, turn.parity);
        load_queries(queries, ring.stages + turn.slot * STAGE_BYTES);
        give_back(ring, turn);
        Sums<TILES> sums;
        sums.clear();
        for (int left = item.end - item.begin; left > 0; left -= KEYS) {
            await(ring.full + turn.slot * 8, turn.parity);
            sums.add(p, ring.stages + turn.slot * STAGE_BYTES, min(left, KEYS), queries, scratch);
            give_back(ring, turn);
        }
        sums.finish(p, item, scratch);
    }
}

__global__ void __launch_bounds__(THREADS, 1) attend(const Params p, const void* rows) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ Item items[ITEMS_HELD];
    __shared__ int entries[LOOKED_UP][32];
    __shared__ __align__(8) uint64_t barriers[2][STAGES];
    __shared__ Scratch scratch;
    const auto place = [](const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); };
    const Ring ring = {place(shared), place(entries), place(barriers[0]), place(barriers[1])};
    let_dependents_start();
    if (threadIdx.x < STAGES) {
        make_barrier(ring.full + threadIdx.x * 8, 1);
        make_barrier(ring.empty + threadIdx.x * 8, WARPS);
        publish_barriers();
    }
    Turn turn;
    bool ready = false;
    const int end = p.indptr[blockIdx.x + 1];
    for (int at = p.indptr[blockIdx.x]; at < end; at += ITEMS_HELD) {
        const int count = min(end - at, ITEMS_HELD);
        __syncthreads();
        constexpr int PARTS = sizeof(Item) / 16;
        for (int i = threadIdx.x; i < count * PARTS; i += THREADS)
            reinterpret_cast<int4*>(items)[i] = reinterpret_cast<const int4*>(p.items + at)[i];
        __syncthreads();
        if (!ready) wait_for_primary();
        ready = true;
        if (this_warp() == WARPS) {
            fill(p, static_cast<const Value*>(rows), items, items + count, ring, turn);
            continue;
        }
        for (int i = 0; i < count;) {
            int j = i + 1;
            while (j < count && items[j].team == items[i].team) ++j;
            if (items[i].team == 1)
                attend_to<1>(p, items + i, items + j, ring, turn, scratch);
            else
                attend_to<2>(p, items + i, items + j, ring, turn, scratch);
            i = j;
        }
    }
    // A kernel is complete only when those before it are.
    if (!ready) wait_for_primary();
}

}  // namespace

// Sizes in elements. `overlap`: programmatic dependent launch. `lean_join`: one warp for each query head instead of a
// block.
extern "C" cudaError_t mysgl_latent_decode_attention(
    const void* q, long q_stride, const void* latent_rows, const int* table, long table_stride, const int* indptr,
    const void* items, const void* members, const void* joins, void* out, float* partial, float* partial_lse, int blocks,
    int rows, int heads, int page_size, float scale, int overlap, int lean_join, cudaStream_t stream) {
    const Params p = {static_cast<const Value*>(q), table, indptr, static_cast<const Item*>(items),
                      static_cast<const int2*>(members), static_cast<const int2*>(joins), nullptr, nullptr, nullptr,
                      static_cast<Value*>(out), partial, partial_lse, q_stride, table_stride, rows, 1, heads, page_size,
                      scale, 0.f, 0};
    constexpr int SHARED = STAGES * STAGE_BYTES;
    cudaError_t error = cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (error == cudaSuccess) error = launch(attend, blocks, THREADS, SHARED, stream, overlap, p, latent_rows);
    if (error != cudaSuccess) return error;
    return launch_join(p, overlap, lean_join, stream);
}
