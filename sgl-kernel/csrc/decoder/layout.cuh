// What one decode step reads and writes, and how its work is dealt out to the multiprocessors.
#pragma once

#include "exchange.cuh"

namespace decoder {

constexpr int WARPS = 8;  // that multiply
constexpr int THREADS = 32 * WARPS;
constexpr int FETCHERS = 4;    // warps that fetch: one cannot start copies as fast as memory answers them
constexpr int TILE_ROWS = 16;  // rows of a weight in one tile
constexpr int MAX_STAGES = 16;
constexpr int ATTENDING = WARPS;  // warps that attend
constexpr int MAX_GROUP = 8;      // query heads of one key-value head
constexpr int MAX_SPLITS = 32;    // of one row's keys: a lane for each when they are merged
constexpr int SPLIT_KEYS = 64;    // fewer are not worth a split of their own
constexpr int MARKS = 19;         // points of time in each layer that a trace notes

// Stages of the ring. More rows have longer vectors beside it, so they get shorter stages.
template <int ROWS>
struct Form {
    static constexpr int COLUMNS = ROWS <= 2 ? 1024 : 512;  // of a weight's row in one tile
    static constexpr int TILE_PITCH = 2 * COLUMNS;  // bulk copies to addresses that are no multiple of 128 are slower
    static constexpr int KEYS = COLUMNS / 16;  // keys and values in one stage
    static constexpr int STAGE_BYTES = 2 * KEYS * (2 * 128 + 16);  // heads have up to 128 dimensions
    static_assert(STAGE_BYTES >= TILE_ROWS * TILE_PITCH, "a stage holds a tile");
};

enum class Kind { QKV, O, GATE_UP, DOWN, LOGITS };  // products, in their order in a layer; the last once in a step

struct Layer {
    const bf16 *qkv, *qkv_bias, *o, *o_bias, *gate_up, *gate_up_bias, *down, *down_bias;  // a bias may be null
    const bf16 *input_norm, *post_norm, *q_norm, *k_norm;                                  // the last two may be null
    bf16 *keys, *values;  // [KV slots, kv_heads, head_dim]
    long long window;     // keys visible to a query, itself included; 0: all
    long long reserved;
};

// Outputs of one product: everybody gets `each` units, and `more` multiprocessors from `turn` on get one more.
struct Deal {
    int unit, each, more, turn;
};

struct Step {
    // Of the model.
    const Layer* layer;
    const bf16 *embedding, *final_norm, *lm_head;
    const float* cos_sin;  // [positions, head_dim]
    // Of the step.
    const long long *ids, *positions, *slots, *out_cache_loc;  // [rows]
    const int *seq_lens, *page_table;                          // [rows], [slots, max_pages]
    bf16* logits;                                              // [rows, vocab]
    long long* tokens;                                         // [rows]
    // Of the kernel: zeros before the first step.
    unsigned char* workspace;
    long long* trace;  // [layers, MARKS, multiprocessors] clock ticks, or null

    int rows, layers, hidden, q_heads, kv_heads, inner, vocab, page_size, max_pages;
    float eps, qk_eps, scale;
    // Filled in when the kernel is planned.
    int grid, stages, rotation;
    Deal deals[5];  // by Kind
};

__host__ __device__ constexpr int largest(int a, int b) { return a > b ? a : b; }

// ---- global memory: where packets lie, for steps of up to ROWS rows

template <int DIM, int ROWS>
struct Buffers {
    long long counter, arrived, qkv, parts, attended, o, activated, down, best, bytes;  // offsets in bytes

    __host__ __device__ explicit Buffers(const Step& s) {
        long long at = 0;
        auto take = [&at](long long packets) {
            long long here = at;
            at += (packets * 8 + 127) / 128 * 128;
            return here;
        };
        counter = take(16);
        arrived = take(5 * 16);  // by Kind, in lines of their own
        qkv = take(static_cast<long long>(ROWS) * (s.q_heads + 2 * s.kv_heads) * DIM / 2);
        parts = take(static_cast<long long>(s.grid) * part_packets(s));
        attended = take(static_cast<long long>(ROWS) * s.q_heads * DIM / 2);
        o = take(static_cast<long long>(ROWS) * s.hidden / 2);
        activated = take(static_cast<long long>(ROWS) * s.inner / 2);
        down = take(static_cast<long long>(ROWS) * s.hidden / 2);
        best = take(static_cast<long long>(ROWS) * s.grid * 2);
        bytes = at;
    }

