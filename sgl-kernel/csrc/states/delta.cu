// The gated delta rule over prompts, its second part: states are taken from chunk to chunk of 64 tokens.
//
// With the state S of a head before a chunk, and what the first part computed for each chunk by itself (U written, W
// taken, I inside; see `kernels/delta_rule.py` of mysglang for the formulas):
//
//     N = U - W S          what the tokens write
//     O = f Q S + I N      what they read; f: the length of a query, the decay since the chunk's beginning
//     S = c S + K^T (g N)  g: the length of a key, the decay until the chunk's end; c: that of the whole chunk
//
// A block takes one head of one row, each of its two warpgroups half of the values. All products are turned: rows are
// values, so S, N and what comes of them never leave the registers of a warpgroup, whose sums of one product are the
// left side of the next. Only what tokens bring lies in shared memory, in three stages of one chunk each, filled two
// chunks ahead. Sums are taken in one order, whatever else is in the step.

#include "products.cuh"

namespace {

using namespace states;
using hopper::wgmma_commit;
using hopper::wgmma_fence;
using hopper::wgmma_wait;

constexpr int DIM = 128;  // of keys and of values
constexpr int HALVES = DIM / COLUMNS;
constexpr int THREADS = HALVES * 128;
constexpr int STAGES = 3;
constexpr int FACTORS = 3;

// A chunk in shared memory. Of `taken`, `queries` and `keys`: a tile for each half of the numbers of a key; of
// `written`: for each half of the values.
enum Part { TAKEN = 0, QUERIES = 2, KEYS = 4, WRITTEN = 6, INSIDE = 8, TILES = 9 };
constexpr int FACTORS_AT = TILES * TILE_BYTES;
constexpr int STAGE_BYTES = FACTORS_AT + 1024;
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 1024;  // and the way to a boundary of 1024 bytes
static_assert(FACTORS * TOKENS * sizeof(float) <= 1024, "factors of a chunk");

struct Params {
  const __nv_bfloat16 *q, *k, *written, *taken, *inside;
  const float* factors;  // [3, heads, tokens]: g, f, and c at the first token of a chunk
  void* matrix;          // [entries, heads, DIM, DIM]
  const int* spans;      // [rows, 5]: first token, end, the row's first token, the state's entry, that of a copy or -1
  __nv_bfloat16* out;
  long q_stride, k_stride;
  int tokens, heads, shared;
};

// Starts the copies of the chunk that begins at a token.
__device__ __forceinline__ void fetch(const Params& p, uint32_t stage, int head, int begin, int end) {
  const int thread = threadIdx.x;
  const __nv_bfloat16* query = p.q + head / p.shared * DIM;
  const __nv_bfloat16* key = p.k + head / p.shared * DIM;
#pragma unroll
  for (int i = 0; i < TOKENS * 16 / THREADS; ++i) {
    const int row = thread / 16 + i * (THREADS / 16), place = thread % 16;
    const bool there = begin + row < end;
    const long token = there ? begin + row : begin;
    const long own = (token * p.heads + head) * DIM + place * 8;
    const uint32_t at = stage + place / 8 * TILE_BYTES + within_tile(row, place % 8);
    copy_or_clear(at + TAKEN * TILE_BYTES, p.taken + own, there);
    copy_or_clear(at + QUERIES * TILE_BYTES, query + token * p.q_stride + place * 8, there);
    copy_or_clear(at + KEYS * TILE_BYTES, key + token * p.k_stride + place * 8, there);
    copy_or_clear(at + WRITTEN * TILE_BYTES, p.written + own, there);
  }
#pragma unroll
  for (int i = 0; i < TOKENS * 8 / THREADS; ++i) {
    const int row = thread / 8 + i * (THREADS / 8), place = thread % 8;
    const bool there = begin + row < end;
    const long token = there ? begin + row : begin;
    const __nv_bfloat16* from = p.inside + (token * p.heads + head) * TOKENS + place * 8;
    copy_or_clear(stage + INSIDE * TILE_BYTES + within_tile(row, place), from, there);
  }
  if (thread < FACTORS * TOKENS) {
    const int row = thread % TOKENS;
    const bool there = begin + row < end;
    const float* from = p.factors + (long(thread / TOKENS) * p.heads + head) * p.tokens + (there ? begin + row : begin);
    copy_or_clear_float(stage + FACTORS_AT + thread * 4, from, there);
  }
}

template <typename Kept>
__device__ __forceinline__ float2 load_pair(const Kept* from, int distance) {
  return make_float2(float(from[0]), float(from[distance]));
}

template <typename Kept>
__global__ void __launch_bounds__(THREADS, 1) delta_spans(const __grid_constant__ Params p) {
  const int head = blockIdx.x;
  const int* span = p.spans + blockIdx.y * 5;
  const int start = span[0], end = span[1];
  if (start >= end) return;
  extern __shared__ unsigned char shared[];
  const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  // This thread's first row of a warpgroup's squares, and its first column in each block of eight.
  const int value = warp * 16 + lane / 4, pair = lane % 4 * 2;
  const long size = long(p.heads) * DIM * DIM;
  Kept* own = static_cast<Kept*>(p.matrix) + (long(head) * DIM + pair) * DIM + group * COLUMNS + value;

  fetch(p, stages, head, start, end);
  close_copies();
  if (start + TOKENS < end) fetch(p, stages + STAGE_BYTES, head, start + TOKENS, end);
  close_copies();

  Square state[HALVES];  // turned: values by numbers of a key
  const Kept* entry = own + span[3] * size;
#pragma unroll
  for (int half = 0; half < HALVES; ++half)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const float2 two = load_pair(entry + (half * COLUMNS + j * 8) * DIM + below * 8, DIM);
        state[half][4 * j + 2 * below] = two.x;
        state[half][4 * j + 2 * below + 1] = two.y;
      }

