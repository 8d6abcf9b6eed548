// What one decode step reads and writes, and how its work is dealt out to the multiprocessors.
#pragma once

#include "exchange.cuh"

namespace decoder {

constexpr int WARPS = 8;  // that multiply
constexpr int THREADS = 32 * WARPS;
constexpr int FETCHERS = 4;    // warps that fetch: one cannot start copies as fast as memory answers them
constexpr int FETCHER_REGISTERS = 56, MULTIPLIER_REGISTERS = 224;  // of each thread, once they have shared them out
constexpr int TILE_ROWS = 16;  // rows of a weight in one tile
constexpr int MAX_STAGES = 16;
constexpr int ATTENDING = WARPS;  // warps that attend
constexpr int MAX_GROUP = 8;      // query heads of one key-value head
constexpr int MAX_SPLITS = 32;    // of one row's keys: a lane for each when they are merged
constexpr int SPLIT_KEYS = 64;    // fewer are not worth a split of their own
constexpr int COUNTED_VALUES = 4096;  // of all rows: before so many are asked for, senders are counted
static_assert(THREADS * MULTIPLIER_REGISTERS + 32 * FETCHERS * FETCHER_REGISTERS <=
                  (THREADS + 32 * FETCHERS) * (65536 / (THREADS + 32 * FETCHERS) / 8 * 8),
              "a block has these registers from the start: it would wait for more for ever");
constexpr int MARKS = 23;         // points of time in each layer that a trace notes
constexpr int MAX_CHOSEN = 16;    // experts of a token
constexpr int MAX_EXPERTS = 256;  // of a layer
constexpr int SPACES = 2;         // of pages: layers with a window may have pages of their own

// The ring's stages, and what goes with the number of rows. More rows have longer vectors beside the ring.
template <int ROWS>
struct Form {
    static constexpr int COLUMNS = 512;             // of a weight's row in one tile
    static constexpr int TILE_PITCH = 2 * COLUMNS;  // bulk copies to addresses that are no multiple of 128 are slower
    static constexpr int KEYS = COLUMNS / 16;       // keys and values in one stage
    static constexpr int STAGE_BYTES = 2 * KEYS * (2 * 128 + 16);  // heads have up to 128 dimensions
    // Stages on their way.
    static constexpr int IN_FLIGHT = ROWS <= 2 ? 8 : MAX_STAGES;
    // The same, of weights that are not needed yet. The memory serves everybody alike, by what is asked for, and all wait
    // for whoever gets what is needed last.
    static constexpr int EARLY = ROWS <= 2 ? 2 : MAX_STAGES;
    static constexpr int BLOCKS = ROWS <= 2 ? 4 : 1;  // of 16 rows of a weight, whose sums are added up together
    static_assert(STAGE_BYTES >= TILE_ROWS * TILE_PITCH, "a stage holds a tile");
};

// Products, in their order in a layer; the last once in a step. Only layers with experts route.
enum class Kind { QKV, O, ROUTE, GATE_UP, DOWN, LOGITS };
constexpr int KINDS = 6;

struct Layer {
    const bf16 *qkv, *qkv_bias, *o, *o_bias, *gate_up, *gate_up_bias, *down, *down_bias;  // a bias may be null
    const bf16 *input_norm, *post_norm, *q_norm, *k_norm;                                  // the last two may be null
    bf16 *keys, *values;  // [KV slots, kv_heads, head_dim]
    long long window;     // keys visible to a query, itself included; 0: all
    const bf16* router;   // [experts, hidden], or null; gate_up and down are then those of all experts, one by one
    const bf16* router_bias;  // or null
    const float* sinks;       // [q_heads], each the score of one more key whose value is zero; or null
    long long space;          // of the pages
};

// Outputs of one product: everybody gets `each` units, and `more` multiprocessors from `turn` on get one more.
struct Deal {
    int unit, each, more, turn;
};

// Global memory of the kernel: where packets lie, in bytes from the workspace's beginning.
struct Buffers {
    long long counter, arrived, qkv, parts, attended, o, routed, activated, down, best, end;
};

// Shared memory, in bytes from its beginning.
struct Places {
    int barriers, layers, chosen, sums, partials, residual, gain, vectors, ring, end;
};

struct Step {
    // Of the model.
    const Layer* layer;
    const bf16 *embedding, *final_norm, *lm_head;
    const float* cos_sin;  // [positions, head_dim]
    // Of the step.
    const long long *ids, *positions, *slots;  // [rows]
    const int* seq_lens;                       // [rows]
    const long long* out_cache_locs[SPACES];   // [rows]
    const int* page_tables[SPACES];            // [slots, max_pages]
    bf16* logits;                              // [rows, vocab]
    long long* tokens;                         // [rows]
    // Of the kernel: zeros before the first step.
    unsigned char* workspace;
    long long* trace;  // [layers, MARKS, multiprocessors] clock ticks, or null

