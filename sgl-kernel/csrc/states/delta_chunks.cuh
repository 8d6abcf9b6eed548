// The gated delta rule over prompts, its first part: what does not depend on states, for each chunk of 64 tokens by
// itself. See `kernels/delta_rule.py` of mysglang for the formulas. With the strengths b, the decays c_i from the
// chunk's beginning to token i, keys and queries of length 1, and D_ij = c_i / c_j for j <= i:
//
//     L = tril(b D K K^T, -1)       how much a token's key says of what the tokens before it write
//     (1 + L) U = b V               U, `written`: what the tokens would write were the state 0
//     (1 + L) W = b c K             W, `taken`: how much of the state they take away from it
//     I = tril(D Q K^T)             `inside`: how much of what the tokens write each of them reads
//
// A block of four warps takes one key head of a chunk, and its value heads in turn, which share the products of keys and
// queries. A warp has sixteen tokens of these. It inverts its 16 by 16 square on the diagonal of 1 + L by substitution,
// one column a lane. Then a warp has 64 columns of U or W, which it finds sixteen tokens at a time:
//
//     X_m = (1 + L_mm)^-1 R_m,   R_j -= L_jm X_m for j > m,   and R = b V or b c K before
//
// Again all is turned: columns of U and W are rows of the products, so X_m goes from sums to left sides in registers.
// L and the inverses are sums of two bf16 numbers each, which have 16 bits; X is rounded to bf16, as it is in the end.
#pragma once

#include "gates.cuh"
#include "tiles.cuh"

namespace states {

constexpr int CHUNK_THREADS = 128;
constexpr int SIDE = 16;           // of a square of L that is inverted
constexpr int BLOCKS = TOKENS / SIDE;
constexpr int MOST_SHARED = 8;     // value heads of a key head
constexpr unsigned ALL_LANES = 0xffffffffu;

struct Chunks {
  const __nv_bfloat16 *q, *k, *v, *a, *b;
  const float *log_rate, *time_bias;
  const int *cuts, *chunks;  // [spans, 5]: first token, end, …; [chunks, 2]: first token, span
  __nv_bfloat16 *written, *taken, *inside;
  float* factors;  // [3, heads, tokens]: of keys, of queries, and the decay of a chunk at its first token
  long q_stride, k_stride, v_stride, a_stride, b_stride;
  int tokens, heads, shared;
  float strongest, eps;
};

// x as the sum of two bf16 numbers.
struct TwoParts {
  uint32_t high, low;

  __device__ __forceinline__ TwoParts(float x, float y) : high(packed(x, y)) {
    const float2 rounded = unpacked(high);
    low = packed(x - rounded.x, y - rounded.y);
  }
};

class ChunkOfHeads {
 public:
  // In shared memory: tiles of keys, of queries and then what is written out of `inside` and `taken`, of values and then
  // `written`, of both parts of -L with the inverses on the diagonal; then numbers.
  static constexpr int KEYS = 0, QUERIES = 2 * TILE_BYTES, VALUES = 4 * TILE_BYTES, HIGH = 6 * TILE_BYTES;
  static constexpr int LOW = 7 * TILE_BYTES, NUMBERS = 8 * TILE_BYTES;
  static constexpr int BYTES =
      NUMBERS + int(sizeof(float)) * (BLOCKS * SIDE * SIDE + 2 * TOKENS + 2 * MOST_SHARED * TOKENS);

  __device__ ChunkOfHeads(const Chunks& p, unsigned char* shared, int key_head, int begin, int end)
      : p(p), base(shared_address(shared)), key_head(key_head), begin(begin), count(min(TOKENS, end - begin)),
        warp(threadIdx.x / 32), lane(threadIdx.x % 32), upper(lane / 4), pair(lane % 4 * 2) {
    squares = reinterpret_cast<float*>(shared + NUMBERS);
    of_key = squares + BLOCKS * SIDE * SIDE;
    of_query = of_key + TOKENS;
    since = of_query + TOKENS;
    strength = since + MOST_SHARED * TOKENS;
  }

