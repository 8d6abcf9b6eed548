// A whole decode step of a few rows in one kernel: embedding, all layers, last norm, logits, greedy tokens.
//
// One block on each multiprocessor, for the whole step. Of each weight a block has a few rows. Four warps fetch them into
// a ring of stages in shared memory, ahead of everybody over all layers, so that reading seldom pauses; eight multiply.
// Between products, vectors travel as packets (exchange.cuh):
//
//   norm -> qkv -> [qk norm, rope, store, attention] -> o -> norm -> gate, up, silu -> down -> next layer
//
// A mixture of experts has a router behind its norm, and what follows is of the chosen experts, for one row:
//
//   norm -> router -> [every block: experts and gates] -> gates, ups, silu -> sum of gate times down -> next layer
//
// Values are rounded to bf16 where the layers as single kernels round them. Sums have a fixed order.
#include "attend.cuh"
#include "fetch.cuh"
#include "multiply.cuh"
#include "plan.cuh"
#include "registers.cuh"
#include "route.cuh"

#ifndef MYSGL_HEAD_DIM
#define MYSGL_HEAD_DIM 128
#endif

namespace decoder {

constexpr int HEAD_DIM = MYSGL_HEAD_DIM;

// The highest logit of each row: of this block's by its threads, of all by block 0.
template <int ROWS>
__device__ void choose_tokens(const Step& s, const Choice& choice, float* scratch, Packet* best, uint32_t round) {
    int i = threadIdx.x, lane = i % 32, row = i / 32;
    int* ids = reinterpret_cast<int*>(scratch + THREADS);
    scratch[i] = choice.highest;
    ids[i] = choice.id;
    join();
    // A warp for each row. Thread n has seen logits of row n % ROWS.
    if (row < s.rows) {
        Choice own;
        for (int n = row + lane * ROWS; n < THREADS; n += 32 * ROWS) {
            own.see(scratch[n], ids[n]);
        }
        own.join_lanes();
        Packet* to = best + (static_cast<long long>(row) * s.grid + blockIdx.x) * 2;
        if (lane == 0) send(to, __float_as_uint(own.highest), own.id, round);
    }
    if (blockIdx.x != 0 || row >= s.rows) return;
    Choice found;
    for (int block = lane; block < s.grid; block += 32) {
        const Packet* from = best + (static_cast<long long>(row) * s.grid + block) * 2;
        uint2 its = await_pair(from, peek_pair(from), round);
        found.see(__uint_as_float(its.x), static_cast<int>(its.y));
    }
    found.join_lanes();
    if (lane == 0) s.tokens[row] = found.id;
}

template <int ROWS, bool MIXTURE>
__device__ void compute_step(Ring<ROWS>& ring, const Step& s, unsigned char* shared, uint32_t steps) {
    const Places& places = s.places;
    const Buffers& buffers = s.buffers;
    auto packets = [&](long long offset) { return reinterpret_cast<Packet*>(s.workspace + offset); };
    auto arrived = [&](Kind kind, int values) {
        long long at = buffers.arrived + 128 * static_cast<int>(kind);
        return s.rows * values < COUNTED_VALUES ? nullptr : reinterpret_cast<uint32_t*>(s.workspace + at);
    };
    uint32_t base = shared_address(shared);
    Workplace at{base + places.vectors, reinterpret_cast<float*>(shared + places.partials)};
    Choice choice;
    // More rows than one would have experts of their own each.
    static_assert(!MIXTURE || ROWS == 1, "a mixture of experts has one row");
    constexpr int products = products_of_a_layer<MIXTURE>();
    Chosen* chosen = reinterpret_cast<Chosen*>(shared + places.chosen);
    int most = splits_of(s), units = s.rows * s.kv_heads * most, rotation = 0;
    if (threadIdx.x < sizeof(Layer) / 8) {
        copy_8_bytes(base + places.layers + 8 * threadIdx.x, reinterpret_cast<const char*>(s.layer) + 8 * threadIdx.x);
        copies_done();
    }
    join();
#pragma unroll 1
    for (int number = 0; number <= products * s.layers; ++number) {
        int index = number / products;
        // Copied into shared memory a layer ahead.
        const Layer& layer = reinterpret_cast<const Layer*>(shared + places.layers)[index % 2];
        if (number % products == 0 && index + 1 < s.layers && threadIdx.x < sizeof(Layer) / 8) {
            uint32_t to = base + places.layers + (index + 1) % 2 * sizeof(Layer) + 8 * threadIdx.x;
            copy_8_bytes(to, reinterpret_cast<const char*>(s.layer + index + 1) + 8 * threadIdx.x);
        }
        uint32_t round = steps * s.layers + index + 1;
        Kind kind = index == s.layers ? Kind::LOGITS : kind_of<MIXTURE>(number);
        // What the product takes: the residual stream, normed after adding what came in, or what came in.
        const bf16* gain = nullptr;
        Incoming incoming{nullptr, nullptr, round};
        Product p{kind, s.hidden, s.hidden, share(s, kind, rotation), nullptr, nullptr, nullptr, round};
        if (kind == Kind::QKV) {
            gain = layer.input_norm;
            if (index > 0) incoming = {packets(buffers.down), arrived(Kind::DOWN, s.hidden), round - 1};
            p.outputs = (s.q_heads + 2 * s.kv_heads) * HEAD_DIM, p.bias = layer.qkv_bias;
            p.to = packets(buffers.qkv);
        } else if (kind == Kind::O) {
            incoming = {packets(buffers.attended), arrived(Kind::QKV, s.q_heads * HEAD_DIM), round};
            p.inputs = s.q_heads * HEAD_DIM, p.bias = layer.o_bias;
            p.to = packets(buffers.o), p.arrived = arrived(Kind::O, s.hidden);
        } else if (MIXTURE && kind == Kind::ROUTE) {
            gain = layer.post_norm, incoming = {packets(buffers.o), arrived(Kind::O, s.hidden), round};
            p.outputs = s.experts, p.bias = layer.router_bias, p.to = packets(buffers.routed);
        } else if (kind == Kind::GATE_UP) {
            // Behind a router the normed vector is there already.
            if (!MIXTURE) {
                gain = layer.post_norm, incoming = {packets(buffers.o), arrived(Kind::O, s.hidden), round};
            }
            if (MIXTURE) p.chosen = &chosen[index % 2];
            p.outputs = activations(s), p.bias = layer.gate_up_bias;
            p.to = packets(buffers.activated), p.arrived = arrived(Kind::GATE_UP, activations(s));
        } else if (kind == Kind::DOWN) {
            incoming = {packets(buffers.activated), arrived(Kind::GATE_UP, activations(s)), round};
            p.inputs = s.inner, p.bias = layer.down_bias;
            if (MIXTURE) p.segments = s.chosen, p.chosen = &chosen[index % 2];
            p.to = packets(buffers.down), p.arrived = arrived(Kind::DOWN, s.hidden);
        } else {
            gain = s.final_norm, incoming = {packets(buffers.down), arrived(Kind::DOWN, s.hidden), round - 1};
            p.outputs = s.vocab;
        }
        // 0 to 3 around the first product, 4 to 8 in attention, then 9 to 11, 12 to 15 and 16 to 18; 19 to 22 around a
        // router's.
        Trace trace{s, index};
        int first_mark = kind == Kind::O ? 9 : kind == Kind::GATE_UP ? 12 : kind == Kind::DOWN ? 16 : MIXTURE && kind == Kind::ROUTE ? 19 : 0;
        if (gain != nullptr) {
            add_and_norm<ROWS>(s, base + places.sums, base + places.residual, base + places.gain, at.vectors, gain,
                               incoming, trace, first_mark);
        } else if (incoming.packets != nullptr) {
            receive<ROWS>(s, at.vectors, incoming, p.segments * p.inputs, trace, first_mark);
        } else if (MIXTURE && threadIdx.x < 32) {
            // The other warps wait for weights, which wait for this one.
            choose_experts(s, packets(buffers.routed), round, chosen[index % 2], trace, first_mark);
            if (threadIdx.x == 0) barrier_arrive(ring.experts_known());
            trace.mark(first_mark + 2);
        } else if (MIXTURE && p.bias != nullptr) {
            // Biases are asked for before weights are waited for.
            barrier_wait(ring.experts_known(), index % 2);
        }
        if (threadIdx.x == 0) store_shared_4(ring.reached(), number);
        multiply<ROWS>(ring, at, s, p, choice);
        trace.mark(first_mark + (gain != nullptr || kind == Kind::GATE_UP ? 3 : 2));
        if (kind == Kind::DOWN) rotation = next_rotation(s, rotation);
        if (kind != Kind::QKV) continue;
        for (int unit = blockIdx.x; unit < units; unit += s.grid) {
            Span span(s, unit, most, static_cast<int>(layer.window));
            if (!span.works) continue;
            // The vectors' place is free: all warps are through with them when a product's last sums are there.
            Attention<HEAD_DIM, ROWS> attention(s, layer, span, p.to, packets(buffers.parts), packets(buffers.attended),
                                                round, shared + places.vectors);
            attention.run(ring, most, trace);
        }
        uint32_t* attended = arrived(Kind::QKV, s.q_heads * HEAD_DIM);
        if (threadIdx.x == 0 && attended != nullptr) announce(attended);
        trace.mark(8);
    }
    // All warps are through with the vectors.
    float* scratch = reinterpret_cast<float*>(shared + places.vectors);
    choose_tokens<ROWS>(s, choice, scratch, packets(buffers.best), steps + 1);
}

template <int ROWS, bool MIXTURE>
__global__ void __launch_bounds__(THREADS + 32 * FETCHERS, 1) step_kernel(const __grid_constant__ Step s) {
    extern __shared__ __align__(128) unsigned char shared[];
    Ring<ROWS> ring{shared_address(shared + s.places.barriers), shared_address(shared + s.places.ring), s.stages};
    // Counts steps. Whoever is first to finish has heard from every block, so all have read it when it changes.
    uint32_t* counter = reinterpret_cast<uint32_t*>(s.workspace + s.buffers.counter);
    uint32_t steps = *reinterpret_cast<volatile uint32_t*>(counter);
    if (threadIdx.x == 0) {
        for (int i = 0; i < s.stages; ++i) {
            barrier_init(ring.barriers + 8 * i, FETCHERS);
            barrier_init(ring.barriers + 8 * (MAX_STAGES + i), WARPS);
        }
        barrier_init(ring.experts_known(), 1);
        store_shared_4(ring.reached(), 0);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        hand_to_bulk_copies();
    }
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        give_registers<FETCHER_REGISTERS>();
        fetch_step<HEAD_DIM, ROWS, MIXTURE>(ring, s, reinterpret_cast<const Chosen*>(shared + s.places.chosen));
    } else {
        take_registers<MULTIPLIER_REGISTERS>();
        compute_step<ROWS, MIXTURE>(ring, s, shared, steps);
        if (blockIdx.x == 0 && threadIdx.x == 0) *counter = steps + 1;
    }
}

