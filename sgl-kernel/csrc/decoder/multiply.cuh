// Products of weights from the ring with the vectors in shared memory, on tensor cores: 16 rows of a weight at a time,
// up to 8 vectors. The warps share the inputs; their sums are added in a fixed order.
#pragma once

#include "vectors.cuh"

namespace decoder {

// One product of a layer, or the last one of a step. All are done by the same code: copies for each would be larger than
// what is kept of instructions near a multiprocessor.
struct Product {
    Kind kind;
    int inputs, outputs;  // outputs: of the rows that packets or logits are for; of GATE_UP, activations
    Share share;          // of the outputs
    const bf16* bias;     // or null
    Packet* to;           // [rows, outputs / 2]; of LOGITS, nothing
    uint32_t* arrived;    // to be told when a share is sent, or null
    uint32_t round;
    int segments = 1;                // of the vector, each of `inputs`: what the experts of a token take
    const Chosen* chosen = nullptr;  // the experts whose weights these are, or null

    // Outputs of a block of 16 rows of the weight: of GATE_UP, eight gates and the eight rows of up that belong to them.
    __device__ int block() const { return kind == Kind::GATE_UP ? TILE_ROWS / 2 : TILE_ROWS; }

    // What is added to output n, as `added` reads it; of GATE_UP, to its gate and to its up. A value that is used here
    // would be waited for here, and with it all weights that are there already.
    __device__ uint2 bias_of(int n, int inner) const {
        if (bias == nullptr) return {};
        const unsigned short* bits = reinterpret_cast<const unsigned short*>(bias);
        if (kind != Kind::GATE_UP) {
            if (chosen == nullptr) return {bits[n], 0};
            // Each segment's is multiplied as its sum is.
            float sum = 0;
            // Four are on their way together; more of them at once would be much code.
#pragma unroll 1
            for (int first = 0; first < segments; first += 4) {
#pragma unroll
                for (int i = first; i < first + 4; ++i) {
                    if (i >= segments) continue;
                    const bf16* from = bias + static_cast<long long>(chosen->experts[i]) * outputs;
                    sum += chosen->gates[i] * __bfloat162float(from[n]);
                }
            }
            return {__float_as_uint(sum), 0};
        }
        const unsigned short* gate = bits + n;
        if (chosen != nullptr) {
            int place = n / inner;
            gate += static_cast<long long>(chosen->experts[place]) * 2 * inner - place * inner;
        }
        return {gate[0], gate[inner]};
    }

    // Of what bias_of has returned.
    __device__ float added(uint32_t kept) const {
        return __uint_as_float(chosen != nullptr && kind == Kind::DOWN ? kept : kept << 16);
    }
};

// The highest logit that a thread has seen, the lowest id among equals; -1 for ever after one that is not finite.
struct Choice {
    float highest = -INFINITY;
    int id = 0x7fffffff;

    __device__ void see(float value, int its_id) {
        bool broken = !(value - value == 0.0f) && its_id != 0x7fffffff;
        if (broken || value > highest || (value == highest && its_id < id)) {
            highest = broken ? INFINITY : value;
            id = broken ? -1 : its_id;
        }
    }

    // What any lane of the warp has seen, in all lanes.
    __device__ void join_lanes() {
        for (int distance = 16; distance > 0; distance /= 2) {
            float value = __shfl_xor_sync(~0u, highest, distance);
            see(value, __shfl_xor_sync(~0u, id, distance));
        }
    }
};

struct Workplace {
    uint32_t vectors;
    float* partials;  // [2][BLOCKS][WARPS][TILE_ROWS][ROWS]
    int parity = 0;
    int turn = 0;  // the warp that finishes next
};

template <int ROWS>
__device__ __forceinline__ float total(const float* sums, int index) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += sums[warp * TILE_ROWS * ROWS + index];
    return sum;
}

// One block's sums, [WARPS][TILE_ROWS * ROWS], to where they belong: the i-th thread has output `own` of the share, for
// row i % ROWS, if it has any.
template <int ROWS>
__device__ __forceinline__ void finish(const Step& s, const Product& p, bool has, int own, int i, const float* sums,
                                       uint2 bias, Choice& choice) {
    int row = i % ROWS;
    has &= i < p.block() * ROWS && row < s.rows;
    float value = 0;
    if (has) value = total<ROWS>(sums, i) + p.added(bias.x);
    if (p.kind == Kind::LOGITS) {
        if (!has) return;
        bf16 logit = __float2bfloat16_rn(value);
        value = __bfloat162float(logit);
        s.logits[static_cast<long long>(row) * s.vocab + p.share.first + own] = logit;
        choice.see(value, p.share.first + own);
        return;
    }
    if (has && p.kind == Kind::GATE_UP) {
        float gate = rounded(value), up = rounded(total<ROWS>(sums, i + TILE_ROWS / 2 * ROWS) + p.added(bias.y));
        // What is no number stays so.
        gate = gate > s.limit ? s.limit : gate;
        up = up > s.limit ? s.limit : up < -s.limit ? -s.limit : up;
        value = __fdividef(gate, 1.0f + __expf(-s.steepness * gate)) * (up + s.lift);
    }
    float next = __shfl_down_sync(~0u, value, ROWS);
    if (!has || own % 2) return;
    send(p.to + (static_cast<long long>(row) * p.outputs + p.share.first + own) / 2, pack(value, next), p.round);
}