  __device__ void run() {
    fetch_tiles(KEYS, p.k + key_head * DIM, p.k_stride);
    fetch_tiles(QUERIES, p.q + key_head * DIM, p.q_stride);
    if (warp < 2) fetch_values(0);
    close_copies();
    for (int head = warp; head < p.shared; head += 4) find_gates(head);
    await_copies<0>();
    __syncthreads();
    find_lengths();
    float keys[8][4] = {}, queries[8][4] = {};
    multiply_keys(keys, queries);
    __syncthreads();
    for (int head = 0; head < p.shared; ++head) {
      place_products(keys, queries, head);
      __syncwarp();
      invert();
      store_factors(head);
      await_copies<0>();
      __syncthreads();
      store_inside(head);
      __syncthreads();
      solve(head);
      if (head + 1 == p.shared) break;
      if (warp < 2) {
        __syncwarp();
        fetch_values(head + 1);
      }
      close_copies();
      __syncthreads();
    }
  }

 private:
  const Chunks& p;
  uint32_t base;
  int key_head, begin, count;  // count: tokens that there are
  int warp, lane, upper, pair;  // upper, pair: this lane's row and first column in a block of sums
  float *squares, *of_key, *of_query, *since, *strength;

  __device__ int value_head(int head) const { return key_head * p.shared + head; }

  // Sixteen bytes of a token, or zeros behind the last one.
  __device__ void fetch(uint32_t tile, const __nv_bfloat16* from, long stride, int row, int place) const {
    const bool there = row < count;
    const long token = begin + (there ? row : 0);
    copy_or_clear(base + tile + within_tile(row, place), from + token * stride + place * 8, there);
  }

  // Two tiles, by all threads.
  __device__ void fetch_tiles(uint32_t tiles, const __nv_bfloat16* from, long stride) const {
#pragma unroll
    for (int i = 0; i < TOKENS * 16 / CHUNK_THREADS; ++i) {
      const int row = threadIdx.x / 16 + i * (CHUNK_THREADS / 16), half = threadIdx.x % 16 / 8;
      fetch(tiles + half * TILE_BYTES, from + half * COLUMNS, stride, row, threadIdx.x % 8);
    }
  }

  // The tile of the values that this warp takes through the system.
  __device__ void fetch_values(int head) const {
    const int place = lane % 8;
    // One address that moves on takes a third of the instructions of sixteen products.
    const __nv_bfloat16* from =
        p.v + (begin + lane / 8) * p.v_stride + value_head(head) * DIM + warp * COLUMNS + place * 8;
#pragma unroll
    for (int i = 0; i < TOKENS / 4; ++i) {
      const int row = i * 4 + lane / 8;
      const bool there = row < count;
      copy_or_clear(base + VALUES + warp * TILE_BYTES + within_tile(row, place), there ? from : p.v, there);
      from += 4 * p.v_stride;
    }
  }

  // Logarithms to base 2 of decays since the chunk's beginning, and strengths. By one warp, two tokens a lane.
  __device__ void find_gates(int head) const {
    const int of = value_head(head), first = lane * 2;
    const float log_rate = p.log_rate[of], shift = p.time_bias[of];
    float decay[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const long token = begin + first + i;
      float its = 0.f;
      if (first + i < count) {
        decay[i] = decay_of(float(p.a[token * p.a_stride + of]), shift, log_rate) * LOG2E;
        its = strength_of(float(p.b[token * p.b_stride + of]), p.strongest);
      }
      strength[head * TOKENS + first + i] = its;
    }
    float sum = decay[0] + decay[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(ALL_LANES, sum, step);
      if (lane >= step) sum += before;
    }
    since[head * TOKENS + first] = sum - decay[1];
    since[head * TOKENS + first + 1] = sum;
  }

