// Attention of decode steps over paged latent rows (multi-head latent attention): one row of a token is the key of all
// heads, and its first DIM numbers are their value.
//
// The plan is that of decode.cu, with one KV head. A block walks its list of items with all of its warps at once, for a
// tile of 16 or 32 queries (`team`: how many times 16):
//
//     queries of an item, and its rows, KEYS at a time --copy engine--> ring of stages in shared memory
//     scores    a warp has a quarter of each key's numbers and one stage of two; four partial scores are added
//     softmax   online (Milakov and Gimelshein, 2018), in base 2; a warp has some of the queries
//     sums      a warp has an eighth of the value's numbers, for all queries and keys
//
// So a query's numbers lie in registers, each warp those of its quarter, and a row is read from shared memory once for
// its scores and once for the sums, whatever the number of queries is. Four more warps keep the ring full, over the
// ends of items. Ranges that are not all that a row reads leave a partial result, which `join` weighs in a fixed order.
//
// Compiled for each type (-DHALF for fp16, else bf16), with the sizes of DeepSeek's rows: -DHEAD_DIM=512, the latent,
// and -DTURNED=64, the rotary part.

#include "join.cuh"
#include "latent_ring.cuh"
#include "latent_sums.cuh"
#include "registers.cuh"

namespace {

template <int TILES>
__device__ void attend_to(
    const Params& p, const Item* begin, const Item* end, const Ring& ring, Turn& turn, int& of_queries,
    Scratch& scratch) {
    for (; begin < end; ++begin) {
        const Item item = *begin;
        uint32_t queries[TILES][QUARTER_STEPS][4];
        await_stage(ring, QUERIES, of_queries);
        load_queries(queries, ring.stage(QUERIES));
        give_back(ring, QUERIES);
        of_queries ^= 1;
        Sums<TILES> sums;
        sums.clear();
        for (int left = item.end - item.begin; left > 0; left -= AT_ONCE * KEYS) {
            const int first = turn.slot;
            await_stage(ring, first, turn.parity);
            turn.step();
            const int second = turn.slot;
            if (left > KEYS) {
                await_stage(ring, second, turn.parity);
                turn.step();
            }
            const uint32_t stages[AT_ONCE] = {ring.stage(first), ring.stage(second)};
            sums.add(p, stages, min(left, AT_ONCE * KEYS), queries, scratch);
            give_back(ring, first);
            if (left > KEYS) give_back(ring, second);
        }
        sums.finish(p, item, scratch);
    }
}

constexpr int HELD = 64;  // items in shared memory

__global__ void __launch_bounds__(THREADS, 1) attend(const Params p, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ Item items[HELD];
    __shared__ int entries[LOOKED_UP][KEYS];
    __shared__ __align__(8) uint64_t barriers[2][STAGES + 1];
    __shared__ Scratch scratch;
    const auto place = [](const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); };
    const Ring ring = {place(shared), place(entries), place(barriers[0]), place(barriers[1])};
    let_dependents_start();
    if (threadIdx.x <= STAGES) {
        make_barrier(ring.full + threadIdx.x * 8, COPIERS);
        make_barrier(ring.empty + threadIdx.x * 8, WARPS);
        publish_barriers();
    }
    // The block's items, as many at a time as are held in shared memory.
    const auto for_items = [&](auto work) {
        const int end = p.indptr[blockIdx.x + 1];
        for (int at = p.indptr[blockIdx.x]; at < end; at += HELD) {
            const int count = min(end - at, HELD);
            __syncthreads();
            constexpr int PARTS = sizeof(Item) / 16;
            for (int i = threadIdx.x; i < count * PARTS; i += THREADS)
                reinterpret_cast<int4*>(items)[i] = reinterpret_cast<const int4*>(p.items + at)[i];
            __syncthreads();
            work(count);
        }
    };
    // Registers are divided anew: the sums of 32 queries need more than an even share.
    Turn turn;
    int of_queries = 0;
    if (this_warp() >= WARPS) {
        give_registers<40>();
        // Only the copying warps have something to do before the kernel ahead of this one is done.
        bool ready = !p.early;
        if (ready) wait_for_primary();
        for_items([&](int count) { fill(p, maps, items, items + count, ring, turn, of_queries, ready); });
        // A kernel is complete only when those before it are.
        if (!ready) wait_for_primary();
        return;
    }
    take_registers<224>();
    for_items([&](int count) {
        for (int i = 0; i < count;) {
            int j = i + 1;
            while (j < count && items[j].team == items[i].team) ++j;
            if (items[i].team == 1)
                attend_to<1>(p, items + i, items + j, ring, turn, of_queries, scratch);
            else
                attend_to<2>(p, items + i, items + j, ring, turn, of_queries, scratch);
            i = j;
        }
    });
}

}  // namespace

// Sizes in elements. `overlap`: programmatic dependent launch; `early`: see Params. `lean_join`: one warp for each
// slice of a query head instead of a block.
extern "C" cudaError_t mysgl_latent_decode_attention(
    const void* q, long q_stride, const void* latent_rows, long slots, const int* table, long table_stride,
    const int* indptr, const void* items, const void* members, const void* joins, void* out, float* partial,
    float* partial_lse, int blocks, int rows, int heads, int page_size, float scale, int overlap, int early,
    int lean_join, cudaStream_t stream) {
    const Params p = {static_cast<const Value*>(q), table, indptr, static_cast<const Item*>(items),
                      static_cast<const int2*>(members), static_cast<const int2*>(joins), nullptr, nullptr, nullptr,
                      static_cast<Value*>(out), partial, partial_lse, q_stride, table_stride, rows, 1, heads, page_size,
                      scale, 0.f, early};
    constexpr int SHARED = (STAGES + 1) * STAGE_BYTES;
    Maps maps;
    cudaError_t error = describe_lines(maps.queries, q, rows * (q_stride / (ROW / LINES)), LINES);
    if (error == cudaSuccess) error = describe_lines(maps.rows, latent_rows, slots * LINES, LINES);
    if (error != cudaSuccess) return error;
    error = cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (error == cudaSuccess) error = launch(attend, blocks, THREADS, SHARED, stream, overlap, p, maps);
    if (error != cudaSuccess) return error;
    return launch_join(p, overlap, lean_join, stream);
}
