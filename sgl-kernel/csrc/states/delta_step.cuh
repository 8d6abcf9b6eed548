// The gated delta rule for one new token of many rows; see `kernels/delta_rule.py` of mysglang for the formulas.
//
// What takes time is to read each head's state and to write it back. Every block walks through states that lie a grid
// apart. Its ninth warp has the copy engine bring whole states into a ring in shared memory, several ahead, and take
// them back from there; the other eight compute them in place. So reading, computing and writing never wait for one
// another, except at the ends of the ring.
//
//     thread    two neighbouring values, 32 numbers of a key; its part of the state stays in registers
//     sums      over the keys, by thread, then over the four parts in their order
//
// A state is multiplied by its decay, the token's key asks it what it says, what the token's value is beyond that is
// written, and the token's query reads: (S + k u^T)^T q = S^T q + (k q) u, so both read the state before it is written.
// What a head reads may be normed and multiplied by its gate, which are rounded as the kernels of their own round them.
#pragma once

#include "gates.cuh"

#ifndef MYSGL_EMULATED
#include "../gemm/hopper.cuh"
#include "arithmetic.cuh"
#endif

namespace states::one_token {

using namespace hopper;

constexpr int DIM = 128;  // of keys and of values
constexpr int PARTS = 4;  // of a key
constexpr int KEYS = DIM / PARTS;
constexpr int COMPUTING = DIM / 2 * PARTS;  // threads
constexpr int THREADS = COMPUTING + 32;
constexpr int VECTOR_BYTES = DIM * 2;
constexpr int SUMS_BYTES = 2 * PARTS * 2 * DIM * 4;  // said and read, of two states in turn
constexpr int FINISHING = DIM / 2;                   // threads, of the first part, which store what is read
constexpr int SQUARES_BYTES = 2 * FINISHING / 32 * 4;

template <typename Kept>
struct Ring {
  static constexpr int STATE_BYTES = DIM * DIM * sizeof(Kept);
  static constexpr int STAGES = sizeof(Kept) == 2 ? 6 : 3;
  // The state, the query, the key and the value.
  static constexpr int STAGE_BYTES = STATE_BYTES + 3 * VECTOR_BYTES;
  static constexpr int BARRIERS_AT = STAGES * STAGE_BYTES + SUMS_BYTES + SQUARES_BYTES;
  static constexpr int BYTES = BARRIERS_AT + 2 * STAGES * 8;
};

struct Params {
  const __nv_bfloat16 *q, *k, *v, *a, *b;
  const float *log_rate, *time_bias;
  void* matrix;      // [entries, heads, DIM, DIM]
  const long* at;    // [rows], the entries
  __nv_bfloat16* out;
  const __nv_bfloat16* gate;  // [rows, heads, DIM], or null: nothing is normed
  const __nv_bfloat16* gain;  // [DIM], of the norm
  long q_stride, k_stride, v_stride, a_stride, b_stride, gate_stride;
  long absent;  // the entry of rows without a state
  int rows, heads, shared;
  float strongest, eps, norm_eps;
};

#ifndef MYSGL_EMULATED

__device__ __forceinline__ void copy_in(uint32_t target, const void* source, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void copy_out(void* target, uint32_t source, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(target),
               "r"(source), "r"(bytes)
               : "memory");
}

// Until the copy engine has read what all copies but the last PENDING take away.
template <int PENDING>
__device__ __forceinline__ void await_taken() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

#endif

// Names the states of a block that are there, one after another.
struct Walk {
  Params const& p;
  int item, blocks, row, head;
  long entry;

  __device__ __forceinline__ Walk(const Params& p, int block, int blocks) : p(p), item(block), blocks(blocks) {
    look();
  }

  __device__ __forceinline__ void look() {
    if (!ended()) row = item / p.heads, head = item % p.heads, entry = p.at[row];
  }

  __device__ __forceinline__ bool ended() const { return item >= p.rows * p.heads; }
  __device__ __forceinline__ bool absent() const { return entry == p.absent; }

  __device__ __forceinline__ void step() {
    item += blocks;
    look();
  }

  __device__ __forceinline__ Walk& operator=(const Walk& other) {
    item = other.item, blocks = other.blocks, row = other.row, head = other.head, entry = other.entry;
    return *this;
  }

