// A row of logits, and what any sampler of it does: where a block's part of the logits is, the random number, which of
// the weights that falls on, and the result.
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

// One row, of which each block of a cluster has a part.
template <typename Logit, int CLUSTER, int THREADS>
class RowPart {
 protected:
  static constexpr int VECTOR = 16 / sizeof(Logit);

  __device__ RowPart(const Step& step, int row_index)
      : step(step),
        row(step.rows[row_index]),
        index(row_index),
        rank(cluster_rank()),
        begin(min(rank * part(step.vocab), step.vocab)),
        count(min(part(step.vocab), step.vocab - begin)) {}

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

  // Some of a block's tokens, one after another.
  struct Run {
    int first, end;
  };

  // This thread's. Sums are taken over these runs, whoever takes them, so that they have the same bits.
  __device__ Run run_of_thread() const {
    const int each = per_thread(step.vocab) | 1;  // odd, so that threads do not meet in a bank
    const int first = min(static_cast<int>(threadIdx.x) * each, count);
    return {first, min(first + each, count)};
  }

  __device__ const Logit* logits() const { return static_cast<const Logit*>(step.logits) + step.stride * index; }
  // True if vectors of this block's logits can be loaded.
  __device__ bool aligned() const { return reinterpret_cast<uintptr_t>(logits() + begin) % 16 == 0; }
  __device__ float scaled(float x) const { return row.temperature == 1.0f ? x : __fdiv_rn(x, row.temperature); }
  __device__ int32_t* counts() const { return step.counts + static_cast<int64_t>(row.line) * step.vocab; }

  // Which token of the run the row's random number falls on; -1: none. before, mine, total: the mass of all runs before
  // this one, of this one and of all. weight: (token) -> its weight, 0 if it may not be drawn.
  template <typename Weight>
  __device__ int drawn(Run run, uint64_t before, uint64_t mine, uint64_t total, Weight weight) const {
    const double exact = uniform(row.seed, step.lengths[index]) * static_cast<double>(total);
    const uint64_t target = min(static_cast<uint64_t>(exact), total - 1);
    if (target < before || target >= before + mine) return -1;
    float mass = 0;
    int token = run.first;
    for (int i = run.first; i < run.end; ++i) {
      const float own = weight(i);
      if (!(own > 0)) continue;
      mass += own;
      token = i;
      if (before + units(mass) > target) break;
    }
    return token;
  }

  // One thread says what became of the row. A token of -1 is remembered as 0, and not counted.
  __device__ void finish(int64_t token, float logprob) const {
    step.tokens[index] = token;
    step.newest[step.slots[index]] = token < 0 ? 0 : token;
    if (row.line >= 0 && token >= 0) counts()[token] += 2;
    if (step.logprobs != nullptr) step.logprobs[index] = logprob;
  }
};

}  // namespace mysgl
