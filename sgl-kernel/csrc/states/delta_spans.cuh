// The gated delta rule over prompts, its second part: states are taken from chunk to chunk of 64 tokens.
//
// With the state S of a head before a chunk, and what the first part computed for each chunk by itself (U written, W
// taken, I inside; see delta_chunks.cuh):
//
//     N = U - W S          what the tokens write
//     O = f Q S + I N      what they read; f: the length of a query, the decay since the chunk's beginning
//     S = c S + K^T (g N)  g: the length of a key, the decay until the chunk's end; c: that of the whole chunk
//
// A block takes one head of one row, each of its two warpgroups half of the values. All products are turned: rows are
// values, so S, N and what comes of them never leave the registers of a warpgroup, whose sums of one product are the
// left side of the next. Only what tokens bring lies in shared memory, in three stages of one chunk each, filled two
// chunks ahead. While W S and Q S are computed, the results before them are stored and copies are started. Sums are
// taken in one order, whatever else is in the step.
#pragma once

#include "products.cuh"

namespace states {

constexpr int HALVES = DIM / COLUMNS;
constexpr int SPAN_THREADS = HALVES * 128;
constexpr int STAGES = 3;
constexpr int FACTORS = 3;

// A chunk in shared memory. Of `taken`, `queries` and `keys`: a tile for each half of the numbers of a key; of
// `written`: for each half of the values.
enum Part { TAKEN = 0, QUERIES = 2, KEYS = 4, WRITTEN = 6, INSIDE = 8, TILES = 9 };
constexpr int FACTORS_AT = TILES * TILE_BYTES;
constexpr int STAGE_BYTES = FACTORS_AT + 1024;
static_assert(FACTORS * TOKENS * sizeof(float) <= 1024, "factors of a chunk");

struct Spans {
  const __nv_bfloat16 *q, *k, *written, *taken, *inside;
  const float* factors;  // [3, heads, tokens]: g, f, and c at the first token of a chunk
  void* matrix;          // [entries, heads, DIM, DIM]
  const int* spans;      // [rows, 5]: first token, end, the row's first token, the state's entry, that of a copy or -1
  __nv_bfloat16* out;
  long q_stride, k_stride;
  int tokens, heads, shared;
};

// One head of one span, with states in memory as numbers of type Kept.
template <typename Kept>
class SpanOfHead {
 public:
  static constexpr int BYTES = STAGES * STAGE_BYTES;

  // shared: from a boundary of 1024 bytes on.
  __device__ SpanOfHead(const Spans& p, unsigned char* shared, int head, const int* span)
      : p(p), span(span), shared(shared), base(shared_address(shared)), head(head), end(span[1]),
        group(threadIdx.x / 128), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32), pair(lane % 4 * 2) {}

  __device__ void run() const {
    const int start = span[0];
    fetch(0, start);
    close_copies();
    if (start + TOKENS < end) fetch(1, start + TOKENS);
    close_copies();
    Square state[HALVES];  // turned: values by numbers of a key
    load(state);
    uint32_t results[16];
    int slot = 0, before_slot = 0;
    for (int begin = start; begin < end; begin += TOKENS) {
      await_copies<1>();
      __syncthreads();
      const uint32_t stage = base + slot * STAGE_BYTES, values = stage + (WRITTEN + group) * TILE_BYTES;
      const float* factors = reinterpret_cast<const float*>(shared + slot * STAGE_BYTES + FACTORS_AT);
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

      if (begin > start) store(results, before_slot, begin - TOKENS);
      __syncthreads();  // nobody needs the stage before any more
      if (begin + 2 * TOKENS < end) fetch(slot == 0 ? STAGES - 1 : slot - 1, begin + 2 * TOKENS);
      close_copies();

      Left added, kept;
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
#pragma unroll
      for (int i = 0; i < 16; ++i) results[i] = packed(read[2 * i], read[2 * i + 1]);
      before_slot = slot;
      slot = slot == STAGES - 1 ? 0 : slot + 1;
    }
    store(results, before_slot, start + (end - start - 1) / TOKENS * TOKENS);
    keep(state, span[3]);
    if (span[4] >= 0) keep(state, span[4]);
  }

 private:
  const Spans& p;
  const int* span;
  unsigned char* shared;
  uint32_t base;
  int head, end, group, warp, lane, pair;  // pair: this thread's first column in each block of eight of a square

  // Where this thread's first number of a state is: the row of its first value, turned.
  __device__ Kept* entry(int number) const {
    const long size = long(p.heads) * DIM * DIM;
    const int value = group * COLUMNS + warp * 16 + lane / 4;
    return static_cast<Kept*>(p.matrix) + number * size + (long(head) * DIM + pair) * DIM + value;
  }

  __device__ void load(Square (&state)[HALVES]) const {
    const Kept* from = entry(span[3]);
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
      for (int i = 0; i < 32; ++i)
        state[half][i] = float(from[(half * COLUMNS + i / 4 * 8 + i % 2) * DIM + i % 4 / 2 * 8]);
  }

  __device__ void keep(const Square (&state)[HALVES], int number) const {
    Kept* to = entry(number);
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
      for (int i = 0; i < 32; ++i)
        to[(half * COLUMNS + i / 4 * 8 + i % 2) * DIM + i % 4 / 2 * 8] = Kept(state[half][i]);
  }

  // Starts the copies of the chunk that begins at a token.
  __device__ void fetch(int slot, int begin) const {
    const uint32_t stage = base + slot * STAGE_BYTES;
    const int thread = threadIdx.x;
    const __nv_bfloat16* query = p.q + head / p.shared * DIM;
    const __nv_bfloat16* key = p.k + head / p.shared * DIM;
#pragma unroll
    for (int i = 0; i < TOKENS * 16 / SPAN_THREADS; ++i) {
      const int row = thread / 16 + i * (SPAN_THREADS / 16), place = thread % 16;
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
    for (int i = 0; i < TOKENS * 8 / SPAN_THREADS; ++i) {
      const int row = thread / 8 + i * (SPAN_THREADS / 8), place = thread % 8;
      const bool there = begin + row < end;
      const long token = there ? begin + row : begin;
      const __nv_bfloat16* from = p.inside + (token * p.heads + head) * TOKENS + place * 8;
      copy_or_clear(stage + INSIDE * TILE_BYTES + within_tile(row, place), from, there);
    }
    if (thread < FACTORS * TOKENS) {
      const int token = begin + thread % TOKENS;
      const bool there = token < end;
      const float* of_head = p.factors + (long(thread / TOKENS) * p.heads + head) * p.tokens;
      copy_or_clear_float(stage + FACTORS_AT + thread * 4, of_head + (there ? token : begin), there);
    }
  }

  // Results of a chunk: a warp's take the places of what it read of `written`, and go from there in rows.
  __device__ void store(const uint32_t (&results)[16], int slot, int begin) const {
    const uint32_t values = base + slot * STAGE_BYTES + (WRITTEN + group) * TILE_BYTES;
#pragma unroll
    for (int two = 0; two < 4; ++two) {
      const uint32_t some[4] = {results[4 * two], results[4 * two + 1], results[4 * two + 2], results[4 * two + 3]};
      store_turned(values + lane_in_turned(two * 16, warp * 2), some);
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
};

}  // namespace states