  __device__ __forceinline__ void skip_absent() {
    while (!ended() && absent()) step();
  }
};

template <typename Kept>
__device__ __forceinline__ Kept* state_of(const Walk& walk) {
  return static_cast<Kept*>(walk.p.matrix) + (walk.entry * walk.p.heads + walk.head) * DIM * DIM;
}

// One thread keeps the ring full and takes finished states back.
template <typename Kept>
__device__ void feed(const Walk& begin, uint32_t ring, uint32_t there, uint32_t done) {
  using R = Ring<Kept>;
  const Params& p = begin.p;
  Walk next(begin), last(begin);
  next.skip_absent();
  last.skip_absent();
  const auto bring = [&](int stage) {
    const uint32_t target = ring + stage * R::STAGE_BYTES, barrier = there + stage * 8;
    const long of_key = next.head / p.shared * DIM;
    barrier_expect(barrier, R::STAGE_BYTES);
    copy_in(target, state_of<Kept>(next), R::STATE_BYTES, barrier);
    copy_in(target + R::STATE_BYTES, p.q + next.row * p.q_stride + of_key, VECTOR_BYTES, barrier);
    copy_in(target + R::STATE_BYTES + VECTOR_BYTES, p.k + next.row * p.k_stride + of_key, VECTOR_BYTES, barrier);
    const __nv_bfloat16* value = p.v + next.row * p.v_stride + next.head * DIM;
    copy_in(target + R::STATE_BYTES + 2 * VECTOR_BYTES, value, VECTOR_BYTES, barrier);
    next.step();
    next.skip_absent();
  };
  for (int stage = 0; stage < R::STAGES - 1 && !next.ended(); ++stage) bring(stage);
  int stage = 0, parity = 0;
  while (!last.ended()) {
    // The stage before this one: what was in it went back a turn ago.
    if (!next.ended()) {
      await_taken<0>();
      bring(stage == 0 ? R::STAGES - 1 : stage - 1);
    }
    barrier_wait(done + stage * 8, parity);
    copy_out(state_of<Kept>(last), ring + stage * R::STAGE_BYTES, R::STATE_BYTES);
    if (++stage == R::STAGES) stage = 0, parity ^= 1;
    last.step();
    last.skip_absent();
  }
  await_taken<0>();
}

__device__ __forceinline__ float2 pair_at(const __nv_bfloat16* x) {
  return unpacked(*reinterpret_cast<const uint32_t*>(x));
}
__device__ __forceinline__ float2 pair_at(const float* x) { return *reinterpret_cast<const float2*>(x); }
__device__ __forceinline__ void put_pair(__nv_bfloat16* x, float2 two) {
  *reinterpret_cast<uint32_t*>(x) = packed(two.x, two.y);
}
__device__ __forceinline__ void put_pair(float* x, float2 two) { *reinterpret_cast<float2*>(x) = two; }

// What decay and strength are made of, as it is loaded.
struct Loaded {
  float time, shift, log_rate, strength;