template <int ROWS, bool MIXTURE = false>
cudaError_t launch(const Step& s, cudaStream_t stream) {
    int bytes = s.places.end;
    cudaError_t error = cudaFuncSetAttribute(step_kernel<ROWS, MIXTURE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute together;
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(s.grid);
    config.blockDim = dim3(THREADS + 32 * FETCHERS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, step_kernel<ROWS, MIXTURE>, s);
}

}  // namespace decoder

using decoder::Step;

// The smallest compiled number of rows that holds `rows`.
#define FOR_ROWS(rows, call)           \
    ((rows) <= 1   ? decoder::call(1)  \
     : (rows) <= 2 ? decoder::call(2)  \
     : (rows) <= 4 ? decoder::call(4)  \
                   : decoder::call(8))

// Fill in grid and stages, and say how many bytes of workspace the shape needs; cudaErrorInvalidValue if the shape does
// not fit this device.
extern "C" cudaError_t mysgl_decoder_plan(Step* s, long long* workspace_bytes) {
    int device, multiprocessors, limit;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    if (error != cudaSuccess) return error;
#define PLAN(ROWS) plan<decoder::HEAD_DIM, ROWS>(*s, multiprocessors, limit)
    if (s->rows < 1 || s->rows > 8 || !FOR_ROWS(s->rows, PLAN)) return cudaErrorInvalidValue;
    *workspace_bytes = s->buffers.end;
    return cudaSuccess;
}

extern "C" cudaError_t mysgl_decoder_step(const Step* s, cudaStream_t stream) {
#define LAUNCH(ROWS) launch<ROWS>(*s, stream)
    if (s->chosen > 0) return decoder::launch<1, true>(*s, stream);
    return FOR_ROWS(s->rows, LAUNCH);
}