  // What makes keys and queries as long as they should be: two threads for each.
  __device__ void find_lengths() const {
    const int row = threadIdx.x / 2, half = threadIdx.x % 2;
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int place = 0; place < 8; ++place) {
        const uint4 eight = load_16(base + (i ? QUERIES : KEYS) + half * TILE_BYTES + within_tile(row, place));
        const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 two = unpacked(pairs[n]);
          sums[i] += two.x * two.x + two.y * two.y;
        }
      }
      sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], 1);
    }
    if (half == 0) {
      of_key[row] = rsqrtf(sums[0] + p.eps);
      of_query[row] = rsqrtf(sums[1] + p.eps) * QUERY_SCALE;
    }
  }

  // K K^T and Q K^T, this warp's rows, up to the diagonal.
  __device__ void multiply_keys(float (&keys)[8][4], float (&queries)[8][4]) const {
#pragma unroll
    for (int step = 0; step < DIM / 16; ++step) {
      const uint32_t half = step / 4 * TILE_BYTES;
      const int place = step % 4 * 2;
      uint32_t key[4], query[4];
      load_blocks(key, base + KEYS + half + lane_in_blocks<true>(warp * SIDE, place));
      load_blocks(query, base + QUERIES + half + lane_in_blocks<true>(warp * SIDE, place));
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        if (block > warp) continue;
        uint32_t right[4];
        load_blocks(right, base + KEYS + half + lane_in_blocks<false>(block * SIDE, place));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add(keys[block * 2 + i], key, right[2 * i], right[2 * i + 1]);
          multiply_add(queries[block * 2 + i], query, right[2 * i], right[2 * i + 1]);
        }
      }
    }
  }

  // -L in two parts, its squares on the diagonal in float32, and what is seen inside of the chunk.
  __device__ void place_products(const float (&keys)[8][4], const float (&queries)[8][4], int head) const {
    const float* own_since = since + head * TOKENS;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int i = warp * SIDE + below * 8 + upper;
      const float since_i = own_since[i], of_row = -of_key[i] * strength[head * TOKENS + i], of_read = of_query[i];
#pragma unroll
      for (int block = 0; block < 8; ++block) {
        const uint32_t at = within_tile(i, block) + lane % 4 * 4;
        if (block > 2 * warp + 1) {
          store_4(base + QUERIES + at, 0);
          continue;
        }
        const int j = block * 8 + pair;
        const float2 since_j = *reinterpret_cast<const float2*>(own_since + j);
        const float2 of_keys = *reinterpret_cast<const float2*>(of_key + j);
        // Above the diagonal a quotient could overflow.
        const float left = j <= i ? power_of_2(since_i - since_j.x) * of_keys.x : 0.f;
        const float right = j + 1 <= i ? power_of_2(since_i - since_j.y) * of_keys.y : 0.f;
        store_4(base + QUERIES + at, packed(queries[block][2 * below] * left * of_read,
                                            queries[block][2 * below + 1] * right * of_read));
        const float x = keys[block][2 * below] * left * of_row, y = keys[block][2 * below + 1] * right * of_row;
        if (block < 2 * warp) {
          const TwoParts parts(x, y);
          store_4(base + HIGH + at, parts.high);
          store_4(base + LOW + at, parts.low);
        } else {
          float* square = squares + (warp * SIDE + below * 8 + upper) * SIDE + (block - 2 * warp) * 8 + pair;
          square[0] = x, square[1] = y;  // of which only what is below the diagonal is read
        }
      }
    }
  }

  // The inverse of this warp's square of 1 + L, a column for each of sixteen lanes and once more for the others, which
  // store its low part.
  __device__ void invert() const {
    const int column = lane % SIDE;
    const float* square = squares + warp * SIDE * SIDE;
    float inverse[SIDE];
#pragma unroll
    for (int row = 0; row < SIDE; ++row) {
      float sum = row == column ? 1.f : 0.f;
#pragma unroll
      for (int other = 0; other < row; ++other) sum += square[row * SIDE + other] * inverse[other];
      inverse[row] = sum;
    }
    const uint32_t part = lane < SIDE ? HIGH : LOW;
#pragma unroll
    for (int row = 0; row < SIDE; ++row) {
      const float next = __shfl_xor_sync(ALL_LANES, inverse[row], 1);
      const TwoParts parts(inverse[row], next);
      const uint32_t at = within_tile(warp * SIDE + row, warp * 2 + column / 8) + column % 8 * 2;
      if (column % 2 == 0) store_4(base + part + at, lane < SIDE ? parts.high : parts.low);
    }
  }

  __device__ void store_factors(int head) const {
    const int token = threadIdx.x;
    if (token >= count) return;
    const float* own = since + head * TOKENS;
    const float whole = own[TOKENS - 1];
    float* target = p.factors + long(value_head(head)) * p.tokens + begin + token;
    const long columns = long(p.heads) * p.tokens;
    target[0] = of_key[token] * power_of_2(whole - own[token]);
    target[columns] = of_query[token] * power_of_2(own[token]);
    if (token == 0) target[2 * columns] = power_of_2(whole);
  }

  __device__ void store_inside(int head) const {
#pragma unroll
    for (int i = 0; i < TOKENS * 8 / CHUNK_THREADS; ++i) {
      const int row = threadIdx.x / 8 + i * (CHUNK_THREADS / 8), place = threadIdx.x % 8;
      if (row >= count) continue;
      __nv_bfloat16* target = p.inside + (long(begin + row) * p.heads + value_head(head)) * TOKENS + place * 8;
      *reinterpret_cast<uint4*>(target) = load_16(base + QUERIES + within_tile(row, place));
    }
  }

  // Sixty-four columns of U, or of W for the third and the fourth warp.
  __device__ void solve(int head) const {
    const bool of_values = warp < 2;
    const uint32_t from = (of_values ? VALUES : KEYS) + warp % 2 * TILE_BYTES;
    const uint32_t to = (of_values ? VALUES : QUERIES) + warp % 2 * TILE_BYTES;
    const float *own_since = since + head * TOKENS, *own_strength = strength + head * TOKENS;
    float2 factors[8];  // of this lane's tokens
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int token = i * 8 + pair;
      factors[i] = *reinterpret_cast<const float2*>(own_strength + token);
      if (!of_values) {
        factors[i].x *= of_key[token] * power_of_2(own_since[token]);
        factors[i].y *= of_key[token + 1] * power_of_2(own_since[token + 1]);
      }
    }