  __device__ __forceinline__ explicit Loaded(const Walk& walk) {
    if (walk.ended()) return;
    const Params& p = walk.p;
    time = float(p.a[walk.row * p.a_stride + walk.head]), shift = p.time_bias[walk.head];
    log_rate = p.log_rate[walk.head], strength = float(p.b[walk.row * p.b_stride + walk.head]);
  }
};

__device__ __forceinline__ float2 rounded(float2 x) { return unpacked(packed(x.x, x.y)); }

// What a head reads, normed and multiplied by its gate. FINISHING threads have two numbers each; squares: of each of
// their warps one sum.
__device__ float2 through_norm(float2 x, float2 gain, float2 gate, float* squares, float eps) {
  x = rounded(x);
  const float own = warp_sum(x.x * x.x + x.y * x.y);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = own;
  named_barrier(2, FINISHING);
  float sum = 0.f;
#pragma unroll
  for (int warp = 0; warp < FINISHING / 32; ++warp) sum += squares[warp];
  const float scale = rsqrtf(sum / DIM + eps);
  x = rounded(float2{x.x * scale, x.y * scale});
  x = rounded(float2{x.x * gain.x, x.y * gain.y});
  return float2{x.x * silu(gate.x), x.y * silu(gate.y)};
}

template <typename Kept>
__device__ void compute(const Walk& begin, unsigned char* ring, float* sums, uint32_t there, uint32_t done) {
  using R = Ring<Kept>;
  const Params& p = begin.p;
  const int part = threadIdx.x / FINISHING, value = threadIdx.x % FINISHING * 2, lane = threadIdx.x % 32;
  const bool finishes = part == 0, norms = finishes && p.gate != nullptr;
  float* squares = sums + SUMS_BYTES / 4;
  const float2 gain = norms ? pair_at(p.gain + value) : float2{0.f, 0.f};
  int stage = 0, parity = 0, turn = 0;
  Walk walk(begin), ahead = walk;
  Loaded loaded(walk), coming = loaded;
  for (; !walk.ended(); walk = ahead, loaded = coming) {
    ahead.step();
    coming = Loaded(ahead);
    __nv_bfloat16* out = p.out + (long(walk.row) * p.heads + walk.head) * DIM + value;
    if (walk.absent()) {
      if (finishes) put_pair(out, float2{0.f, 0.f});
      continue;
    }
    const float decay = __expf(decay_of(loaded.time, loaded.shift, loaded.log_rate));
    const float strength = strength_of(loaded.strength, p.strongest);
    float2 gate = gain;
    if (norms) gate = pair_at(p.gate + walk.row * p.gate_stride + walk.head * DIM + value);
    unsigned char* own = ring + stage * R::STAGE_BYTES;
    barrier_wait(there + stage * 8, parity);
    Kept* state = reinterpret_cast<Kept*>(own) + part * KEYS * DIM + value;
    const __nv_bfloat16* query = reinterpret_cast<const __nv_bfloat16*>(own + R::STATE_BYTES);
    const __nv_bfloat16 *key = query + DIM, *values = key + DIM;

    float2 held[KEYS], said = float2{0.f, 0.f}, read = said;
#pragma unroll
    for (int i = 0; i < KEYS; i += 2) {
      const float2 keys = pair_at(key + part * KEYS + i), queries = pair_at(query + part * KEYS + i);
#pragma unroll
      for (int one = 0; one < 2; ++one) {
        const float by_key = one ? keys.y : keys.x, by_query = one ? queries.y : queries.x;
        float2& s = held[i + one];
        s = pair_at(state + (i + one) * DIM);
        s.x *= decay, s.y *= decay;
        said.x += s.x * by_key, said.y += s.y * by_key;
        read.x += s.x * by_query, read.y += s.y * by_query;
      }
    }
    float* turn_sums = sums + turn * (PARTS * 2 * DIM);
    turn ^= 1;
    put_pair(turn_sums + part * 2 * DIM + value, said);
    put_pair(turn_sums + part * 2 * DIM + DIM + value, read);
    // Each warp takes the lengths of the whole key and the whole query, four numbers a lane.
    float of_key = 0.f, of_query = 0.f, both = 0.f;
#pragma unroll
    for (int i = 0; i < DIM; i += 64) {
      const float2 keys = pair_at(key + i + lane * 2), queries = pair_at(query + i + lane * 2);
      of_key += keys.x * keys.x + keys.y * keys.y;
      of_query += queries.x * queries.x + queries.y * queries.y;
      both += keys.x * queries.x + keys.y * queries.y;
    }
    of_key = rsqrtf(warp_sum(of_key) + p.eps);
    of_query = rsqrtf(warp_sum(of_query) + p.eps) * QUERY_SCALE;
    both = warp_sum(both);
    const float2 given = pair_at(values + value);
    named_barrier(1, COMPUTING);
    said = read = float2{0.f, 0.f};
#pragma unroll
    for (int other = 0; other < PARTS; ++other) {
      const float2 s = pair_at(turn_sums + other * 2 * DIM + value);
      const float2 r = pair_at(turn_sums + other * 2 * DIM + DIM + value);
      said.x += s.x, said.y += s.y, read.x += r.x, read.y += r.y;
    }
    const float by = strength * of_key;
    const float2 written = float2{(given.x - said.x * of_key) * by, (given.y - said.y * of_key) * by};
#pragma unroll
    for (int i = 0; i < KEYS; i += 2) {
      const float2 keys = pair_at(key + part * KEYS + i);
      put_pair(state + i * DIM, float2{held[i].x + keys.x * written.x, held[i].y + keys.x * written.y});
      const float2 next = float2{held[i + 1].x + keys.y * written.x, held[i + 1].y + keys.y * written.y};
      put_pair(state + (i + 1) * DIM, next);
    }
    show_to_engines();
    barrier_arrive(done + stage * 8);
    if (finishes) {
      float2 found = float2{(read.x + both * written.x) * of_query, (read.y + both * written.y) * of_query};
      // Two states in turn: a warp may be at the next one while the other still adds up.
      if (norms) found = through_norm(found, gain, gate, squares + turn * (FINISHING / 32), p.norm_eps);
      put_pair(out, found);
    }
    if (++stage == R::STAGES) stage = 0, parity ^= 1;
  }
}

// One block of them. ring: shared memory of Ring<Kept>::BYTES.
template <typename Kept>
__device__ void walk_through(const Walk& begin, unsigned char* shared, uint32_t ring) {
  using R = Ring<Kept>;
  const uint32_t there = ring + R::BARRIERS_AT, done = there + R::STAGES * 8;
  if (threadIdx.x < COMPUTING) {
    compute<Kept>(begin, shared, reinterpret_cast<float*>(shared + R::STAGES * R::STAGE_BYTES), there, done);
  } else if (threadIdx.x == COMPUTING) {
    feed<Kept>(begin, ring, there, done);
  }
}

template <typename Kept>
__device__ void start_barriers(uint32_t ring) {
  using R = Ring<Kept>;
  const uint32_t there = ring + R::BARRIERS_AT, done = there + R::STAGES * 8;
  for (int stage = 0; stage < R::STAGES; ++stage) {
    barrier_init(there + stage * 8, 1);
    barrier_init(done + stage * 8, COMPUTING);
  }
  barrier_init_fence();
}

}  // namespace states::one_token