    // inner: of one expert, if there are experts. chosen: experts of a token, or 0; renormalize: their gates add up to 1.
    int rows, layers, hidden, q_heads, kv_heads, inner, vocab, page_size, max_pages, experts, chosen, renormalize;
    float eps, qk_eps, scale;
    // The activation is gate * sigmoid(steepness * gate) * (up + lift), of a gate of at most `limit` and an up within it.
    float steepness, limit, lift;
    // Filled in when the kernel is planned.
    int grid, stages, rotation;
    Deal deals[KINDS];
    Buffers buffers;
    Places places;
};

#ifdef MYSGL_STEP_BYTES
static_assert(sizeof(Step) == MYSGL_STEP_BYTES, "who calls has another idea of a step's fields");
#endif

__host__ __device__ constexpr int largest(int a, int b) { return a > b ? a : b; }

// What comes out of the activation, of all experts of a token.
__host__ __device__ inline int activations(const Step& s) { return s.inner * largest(1, s.chosen); }

// MIXTURE: layers have experts. Compiled for both, as everybody waits while more instructions are fetched from afar.
template <bool MIXTURE>
__device__ constexpr int products_of_a_layer() {
    return KINDS - 1 - !MIXTURE;
}

template <bool MIXTURE>
__device__ inline Kind kind_of(int number) {
    int place = number % products_of_a_layer<MIXTURE>();
    return static_cast<Kind>(!MIXTURE && place >= static_cast<int>(Kind::ROUTE) ? place + 1 : place);
}

// The experts that a layer's token goes through, in shared memory. Those of the layer before may still be in use.
struct Chosen {
    int experts[MAX_CHOSEN];
    float gates[MAX_CHOSEN];
};

// One split's unfinished attention: values of a group of heads, then the highest score and the sum of each.
__host__ __device__ constexpr int part_packets(int group, int dim) { return group * (dim + 2); }

// Bytes between keys, values or queries in shared memory: no two neighbours in one bank.
__host__ __device__ constexpr int head_pitch(int dim) { return 2 * dim + 16; }

// Bytes between vectors: 64 more than a multiple of 128, so that reads of 64 bytes of neighbours lie in different banks.
__host__ __device__ constexpr int vector_pitch(int values) { return 2 * values + (2 * values % 128 ? 0 : 64); }

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
    __device__ uint32_t experts_known() const { return barriers + 8 * 2 * MAX_STAGES; }
    __device__ uint32_t data() const { return stages_at + stage * Form<ROWS>::STAGE_BYTES; }
    // The number of the product that is multiplied, in shared memory.
    __device__ uint32_t reached() const { return barriers + 8 * (2 * MAX_STAGES + 1); }
    // For those who fetch a product's weights: until the next stage is free, and fewer than a limit are on their way.
    __device__ void await_turn(int product) const {
        barrier_wait(empty(), parity ^ 1);
        if (Form<ROWS>::EARLY >= MAX_STAGES) return;
        bool early = product > static_cast<int>(load_shared_4(reached()));
        int before = stage - min(early ? Form<ROWS>::EARLY : Form<ROWS>::IN_FLIGHT, stages - 1);
        uint32_t its_parity = before < 0 ? parity ^ 1 : parity;
        barrier_wait(barriers + 8 * (before < 0 ? before + stages : before), its_parity);
    }
    __device__ void advance() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

}  // namespace decoder
