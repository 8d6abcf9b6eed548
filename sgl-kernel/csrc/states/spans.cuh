// Recurrences over prompts: states are taken from chunk to chunk of 64 tokens, in products of tiles.
//
// With the state S of a head before a chunk, the gated delta rule computes from what the first part found for each chunk
// by itself (U written, W taken, I inside; see delta_chunks.cuh):
//
//     N = U - W S          what the tokens write
//     O = f Q S + I N      what they read; f: the length of a query, the decay since the chunk's beginning
//     S = c S + K^T (g N)  g: the length of a key, the decay until the chunk's end; c: that of the whole chunk
//
// In Mamba-2 tokens write N = X, whatever the state says. I and g have their time steps as factors, f is a decay alone,
// and O has d X added to it, with one number d for a head.
//
// A block has two warpgroups. Each takes 64 columns of values: half of a head of the delta rule, or a head of Mamba-2.
// All products are turned: rows are values, so S, N and what comes of them never leave the registers of a warpgroup,
// whose sums of one product are the left side of the next. Only what tokens bring lies in shared memory, in three stages
// of one chunk each, filled two chunks ahead. While the products of a state run, the results before them are stored and
// copies are started. Sums are taken in one order, whatever else is in the step.
#pragma once

#include "products.cuh"

namespace states {

constexpr int GROUPS = 2;  // of warps
constexpr int SPAN_THREADS = GROUPS * 128;
constexpr int HALVES = DIM / COLUMNS;  // of the numbers of a key
constexpr int STAGES = 3;
constexpr int FACTORS = 3;

struct DeltaRule {
  static constexpr int HEADS = 1;  // of a block
  static constexpr bool TAKES = true;
};

struct Mamba2 {
  static constexpr int HEADS = 2;
  static constexpr bool TAKES = false;
};

struct Spans {
  const __nv_bfloat16 *q, *k;    // [tokens, key heads, DIM]; of Mamba-2, C and B of its groups
  const __nv_bfloat16 *written;  // [tokens, columns of values]
  const __nv_bfloat16 *taken;    // [tokens, heads, DIM], or null
  const __nv_bfloat16 *inside;   // [tokens, heads, TOKENS]
  const float *factors;          // [3, heads, tokens]: g, f, and c at the first token of a chunk
  const float *skip;             // [heads], d of Mamba-2, or null
  void *matrix;                  // [entries, heads, DIM, values of a head]
  const int *spans;              // [rows, 5]: first token, end, a number that is not read, entries of state and copy, or -1
  __nv_bfloat16 *out;            // [tokens, columns of values]
  long q_stride, k_stride, written_stride;
  int tokens, heads, shared;  // shared: heads of a key head
};

// The heads of one block in one span, with states in memory as numbers of type Kept.
template <class Rule, typename Kept>
class SpanOfHeads {
  // Tiles of a chunk in shared memory: of queries, of keys and of what is taken, one for each half of the numbers of a
  // key; of what is written, for each warpgroup; of what is seen inside, for each head.
  static constexpr int QUERIES = 0, KEYS = 2, WRITTEN = 4, INSIDE = 6, TAKEN = INSIDE + Rule::HEADS;
  static constexpr int FACTORS_AT = (TAKEN + (Rule::TAKES ? HALVES : 0)) * TILE_BYTES;
  static constexpr int STAGE_BYTES = FACTORS_AT + Rule::HEADS * 1024;
  static_assert(FACTORS * TOKENS * sizeof(float) <= 1024, "factors of a head");
  static constexpr int VALUES = GROUPS / Rule::HEADS * COLUMNS;  // of a head

 public:
  static constexpr int BYTES = STAGES * STAGE_BYTES;

  // shared: from a boundary of 1024 bytes on.
  __device__ SpanOfHeads(const Spans& p, unsigned char* shared, int block, const int* span)
      : p(p), span(span), shared(shared), base(shared_address(shared)), block(block), end(span[1]),
        group(threadIdx.x / 128), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32), pair(lane % 4 * 2),
        own(Rule::HEADS > 1 ? group : 0) {}