#pragma unroll 1
    for (int columns = 0; columns < COLUMNS / SIDE; ++columns) {
      float sums[8][4];
#pragma unroll
      for (int two = 0; two < BLOCKS; ++two) {
        uint32_t given[4];
        load_turned(given, base + from + lane_in_turned(two * 16, columns * 2));
#pragma unroll
        for (int one = 0; one < 2; ++one) {
          const float2 factor = factors[two * 2 + one];
#pragma unroll
          for (int below = 0; below < 2; ++below) {
            const float2 x = unpacked(given[2 * one + below]);
            sums[two * 2 + one][2 * below] = x.x * factor.x;
            sums[two * 2 + one][2 * below + 1] = x.y * factor.y;
          }
        }
      }
#pragma unroll
      for (int m = 0; m < BLOCKS; ++m) {
        uint32_t rest[4], rest_low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const TwoParts parts(sums[2 * m + i / 2][i % 2 * 2], sums[2 * m + i / 2][i % 2 * 2 + 1]);
          rest[i] = parts.high, rest_low[i] = parts.low;
        }
        uint32_t high[4], low[4];
        load_blocks(high, base + HIGH + lane_in_blocks<false>(m * SIDE, m * 2));
        load_blocks(low, base + LOW + lane_in_blocks<false>(m * SIDE, m * 2));
        uint32_t found[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float(&x)[4] = sums[2 * m + i];
          x[0] = x[1] = x[2] = x[3] = 0.f;
          multiply_add(x, rest_low, high[2 * i], high[2 * i + 1]);
          multiply_add(x, rest, low[2 * i], low[2 * i + 1]);
          multiply_add(x, rest, high[2 * i], high[2 * i + 1]);
          found[2 * i] = packed(x[0], x[1]);
          found[2 * i + 1] = packed(x[2], x[3]);
        }
#pragma unroll
        for (int later = m + 1; later < BLOCKS; ++later) {
          load_blocks(high, base + HIGH + lane_in_blocks<false>(later * SIDE, m * 2));
          load_blocks(low, base + LOW + lane_in_blocks<false>(later * SIDE, m * 2));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            multiply_add(sums[2 * later + i], found, low[2 * i], low[2 * i + 1]);
            multiply_add(sums[2 * later + i], found, high[2 * i], high[2 * i + 1]);
          }
        }
        // Each warp stores what it alone has read.
        store_turned(base + to + lane_in_turned(m * 16, columns * 2), found);
      }
    }
    __syncwarp();
    const int place = lane % 8;
    const long stride = long(p.heads) * DIM;
    __nv_bfloat16* target = (of_values ? p.written : p.taken) + (begin + lane / 8) * stride + value_head(head) * DIM +
                            warp % 2 * COLUMNS + place * 8;
#pragma unroll
    for (int i = 0; i < TOKENS / 4; ++i) {
      const int row = i * 4 + lane / 8;
      if (row < count) *reinterpret_cast<uint4*>(target) = load_16(base + to + within_tile(row, place));
      target += 4 * stride;
    }
  }
};

}  // namespace states
