// From the logits of a row to its token, in one kernel and without a sort.
//
// A cluster of blocks takes a row; each block has a part of its logits in shared memory. Of edited logits, divided by
// the temperature, it finds the largest, then weights exp(x - largest) in float32 and their sum. The filters leave the
// weights from some pattern of bits on (between 0 and 1, floats are ordered as their bits are): the search for the
// lowest such pattern asks at three patterns at a time how many weights are above, and what they sum up to. Each thread
// keeps a list of those of its weights that may still matter, which soon is empty. Last, the cumulative sum of what is
// left is inverted, in the order of ids.
//
// Masses are sums of at most a few dozen float32 weights in a thread, and from there on integers, in units of 2^-40:
// how they are added up changes nothing, so a row's token does not depend on the rows beside it.
#pragma once

#include "cluster.cuh"

namespace mysgl {

// How one row is sampled. python/mysgl_kernel/sampling.py has the same as a numpy dtype, and the callers have it.
struct Row {
  int64_t seed;
  int line;   // of Step::counts, -1: no penalty
  int top_k;  // 1: the row takes its most likely token
  float temperature;  // 1 for a greedy row
  float top_p;
  float min_p;
  float frequency;
  float presence;
  float repetition;
  int top_logprobs;  // how many of the most likely are reported; -1: no log-probabilities at all
  int bias_begin;    // its additions to logits: entries of Step::bias
  int bias_end;
  int forbidden_begin;  // tokens that it must not take, whatever else says: entries of Step::bias
  int forbidden_end;
  int unused;
};

struct Bias {
  int id;
  float value;
};

struct Step {
  const void* logits;  // [rows, vocab]
  int64_t stride;      // of a row of logits, in elements
  int vocab;
  int most_logprobs;  // width of top_values and top_ids
  const Row* rows;
  const Bias* bias;
  int32_t* counts;         // [lines, vocab] twice how often a token was generated, plus one if the prompt has it
  const int64_t* greedy;   // [rows] the likeliest tokens of the bare logits; -1: a row with numbers that are not finite
  const int32_t* lengths;  // [rows] tokens before the one that is sampled
  const int64_t* slots;    // [rows]
  int64_t* newest;         // [slots]
  int64_t* tokens;         // [rows] result
  float* logprobs;         // [rows] of the token; null where no row wants any
  float* top_values;       // [rows, most_logprobs]
  int32_t* top_ids;
};

constexpr double UNIT = 1099511627776.0;  // 2^40
constexpr unsigned ONE = 0x3F800000u;     // the bits of 1.0f
constexpr int PIVOTS = 3;
constexpr int MOST_VALUES = 8;  // of one exchange

__device__ inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The row's random number in [0, 1), as sampling/draws.py computes it.
__device__ inline double uniform(int64_t seed, int length) {
  const uint64_t bits = mix(mix(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(length));
  return static_cast<double>(bits >> 11) * 1.1102230246251565e-16;  // 2^-53
}

__device__ inline uint64_t units(float mass) { return static_cast<uint64_t>(static_cast<double>(mass) * UNIT); }

// Ordered as the numbers are.
__device__ inline unsigned order(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ inline float number(unsigned key) {
  return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

__device__ inline float penalised(float x, int count, const Row& row) {
  const int generated = count >> 1;
  x = __fsub_rn(x, __fmul_rn(row.frequency, static_cast<float>(generated)));
  if (generated > 0) x = __fsub_rn(x, row.presence);
  if (count > 0) x = x > 0 ? __fdiv_rn(x, row.repetition) : __fmul_rn(x, row.repetition);
  return x;
}

// The lowest pattern whose weights may be drawn, and how many of just that pattern, lowest ids first.
struct Limit {
  unsigned pattern;
  int64_t quota;
};

template <typename Logit, int CLUSTER, int THREADS>
class RowSampler {
  using Mailbox = Mail<CLUSTER, THREADS, MOST_VALUES>;

 public:
  // Bytes of shared memory of a block.
  static constexpr int64_t bytes(int vocab) {
    return HEAD + static_cast<int64_t>(part(vocab)) * 4 + static_cast<int64_t>(per_thread(vocab)) * THREADS;
  }
  // The list has places in a byte each.
  static constexpr bool fits(int vocab) { return per_thread(vocab) <= 255; }

  __device__ RowSampler(const Step& step, int row_index)
      : step(step),
        row(step.rows[row_index]),
        index(row_index),
        rank(cluster_rank()),
        begin(min(rank * part(step.vocab), step.vocab)),
        count(min(part(step.vocab), step.vocab - begin)),
        values(reinterpret_cast<float*>(shared_memory() + HEAD)),
        list(reinterpret_cast<uint8_t*>(values + part(step.vocab))),
        exchange(reinterpret_cast<Mailbox*>(shared_memory()), rank) {}

  __device__ void run() {
    const int64_t plain = step.greedy[index];
    const bool greedy = row.top_k == 1, wants_logprobs = step.logprobs != nullptr && row.top_logprobs >= 0;
    const bool edited = row.line >= 0 || row.bias_begin < row.bias_end || row.forbidden_begin < row.forbidden_end;
    if (plain < 0 || (greedy && !edited && !wants_logprobs)) {
      if (rank == 0 && threadIdx.x == 0) finish(plain, 0.0f);
      return;
    }
    load();
    const Place mine = find_best({0xFFFFFFFFu, -1});
    const Place best = exchange.first(mine);
    if (greedy && !wants_logprobs) {
      if (rank == 0 && threadIdx.x == 0) finish(best.id, 0.0f);
      return;
    }
    if (wants_logprobs) find_most_likely(mine, best);
    const float top = number(best.key);
    const uint64_t total = weigh(top);
    const float log_total = logf(static_cast<float>(static_cast<double>(total) / UNIT));
    if (wants_logprobs && rank == 0) {
      for (int i = threadIdx.x; i < min(row.top_logprobs, step.most_logprobs); i += THREADS) {
        float* value = step.top_values + static_cast<int64_t>(index) * step.most_logprobs + i;
        *value = *value - top - log_total;
      }
    }
    if (greedy) {
      if (rank == 0 && threadIdx.x == 0) finish(best.id, -log_total);
      return;
    }
    draw(limit(total), best.id, log_total);
  }

 private:
  static constexpr int VECTOR = 16 / sizeof(Logit);
  static constexpr int HEAD = (sizeof(Mailbox) + 15) / 16 * 16;

  // How many tokens a block has: whole vectors, so that each block's begin is aligned where the row's is.
  static __host__ __device__ constexpr int part(int vocab) {
    return (vocab + CLUSTER * 8 - 1) / (CLUSTER * 8) * 8;
  }
  static __host__ __device__ constexpr int per_thread(int vocab) { return (part(vocab) + THREADS - 1) / THREADS; }

  const Step& step;
  const Row row;
  const int index;
  const int rank;
  const int begin;
  const int count;
  float* const values;  // logits, then those over the temperature, then weights
  uint8_t* const list;
  Exchange<CLUSTER, THREADS, MOST_VALUES> exchange;

  __device__ int32_t* counts() const { return step.counts + static_cast<int64_t>(row.line) * step.vocab; }

  // One thread says what became of the row. A token of -1 is remembered as 0, and not counted.
  __device__ void finish(int64_t token, float logprob) {
    step.tokens[index] = token;
    step.newest[step.slots[index]] = token < 0 ? 0 : token;
    if (row.line >= 0 && token >= 0) counts()[token] += 2;
    if (step.logprobs != nullptr) step.logprobs[index] = logprob;
  }

  // Put the edited logits over the temperature into shared memory.
  __device__ void load() {
    const Logit* source = static_cast<const Logit*>(step.logits) + step.stride * index + begin;
    int done = 0;
    if (reinterpret_cast<uintptr_t>(source) % 16 == 0) {
      done = count / VECTOR * VECTOR;
#pragma unroll 4
      for (int i = threadIdx.x * VECTOR; i < done; i += THREADS * VECTOR) {
        alignas(16) Logit some[VECTOR];
        *reinterpret_cast<uint4*>(some) = *reinterpret_cast<const uint4*>(source + i);
#pragma unroll
        for (int j = 0; j < VECTOR; j += 4) {
          *reinterpret_cast<float4*>(values + i + j) =
              make_float4(static_cast<float>(some[j]), static_cast<float>(some[j + 1]),
                          static_cast<float>(some[j + 2]), static_cast<float>(some[j + 3]));
        }
      }
    }
    for (int i = done + threadIdx.x; i < count; i += THREADS) values[i] = static_cast<float>(source[i]);
    __syncthreads();
    if (row.line >= 0) {
      const int32_t* seen_before = counts() + begin;
#pragma unroll 8
      for (int i = threadIdx.x; i < count; i += THREADS) {
        const int seen = seen_before[i];
        if (seen > 0) values[i] = penalised(values[i], seen, row);
      }
      __syncthreads();
    }
    if (row.bias_begin < row.bias_end || row.forbidden_begin < row.forbidden_end) {
      for (int i = row.bias_begin + threadIdx.x; i < row.bias_end; i += THREADS) {
        const Bias bias = step.bias[i];
        if (bias.id >= begin && bias.id < begin + count) values[bias.id - begin] += bias.value;
      }
      __syncthreads();
      for (int i = row.forbidden_begin + threadIdx.x; i < row.forbidden_end; i += THREADS) {
        const int id = step.bias[i].id;
        if (id >= begin && id < begin + count) values[id - begin] = -INFINITY;
      }
      __syncthreads();
    }
    if (row.temperature != 1.0f) {
      for (int i = threadIdx.x; i < count; i += THREADS) values[i] = __fdiv_rn(values[i], row.temperature);
    }
    // Also: no block writes to another that has not begun.
    cluster_sync();
  }

  // The first of this thread's logits behind `last`.
  __device__ Place find_best(Place last) const {
    Place best{0, NO_ID};
    for (int i = threadIdx.x; i < count; i += THREADS) {
      const unsigned key = order(values[i]);
      const bool behind = key < last.key || (key == last.key && begin + i > last.id);
      if (behind && (key > best.key || best.id == NO_ID)) best = {key, begin + i};
    }
    return best;
  }

  // Write the ids of the most likely tokens, and their logits over the temperature in the place of the results.
  __device__ void find_most_likely(Place mine, Place best) {
    const int wanted = min(row.top_logprobs, step.most_logprobs);
    for (int i = 0; i < wanted; ++i) {
      if (rank == 0 && threadIdx.x == i % THREADS) {
        const int64_t at = static_cast<int64_t>(index) * step.most_logprobs + i;
        step.top_values[at] = number(best.key);
        step.top_ids[at] = best.id;
      }
      if (mine.key == best.key && mine.id == best.id) mine = find_best(best);
      if (i + 1 < wanted) best = exchange.first(mine);
    }
  }

  // Turn logits into weights; their sum.
  __device__ uint64_t weigh(float top) {
    float mass = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) {
      const float weight = expf(values[i] - top);
      values[i] = weight;
      mass += weight;
    }
    uint64_t sum[1] = {units(mass)};
    exchange.sum(sum);
    return sum[0];
  }

  // What the filters leave. A weight may be drawn if fewer than `most` weights, and less than `share` of mass, are above
  // it, and if it is at least min_p; so may every higher one.
  __device__ Limit limit(uint64_t total) {
    const int most = row.top_k;
    const bool has_share = row.top_p < 1;
    if (most >= step.vocab && !has_share && row.min_p <= 0) return {0, 0};
    const double share = has_share ? static_cast<double>(row.top_p) * static_cast<double>(total) : 1e300;
    unsigned low = row.min_p > 0 ? __float_as_uint(row.min_p) : 0u;
    if (has_share && row.top_p < 0.9999f) {
      // All weights up to this one have too little mass for what top_p drops.
      const double dropped = (1 - static_cast<double>(row.top_p)) * static_cast<double>(total);
      low = max(low, __float_as_uint(static_cast<float>(0.999 * dropped / (UNIT * step.vocab))));
    }
    unsigned high = ONE;  // the lowest pattern that is known to hold; above it are:
    uint64_t count_above = 0, mass_above = 0;
    int listed = -1;  // all
    while (low < high) {
      const unsigned quarter = (high - low) / 4;
      const unsigned pivots[PIVOTS] = {low + quarter, low + (high - low) / 2, high - 1 - quarter};
      uint64_t found[2 + PIVOTS];
      listed = look(low, high, pivots, listed, found);
      const uint64_t inside = found[0] & 0xFFFFFFFFu;
      if (inside == 0) {
        high = low;  // nothing lies between, so all patterns from `low` on have the same above them
        break;
      }
      const uint64_t above[PIVOTS] = {found[0] >> 32, found[1] & 0xFFFFFFFFu, found[1] >> 32};
      unsigned next_low = low, next_high = high;
      uint64_t more = 0, mass = 0;
#pragma unroll
      for (int i = PIVOTS - 1; i >= 0; --i) {
        const bool holds = count_above + above[i] < static_cast<uint64_t>(most) &&
                           static_cast<double>(mass_above + found[2 + i]) < share;
        if (holds) {
          next_high = pivots[i];
          more = above[i];
          mass = found[2 + i];
        } else {
          next_low = max(next_low, pivots[i] + 1);
        }
      }
      low = next_low;
      high = next_high;
      count_above += more;
      mass_above += mass;
    }
    const double level = fmax(static_cast<double>(__uint_as_float(high)) * UNIT, 1e-300);
    const double room = ceil(fmin((share - static_cast<double>(mass_above)) / level, 2e9));
    const int64_t left = static_cast<int64_t>(most) - static_cast<int64_t>(count_above);
    return {high, min(left, static_cast<int64_t>(room))};
  }

  // Over the weights in (low, high]: found[0], found[1]: four counts of 32 bits, of all and of those above each pivot;
  // found[2 …]: the masses above each. Of the weights that this thread has listed (-1: of all) those in between stay.
  __device__ int look(unsigned low, unsigned high, const unsigned (&pivots)[PIVOTS], int listed,
                      uint64_t (&found)[2 + PIVOTS]) {
    const int thread = threadIdx.x;
    const int all = (count - thread + THREADS - 1) / THREADS;
    const int end = listed < 0 ? max(all, 0) : listed;
    unsigned counts[PIVOTS] = {};
    float masses[PIVOTS] = {};
    int kept = 0;
    for (int i = 0; i < end; ++i) {
      const int place = listed < 0 ? i : list[i * THREADS + thread];
      const float weight = values[place * THREADS + thread];
      const unsigned pattern = __float_as_uint(weight);
      if (pattern > low && pattern <= high) {
        list[kept++ * THREADS + thread] = static_cast<uint8_t>(place);
#pragma unroll
        for (int j = 0; j < PIVOTS; ++j) {
          if (pattern > pivots[j]) {
            ++counts[j];
            masses[j] += weight;
          }
        }
      }
    }
    found[0] = static_cast<uint64_t>(counts[0]) << 32 | static_cast<unsigned>(kept);
    found[1] = static_cast<uint64_t>(counts[2]) << 32 | counts[1];
    for (int j = 0; j < PIVOTS; ++j) found[2 + j] = units(masses[j]);
    exchange.sum(found);
    return kept;
  }

  // Invert the cumulative sum of what the limit leaves.
  __device__ void draw(Limit limit, int likeliest, float log_total) {
    __syncthreads();  // now a thread reads what others wrote
    const int each = per_thread(step.vocab);
    const int first = min(static_cast<int>(threadIdx.x) * each, count), end = min(first + each, count);
    int64_t equals_before = 0;
    if (limit.pattern > 0) {
      uint64_t equals = 0, all;
      for (int i = first; i < end; ++i) equals += __float_as_uint(values[i]) == limit.pattern;
      equals_before = static_cast<int64_t>(exchange.before(equals, &all));
    }
    float mass = 0;
    int64_t seen = equals_before;
    for (int i = first; i < end; ++i) {
      if (allowed(values[i], limit, seen)) mass += values[i];
    }
    uint64_t total;
    const uint64_t mine = units(mass), before = exchange.before(mine, &total);
    if (total == 0) {  // no weight is a number
      if (rank == 0 && threadIdx.x == 0) finish(likeliest == NO_ID ? 0 : likeliest, 0.0f);
      return;
    }
    const double exact = uniform(row.seed, step.lengths[index]) * static_cast<double>(total);
    const uint64_t target = min(static_cast<uint64_t>(exact), total - 1);
    if (target < before || target >= before + mine) return;
    mass = 0;
    seen = equals_before;
    int token = first;
    for (int i = first; i < end; ++i) {
      if (!allowed(values[i], limit, seen) || !(values[i] > 0)) continue;
      mass += values[i];
      token = i;
      if (before + units(mass) > target) break;
    }
    finish(begin + token, logf(values[token]) - log_total);
  }

  static __device__ bool allowed(float weight, Limit limit, int64_t& equals) {
    const unsigned pattern = __float_as_uint(weight);
    return pattern > limit.pattern || (pattern == limit.pattern && equals++ < limit.quota);
  }
};

}  // namespace mysgl