  __device__ void run() const {
    const int start = span[0];
    fetch(0, start);
    close_copies();
    if (start + TOKENS < end) fetch(1, start + TOKENS);
    close_copies();
    Square state[HALVES];  // turned: values by numbers of a key
    load(state);
    const float passed = Rule::TAKES ? 0.f : p.skip[block * Rule::HEADS + own];
    uint32_t results[16];
    int slot = 0, before_slot = 0;
    for (int begin = start; begin < end; begin += TOKENS) {
      await_copies<1>();
      __syncthreads();
      const uint32_t stage = base + slot * STAGE_BYTES, values = stage + (WRITTEN + group) * TILE_BYTES;
      const float* factors = reinterpret_cast<const float*>(shared + slot * STAGE_BYTES + FACTORS_AT + own * 1024);
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
      if constexpr (Rule::TAKES) {
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
          multiply<false>(taken, before[half], stage + (TAKEN + half) * TILE_BYTES, half > 0);
        wgmma_commit();
      }
#pragma unroll
      for (int half = 0; half < HALVES; ++half)
        multiply<false>(read, before[half], stage + (QUERIES + half) * TILE_BYTES, half > 0);
      wgmma_commit();

      if (begin > start) store(results, before_slot, begin - TOKENS);
      __syncthreads();  // nobody needs the stage before any more
      if (begin + 2 * TOKENS < end) fetch(slot == 0 ? STAGES - 1 : slot - 1, begin + 2 * TOKENS);
      close_copies();

      Left added, kept;
      if constexpr (Rule::TAKES) wgmma_wait<1>();
#pragma unroll
      for (int two = 0; two < 4; ++two) {
        uint32_t written[4];
        load_turned(written, values + lane_in_turned(two * 16, warp * 2));
#pragma unroll
        for (int one = 0; one < 2; ++one) {
          const int j = two * 2 + one;
          float2 upper = unpacked(written[2 * one]), lower = unpacked(written[2 * one + 1]);
          const float2 of_key = *reinterpret_cast<const float2*>(factors + j * 8 + pair);
          if constexpr (Rule::TAKES) {
            upper.x -= taken[4 * j], upper.y -= taken[4 * j + 1];
            lower.x -= taken[4 * j + 2], lower.y -= taken[4 * j + 3];
          }
          added.set(j, upper.x, upper.y, lower.x, lower.y);
          kept.set(j, upper.x * of_key.x, upper.y * of_key.y, lower.x * of_key.x, lower.y * of_key.y);
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
        if constexpr (!Rule::TAKES) {
          const float2 upper = unpacked(added.upper(j)), lower = unpacked(added.lower(j));
          read[4 * j] += passed * upper.x, read[4 * j + 1] += passed * upper.y;
          read[4 * j + 2] += passed * lower.x, read[4 * j + 3] += passed * lower.y;
        }
      }
      wgmma_fence();
      multiply<false>(read, added, stage + (INSIDE + own) * TILE_BYTES, true);
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
  // pair: this thread's first column in each block of eight of a square; own: the head of its warpgroup in the block.
  int block, end, group, warp, lane, pair, own;

  // Where this thread's first number of a state is: the row of its first value, turned.
  __device__ Kept* entry(int number) const {
    const long head = long(number) * p.heads + block * Rule::HEADS + own;
    const int value = (Rule::HEADS > 1 ? 0 : group * COLUMNS) + warp * 16 + lane / 4;
    return static_cast<Kept*>(p.matrix) + (head * DIM + pair) * VALUES + value;
  }

  __device__ void load(Square (&state)[HALVES]) const {
    const Kept* from = entry(span[3]);
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
      for (int i = 0; i < 32; ++i)
        state[half][i] = float(from[(half * COLUMNS + i / 4 * 8 + i % 2) * VALUES + i % 4 / 2 * 8]);
  }

  __device__ void keep(const Square (&state)[HALVES], int number) const {
    Kept* to = entry(number);
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
      for (int i = 0; i < 32; ++i)
        to[(half * COLUMNS + i / 4 * 8 + i % 2) * VALUES + i % 4 / 2 * 8] = Kept(state[half][i]);
  }

  // Starts the copies of the chunk that begins at a token.
  __device__ void fetch(int slot, int begin) const {
    const uint32_t stage = base + slot * STAGE_BYTES;
    const int thread = threadIdx.x, first = block * Rule::HEADS, key_head = first / p.shared;
    const __nv_bfloat16 *query = p.q + key_head * DIM, *key = p.k + key_head * DIM;
#pragma unroll
    for (int i = 0; i < TOKENS * 16 / SPAN_THREADS; ++i) {
      const int row = thread / 16 + i * (SPAN_THREADS / 16), place = thread % 16;
      const bool there = begin + row < end;
      const long token = there ? begin + row : begin;
      const uint32_t at = stage + place / 8 * TILE_BYTES + within_tile(row, place % 8);
      const long values = block * long(GROUPS * COLUMNS) + place * 8;
      copy_or_clear(at + QUERIES * TILE_BYTES, query + token * p.q_stride + place * 8, there);
      copy_or_clear(at + KEYS * TILE_BYTES, key + token * p.k_stride + place * 8, there);
      copy_or_clear(at + WRITTEN * TILE_BYTES, p.written + token * p.written_stride + values, there);
      if constexpr (Rule::TAKES)
        copy_or_clear(at + TAKEN * TILE_BYTES, p.taken + (token * p.heads + first) * DIM + place * 8, there);
    }
#pragma unroll
    for (int i = 0; i < Rule::HEADS * TOKENS * 8 / SPAN_THREADS; ++i) {
      const int row = (thread / 8 + i * (SPAN_THREADS / 8)) % TOKENS, place = thread % 8;
      const int head = i * (SPAN_THREADS / 8) / TOKENS;
      const bool there = begin + row < end;
      const long token = there ? begin + row : begin;
      const __nv_bfloat16* from = p.inside + (token * p.heads + first + head) * TOKENS + place * 8;
      copy_or_clear(stage + (INSIDE + head) * TILE_BYTES + within_tile(row, place), from, there);
    }
    if (thread < FACTORS * TOKENS) {
      const int token = begin + thread % TOKENS;
      const bool there = token < end;
#pragma unroll
      for (int head = 0; head < Rule::HEADS; ++head) {
        const float* of_head = p.factors + (long(thread / TOKENS) * p.heads + first + head) * p.tokens;
        copy_or_clear_float(stage + FACTORS_AT + head * 1024 + thread * 4, of_head + (there ? token : begin), there);
      }
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
        const long columns = long(p.heads) * VALUES;
        const long target = (begin + row) * columns + (block * GROUPS + group) * COLUMNS + place * 8;
        *reinterpret_cast<uint4*>(p.out + target) = load_16(values + within_tile(row, place));
      }
    }
  }
};

}  // namespace states