  int slot = 0;
  for (int begin = start; begin < end; begin += TOKENS) {
    await_copies<1>();
    __syncthreads();
    if (begin + 2 * TOKENS < end)
      fetch(p, stages + (slot + 2) % STAGES * STAGE_BYTES, head, begin + 2 * TOKENS, end);
    close_copies();
    const uint32_t stage = stages + slot * STAGE_BYTES;
    const float* factors = reinterpret_cast<const float*>(shared + (stage + FACTORS_AT - shared_address(shared)));
    slot = slot == STAGES - 1 ? 0 : slot + 1;

    // Not while products are under way: the compiler would wait for all of them.
    const float whole = factors[2 * TOKENS];
    Left before[HALVES];
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      before[half].set(state[half]);
#pragma unroll
      for (int i = 0; i < 32; ++i) state[half][i] *= whole;
    }
    Square taken, read;
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      multiply<false>(taken, before[half], stage + (TAKEN + half) * TILE_BYTES, half > 0);
    wgmma_commit();
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      multiply<false>(read, before[half], stage + (QUERIES + half) * TILE_BYTES, half > 0);
    wgmma_commit();
    Left added, kept;
    const uint32_t values = stage + (WRITTEN + group) * TILE_BYTES;
    wgmma_wait<1>();
#pragma unroll
    for (int two = 0; two < 4; ++two) {
      uint32_t written[4];
      load_turned(written, values + lane_in_turned(two * 16, warp * 2));
#pragma unroll
      for (int one = 0; one < 2; ++one) {
        const int j = two * 2 + one;
        const float2 upper = unpacked(written[2 * one]), lower = unpacked(written[2 * one + 1]);
        const float2 of_key = *reinterpret_cast<const float2*>(factors + j * 8 + pair);
        const float a = upper.x - taken[4 * j], b = upper.y - taken[4 * j + 1];
        const float c = lower.x - taken[4 * j + 2], d = lower.y - taken[4 * j + 3];
        added.set(j, a, b, c, d);
        kept.set(j, a * of_key.x, b * of_key.y, c * of_key.x, d * of_key.y);
      }
    }
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      multiply<true>(state[half], kept, stage + (KEYS + half) * TILE_BYTES, true);
    wgmma_commit();
    wgmma_wait<1>();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 of_query = *reinterpret_cast<const float2*>(factors + TOKENS + j * 8 + pair);
      read[4 * j] *= of_query.x, read[4 * j + 2] *= of_query.x;
      read[4 * j + 1] *= of_query.y, read[4 * j + 3] *= of_query.y;
    }
    wgmma_fence();
    multiply<false>(read, added, stage + INSIDE * TILE_BYTES, true);
    wgmma_commit();
    wgmma_wait<0>();

    // A warp's results take the places of what it read of `written`, and go from there in rows.
#pragma unroll
    for (int two = 0; two < 4; ++two) {
      uint32_t results[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) results[i] = packed(read[8 * two + 2 * i], read[8 * two + 2 * i + 1]);
      store_turned(values + lane_in_turned(two * 16, warp * 2), results);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < TOKENS * 2 / 32; ++i) {
      const int row = lane / 2 + i * 16, place = warp * 2 + lane % 2;
      if (begin + row < end) {
        const long target = (long(begin + row) * p.heads + head) * DIM + group * COLUMNS + place * 8;
        *reinterpret_cast<uint4*>(p.out + target) = load_16(values + within_tile(row, place));
      }
    }
  }

#pragma unroll
  for (int copy = 0; copy < 2; ++copy) {
    const int where = span[3 + copy];
    if (where < 0) continue;
    Kept* target = own + where * size;
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          target[(half * COLUMNS + j * 8 + i % 2) * DIM + i / 2 * 8] = Kept(state[half][4 * j + i]);
  }
}

template <typename Kept>
cudaError_t launch(const Params& p, int rows, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(delta_spans<Kept>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (allowed != cudaSuccess) return allowed;
  delta_spans<Kept><<<dim3(p.heads, rows), THREADS, SHARED_BYTES, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

// halved: states are kept in bf16 instead of float32.
extern "C" cudaError_t mysgl_delta_spans(
    const void* q, const void* k, const void* written, const void* taken, const void* inside, const void* factors,
    void* matrix, const void* spans, void* out, long q_stride, long k_stride, int tokens, int heads, int shared,
    int rows, int halved, cudaStream_t stream) {
  using Value = const __nv_bfloat16*;
  const Params p{Value(q),  Value(k),      Value(written),   Value(taken),          Value(inside),
                 static_cast<const float*>(factors), matrix, static_cast<const int*>(spans),
                 static_cast<__nv_bfloat16*>(out),   q_stride, k_stride, tokens, heads, shared};
  return halved ? launch<__nv_bfloat16>(p, rows, stream) : launch<float>(p, rows, stream);
}
