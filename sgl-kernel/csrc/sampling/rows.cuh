// From the logits of a row to its token, in one kernel and without a sort.
//
// A cluster of blocks takes a row; each block has a part of its logits in shared memory. Of edited logits, divided by
// the temperature, it finds the largest, then weights exp(x - largest) in float32 and their sum. Of others the largest is
// known before, and the sum only of interest to top_p and log-probabilities. The filters leave the
// weights from some pattern of bits on (between 0 and 1, floats are ordered as their bits are): the search for the
// lowest such pattern asks at three patterns at a time how many weights are above, and what they sum up to. Each thread
// keeps a list of those of its weights that may still matter, which soon is empty. Last, the cumulative sum of what is
// left is inverted, in the order of ids.
//
// Masses are sums of at most a few dozen float32 weights in a thread, and from there on integers, in units of 2^-40:
// how they are added up changes nothing, so a row's token does not depend on the rows beside it.
#pragma once

#include "row.cuh"

namespace mysgl {

constexpr unsigned ONE = 0x3F800000u;  // the bits of 1.0f
constexpr int PIVOTS = Tally::MASSES;
constexpr int MOST_VALUES = 8;  // of one exchange

// Ordered as the numbers are; both zeros are one.
__device__ inline unsigned order(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
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
class RowSampler : RowPart<Logit, CLUSTER, THREADS> {
  using Part = RowPart<Logit, CLUSTER, THREADS>;
  using Part::aligned, Part::begin, Part::count, Part::counts, Part::finish, Part::index, Part::logits, Part::part;
  using Part::per_thread, Part::rank, Part::row, Part::scaled, Part::step, Part::VECTOR;
  using Run = typename Part::Run;
  using Mailbox = Mail<CLUSTER, THREADS, MOST_VALUES>;

 public:
  // Bytes of shared memory of a block.
  static constexpr int64_t bytes(int vocab) {
    return HEAD + static_cast<int64_t>(part(vocab)) * 4 + static_cast<int64_t>(per_thread(vocab)) * THREADS;
  }
  // The list has places in a byte each.
  static constexpr bool fits(int vocab) { return per_thread(vocab) <= 255; }

  __device__ RowSampler(const Step& step, int row_index)
      : Part(step, row_index),
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
    const bool wants_others = wants_logprobs && row.top_logprobs > 0, wants_total = wants_logprobs || row.top_p < 1;
    int likeliest = static_cast<int>(plain);
    float mass = 0;
    if (edited || wants_others) {
      fill(logits() + begin, [&](float x) { return edited ? x : scaled(x); });
      if (edited) edit();
      cluster_sync();  // no block writes to another that has not begun
      const Place mine = find_best({0xFFFFFFFFu, -1});
      const Place best = exchange.first(mine);
      likeliest = best.id;
      if (greedy && !wants_logprobs) {
        if (rank == 0 && threadIdx.x == 0) finish(likeliest, 0.0f);
        return;
      }
      if (wants_others) find_most_likely(mine, best);
      top = number(best.key);
      __syncthreads();  // nobody looks for others any more
      fill(values, [&](float x) { return weigh(x, mass); });
    } else {
      // The largest is known, so logits become weights as they come.
      top = scaled(static_cast<float>(logits()[plain]));
      fill(logits() + begin, [&](float x) { return weigh(scaled(x), mass); });
      cluster_sync();
    }
    const uint64_t total = wants_total ? exchange.sum(units(mass)) : 0;
    const float log_total = wants_logprobs ? logf(static_cast<float>(static_cast<double>(total) / UNIT)) : 0.0f;
    if (wants_others && rank == 0) {
      for (int i = threadIdx.x; i < min(row.top_logprobs, step.most_logprobs); i += THREADS) {
        float* value = step.top_values + static_cast<int64_t>(index) * step.most_logprobs + i;
        *value = *value - top - log_total;
      }
    }
    if (greedy) {
      if (rank == 0 && threadIdx.x == 0) finish(likeliest, -log_total);
      return;
    }
    draw(limit(total), likeliest, log_total);
  }

 private:
  static constexpr int HEAD = (sizeof(Mailbox) + 15) / 16 * 16;

  float* const values;  // logits, then those over the temperature, then weights
  uint8_t* const list;
  float top = 0;  // the largest logit over the temperature
  Exchange<CLUSTER, THREADS, MOST_VALUES> exchange;

  // The weight of a logit over the temperature, which is added to the mass.
  __device__ float weigh(float x, float& mass) const {
    const float weight = expf(x - top);
    mass += weight;
    return weight;
  }

  // Put what becomes of each of the block's logits into shared memory. Wherever they come from, a thread has the same ones
  // in the same order, so that a sum that it takes has the same bits.
  template <typename From, typename Change>
  __device__ void fill(const From* source, Change changed) {
    int done = 0;
    if (aligned()) {
      done = count / VECTOR * VECTOR;
#pragma unroll 4
      for (int i = threadIdx.x * VECTOR; i < done; i += THREADS * VECTOR) {
        alignas(16) From some[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; j += 16 / sizeof(From))
          *reinterpret_cast<uint4*>(some + j) = *reinterpret_cast<const uint4*>(source + i + j);
        float found[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) found[j] = changed(static_cast<float>(some[j]));
#pragma unroll
        for (int j = 0; j < VECTOR; j += 4) {
          *reinterpret_cast<float4*>(values + i + j) =
              make_float4(found[j], found[j + 1], found[j + 2], found[j + 3]);
        }
      }
    }
    for (int i = done + threadIdx.x; i < count; i += THREADS) values[i] = changed(static_cast<float>(source[i]));
    __syncthreads();
  }

  // Apply penalties, biases, what is forbidden, and the temperature.
  __device__ void edit() {
    if (row.line >= 0) {
      const int32_t* seen_before = counts() + begin;
#pragma unroll 8
      for (int i = threadIdx.x; i < count; i += THREADS) {
        const int seen = seen_before[i];
        if (seen > 0) values[i] = penalised(values[i], seen, row);
      }
      __syncthreads();
    }
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
    if (row.temperature != 1.0f) change([&](float x) { return scaled(x); });
  }

  // Put what becomes of each of this thread's values in its place. Some are read before the first is written, since the
  // compiler must not put reads before writes.
  template <typename Change>
  __device__ void change(Change changed) {
    constexpr int TILE = 8;
    for (int first = threadIdx.x; first < count; first += TILE * THREADS) {
      float some[TILE];
#pragma unroll
      for (int i = 0; i < TILE; ++i) some[i] = first + i * THREADS < count ? values[first + i * THREADS] : 0.0f;
#pragma unroll
      for (int i = 0; i < TILE; ++i) {
        if (first + i * THREADS < count) values[first + i * THREADS] = changed(some[i]);
      }
    }
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

  // What the filters leave; total: the mass of all weights, of interest to top_p. A weight may be drawn if fewer than
  // `most` weights, and less than `share` of mass, are above it, and if it is at least min_p; so may every higher one.
  __device__ Limit limit(uint64_t total) {
    const int most = row.top_k;
    const bool has_share = row.top_p < 1;
    unsigned low = row.min_p > 0 ? __float_as_uint(row.min_p) : 0u;
    if (most >= step.vocab && !has_share) return {low, step.vocab};
    const double share = has_share ? static_cast<double>(row.top_p) * static_cast<double>(total) : 1e300;
    if (has_share && row.top_p < 0.9999f) {
      // All weights up to this one have too little mass for what top_p drops.
      const double dropped = (1 - static_cast<double>(row.top_p)) * static_cast<double>(total);
      low = max(low, __float_as_uint(static_cast<float>(0.999 * dropped / (UNIT * step.vocab))));
    }
    unsigned high = ONE;  // the lowest pattern that is known to hold; above it are:
    uint64_t count_above = 0, mass_above = 0;
    const auto holds = [&](uint64_t more, double mass) {
      return count_above + more < static_cast<uint64_t>(most) && static_cast<double>(mass_above) + mass < share;
    };
    int listed = -1;  // all
    while (low < high) {
      // At first, far from 1 there is little: the pivots are 2^-16, 2^-8 and 2^-4.
      const bool begins = high == ONE && low < ONE - (16u << 23);
      const unsigned quarter = (high - low) / 4;
      const unsigned pivots[PIVOTS] = {begins ? ONE - (16u << 23) : low + quarter,
                                       begins ? ONE - (8u << 23) : low + (high - low) / 2,
                                       begins ? ONE - (4u << 23) : high - 1 - quarter};
      Tally found;
      listed = look(low, high, pivots, listed, found);
      const uint64_t inside = found.counts[PIVOTS];
      const unsigned only = found.range.largest;
      if (inside == 0 || found.range.smallest == only) {
        // Below the one pattern that lies between, or without any, all patterns from `low` on have the same above them.
        const double mass = static_cast<double>(inside) * static_cast<double>(__uint_as_float(only)) * UNIT;
        if (inside == 0) {
          high = low;
        } else if (holds(inside, mass)) {
          high = low;
          count_above += inside;
          mass_above += static_cast<uint64_t>(mass);
        } else {
          high = only;
        }
        break;
      }
      unsigned next_low = low, next_high = min(high, found.range.largest);
      uint64_t more = 0, mass = 0;
#pragma unroll
      for (int i = PIVOTS - 1; i >= 0; --i) {
        if (holds(found.counts[i], static_cast<double>(found.masses[i]))) {
          next_high = min(pivots[i], found.range.largest);
          more = found.counts[i];
          mass = found.masses[i];
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

  // Over the weights in (low, high]: how many are above each pivot, and their masses; behind that, how many there are.
  // Of the weights that this thread has listed (-1: of all) those in between stay. Returns how many that are.
  __device__ int look(unsigned low, unsigned high, const unsigned (&pivots)[PIVOTS], int listed, Tally& found) {
    constexpr int TILE = 4;
    const int thread = threadIdx.x;
    const int end = listed < 0 ? max((count - thread + THREADS - 1) / THREADS, 0) : listed;
    unsigned counts[PIVOTS] = {};
    float masses[PIVOTS] = {};
    Range range;
    int kept = 0;
    // Some are read before the first is listed, since the compiler must not put reads before writes.
    for (int first = 0; first < end; first += TILE) {
      int places[TILE];
      float some[TILE];
#pragma unroll
      for (int i = 0; i < TILE; ++i) {
        if (first + i < end) places[i] = listed < 0 ? first + i : list[(first + i) * THREADS + thread];
      }
#pragma unroll
      for (int i = 0; i < TILE; ++i) some[i] = first + i < end ? values[places[i] * THREADS + thread] : 0.0f;
#pragma unroll
      for (int i = 0; i < TILE; ++i) {
        const unsigned pattern = __float_as_uint(some[i]);
        if (pattern > low && pattern <= high) {
          list[kept++ * THREADS + thread] = static_cast<uint8_t>(places[i]);
          range.smallest = min(range.smallest, pattern);
          range.largest = max(range.largest, pattern);
#pragma unroll
          for (int j = 0; j < PIVOTS; ++j) {
            if (pattern > pivots[j]) {
              ++counts[j];
              masses[j] += some[i];
            }
          }
        }
      }
    }
    for (int j = 0; j < PIVOTS; ++j) {
      found.counts[j] = counts[j];
      found.masses[j] = units(masses[j]);
    }
    found.counts[PIVOTS] = static_cast<unsigned>(kept);
    found.range = range;
    exchange.sum(found);
    return kept;
  }

  // Invert the cumulative sum of what the limit leaves.
  __device__ void draw(Limit limit, int likeliest, float log_total) {
    __syncthreads();  // now a thread reads what others wrote
    const Run own = Part::run_of_thread();
    // As if all that equal the limit were allowed, which they are unless weights are tied there.
    uint64_t mine[2], before[2], totals[2];
    sum_up(own, limit, step.vocab, mine);
    for (int i = 0; i < 2; ++i) before[i] = mine[i];
    exchange.before(before, totals);
    int64_t room = step.vocab;
    if (static_cast<int64_t>(totals[0]) > limit.quota) {
      room = limit.quota - static_cast<int64_t>(before[0]);
      sum_up(own, limit, room, mine);
      for (int i = 0; i < 2; ++i) before[i] = mine[i];
      exchange.before(before, totals);
    }
    const uint64_t total = totals[1];
    if (total == 0) {  // no weight is a number
      if (rank == 0 && threadIdx.x == 0) finish(likeliest == NO_ID ? 0 : likeliest, 0.0f);
      return;
    }
    const int token = Part::drawn(own, before[1], mine[1], total, [&](int i) {
      return allowed(values[i], limit, room) ? values[i] : 0.0f;
    });
    if (token >= 0) finish(begin + token, logf(values[token]) - log_total);
  }

  // found[0]: how many of a run of values equal the limit; found[1]: the mass of the run, if of those the first `room` may
  // be drawn.
  __device__ void sum_up(Run run, Limit limit, int64_t room, uint64_t (&found)[2]) const {
    float mass = 0;
    int equals = 0;
#pragma unroll 4
    for (int i = run.first; i < run.end; ++i) {
      const float weight = values[i];
      equals += __float_as_uint(weight) == limit.pattern;
      if (allowed(weight, limit, room)) mass += weight;
    }
    found[0] = static_cast<uint64_t>(equals);
    found[1] = units(mass);
  }

  // `room`: for how many more of those that equal the limit.
  static __device__ bool allowed(float weight, Limit limit, int64_t& room) {
    const unsigned pattern = __float_as_uint(weight);
    return pattern > limit.pattern || (pattern == limit.pattern && room-- > 0);
  }
};

}  // namespace mysgl