    // One split's unfinished attention: values of a group of heads, then the highest score and the sum of each.
    __host__ __device__ static int part_packets(const Step& s) { return s.q_heads / s.kv_heads * (DIM + 2); }
};

// ---- shared memory

// In bytes; 64 more than a multiple of 128, so that reads of 64 bytes of neighbouring vectors lie in different banks.
__host__ __device__ constexpr int vector_pitch(int values) {
    return 2 * values + (2 * values % 128 ? 0 : 64);
}

template <int DIM, int ROWS>
struct SharedLayout {
    int barriers, sums, partials, residual, gain, vectors, ring, bytes;  // offsets in bytes

    static constexpr int HEAD_PITCH = 2 * DIM + 16;  // bytes of a key, value or query: no two rows in one bank

    __host__ __device__ explicit SharedLayout(const Step& s) {
        int at = 0;
        auto take = [&at](int bytes) {
            int here = at;
            at += (bytes + 127) / 128 * 128;
            return here;
        };
        int longest = largest(largest(s.hidden, s.inner), s.q_heads * DIM);
        barriers = take(2 * MAX_STAGES * 8);
        sums = take(ROWS * WARPS * 4);
        partials = take(2 * WARPS * TILE_ROWS * ROWS * 4);
        residual = take(ROWS * s.hidden * 2);
        gain = take(s.hidden * 2);
        vectors = take(largest(ROWS * vector_pitch(longest), attention_bytes(s)));
        ring = at;
        bytes = at + s.stages * Form<ROWS>::STAGE_BYTES;
    }

    // Queries of a group and the new key and value; then each attending warp's maxima and sums, and its values.
    __host__ __device__ static int attention_bytes(const Step& s) {
        return (MAX_GROUP + 2) * HEAD_PITCH + 2 * ATTENDING * MAX_GROUP * 4 +
               ATTENDING * (s.q_heads / s.kv_heads) * DIM * 4;
    }
    static_assert(2 * Form<ROWS>::KEYS * HEAD_PITCH <= Form<ROWS>::STAGE_BYTES, "a stage holds its keys and values");
};

// ---- who does what

struct Share {
    int first, count;
};

// Those that get more move on from layer to layer, by `rotation`.
__device__ __forceinline__ Share share(const Step& s, Kind kind, int rotation) {
    const Deal& deal = s.deals[static_cast<int>(kind)];
    int index = static_cast<int>(blockIdx.x) - deal.turn - rotation;
    if (index < 0) index += s.grid;
    if (index < 0) index += s.grid;
    return {deal.unit * (index * deal.each + min(index, deal.more)), deal.unit * (deal.each + (index < deal.more))};
}

__device__ __forceinline__ int next_rotation(const Step& s, int rotation) {
    rotation += s.rotation;
    return rotation < s.grid ? rotation : rotation - s.grid;
}

// How the keys of all rows are split. Unit u is split u % splits of head (u / splits) % kv_heads of one row; there is
// more than one split only if each multiprocessor has at most one unit.
__device__ __forceinline__ int splits_of(const Step& s) {
    return max(1, min(MAX_SPLITS, s.grid / (s.rows * s.kv_heads)));
}

struct Span {
    int row, head, split, splits;  // splits: those of the row that have work
    int from, to;                  // positions in the cache; the newest key is not among them
    bool works, newest;            // newest: this one attends to the newest key, too, and stores it

    __device__ Span(const Step& s, int unit, int most, int window) {
        split = unit % most;
        head = unit / most % s.kv_heads;
        row = unit / most / s.kv_heads;
        int cached = s.seq_lens[row] - 1;
        int begin = window > 0 ? max(0, cached + 1 - window) : 0;
        int keys = cached - begin;
        int wanted = max(1, min(most, (keys + SPLIT_KEYS) / SPLIT_KEYS));
        int each = max(16, ((keys + wanted - 1) / wanted + 15) / 16 * 16);
        splits = max(1, (keys + each - 1) / each);
        works = split < splits;
        newest = split == splits - 1;
        from = min(cached, begin + split * each);
        to = works ? min(cached, from + each) : from;
    }
};

// Notes when a layer came to a point, for those who measure.
struct Trace {
    const Step& s;
    int layer;

    __device__ void mark(int number) const {
        if (s.trace != nullptr && threadIdx.x == 0 && layer < s.layers) {
            s.trace[(static_cast<long long>(layer) * MARKS + number) * s.grid + blockIdx.x] = clock64();
        }
    }
};

// ---- the ring of stages between the warps that fetch and those that multiply

template <int ROWS>
struct Ring {
    uint32_t barriers, stages_at;
    int stages;
    int stage = 0;
    uint32_t parity = 0;

    __device__ uint32_t full() const { return barriers + 8 * stage; }
    __device__ uint32_t empty() const { return barriers + 8 * (MAX_STAGES + stage); }
    __device__ uint32_t data() const { return stages_at + stage * Form<ROWS>::STAGE_BYTES; }
    __device__ void advance() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

}  // namespace decoder