template <int ROWS>
__device__ void multiply(Ring<ROWS>& ring, Workplace& at, const Step& s, const Product& p, Choice& choice) {
    constexpr int SLICE = TILE_ROWS * ROWS, COLUMNS = Form<ROWS>::COLUMNS, TILE_PITCH = Form<ROWS>::TILE_PITCH;
    constexpr int PARTS = COLUMNS / (64 * WARPS), BLOCKS = Form<ROWS>::BLOCKS;
    constexpr int FINISHERS = largest(32, BLOCKS * SLICE);
    static_assert(FINISHERS % 32 == 0 && FINISHERS <= THREADS, "whole warps finish: they exchange values");
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t vector = at.vectors + g * vector_pitch(p.segments * p.inputs) + 16 * t;
    // Neighbouring rows lie in the same banks, so of 128 bytes odd rows are read from the second half on.
    uint32_t swap = 64 * (g % 2);
    bool weighs = p.chosen != nullptr && p.kind == Kind::DOWN;
#pragma unroll 1
    for (int n = 0; n < p.share.count; n += BLOCKS * p.block()) {
        // Warps take turns in finishing, a thread for each sum.
        int finisher = (static_cast<int>(threadIdx.x) - at.turn * 32 + THREADS) % THREADS;
        int own_block = n + finisher / SLICE * p.block(), own = own_block + finisher % SLICE / ROWS;
        bool finishes = finisher < BLOCKS * SLICE && own < p.share.count;
        at.turn = (at.turn + FINISHERS / 32) % WARPS;
        uint2 bias = {};
        if (finishes) bias = p.bias_of(p.share.first + own, s.inner);
        float* sums = at.partials + at.parity * BLOCKS * WARPS * SLICE;
        at.parity ^= 1;
        float* own_sums = sums + warp * SLICE + g * ROWS + 2 * t;
        int blocks = min(BLOCKS, (p.share.count - n + p.block() - 1) / p.block());
#pragma unroll 1
        for (int block = 0; block < blocks; ++block, own_sums += WARPS * SLICE) {
            // Of few rows the lower half of the tile is empty.
            bool deep = p.kind == Kind::GATE_UP || p.share.count - n - block * TILE_ROWS > TILE_ROWS / 2;
            float sum[4] = {};
#pragma unroll 1
            for (int segment = 0; segment < p.segments; ++segment) {
                float even[2][4] = {}, odd[2][4] = {};
                uint32_t segment_at = vector + 2 * segment * p.inputs;
#pragma unroll 1
                for (int k = 0; k < p.inputs; k += COLUMNS) {
                    int columns = min(COLUMNS, p.inputs - k);
                    barrier_wait(ring.full(), ring.parity);
                    uint32_t tile = ring.data() + g * TILE_PITCH + 16 * t;
                    uint4 upper[PARTS][2], lower[PARTS][2], x[PARTS][2];
#pragma unroll
                    for (int i = 0; i < PARTS; ++i) {
                        int part = 128 * (i * WARPS + warp);  // in bytes
                        bool inside = part < 2 * columns;
                        if (!inside) part = 0;
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            uint32_t at = tile + part + (swap ^ (64 * half));
                            upper[i][half] = load_shared(at);
                            lower[i][half] = load_shared_if(deep, at + 8 * TILE_PITCH);
                            x[i][half] = load_shared_if(inside && g < s.rows, segment_at + 2 * k + part + 64 * half);
                        }
                    }
                    // A lane's eight neighbouring inputs serve two products of 16: which four of them meet in which
                    // does not matter, as long as weights and vectors agree.
#pragma unroll
                    for (int i = 0; i < PARTS; ++i) {
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            uint4 u = select(swap != 0, upper[i][half ^ 1], upper[i][half]);
                            uint4 l = select(swap != 0, lower[i][half ^ 1], lower[i][half]), v = x[i][half];
                            multiply_add(even[half], u.x, l.x, u.y, l.y, v.x, v.y);
                            multiply_add(odd[half], u.z, l.z, u.w, l.w, v.z, v.w);
                        }
                    }
                    __syncwarp();
                    if (lane == 0) barrier_arrive(ring.empty());
                    ring.advance();
                }
                float gate = weighs ? p.chosen->gates[segment] : 1.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    sum[i] += gate * ((even[0][i] + odd[0][i]) + (even[1][i] + odd[1][i]));
                }
            }
            if (2 * t < ROWS) {
                own_sums[0] = sum[0];
                own_sums[8 * ROWS] = sum[2];
                if (2 * t + 1 < ROWS) {
                    own_sums[1] = sum[1];
                    own_sums[8 * ROWS + 1] = sum[3];
                }
            }
        }
        join();
        if (finisher < FINISHERS) {
            finish<ROWS>(s, p, finishes, own, finisher % SLICE, sums + finisher / SLICE * WARPS * SLICE, bias, choice);
        }
        if (p.arrived != nullptr && finisher == 0 && n + BLOCKS * p.block() >= p.share.count) announce(p.arrived);
    }
}

}  // namespace decoder
