// Drawing one token from a row of logits, without sorting the vocabulary.
//
// Weights e^(x - max) lie in [0, 1], where the bits of floats are in the order of their values. So the weights are
// counted and summed by ranges of bits; only the range in which a filter's boundary falls is sorted. All sums are in
// float64. A row's token depends on that row alone, and not on how many threads share the rows.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/threads.h"
#include "cpu/vec.h"

namespace mysgl {

constexpr long BLOCK = 512;  // weights of one partial sum
constexpr int SHIFT = 19;    // a range: the floats that share their exponent and four bits of their fraction
constexpr int RANGES = (0x3f800000 >> SHIFT) + 1;

// Which tokens of a row may be drawn. `kernels/sampling.py` defines the filters.
struct Filters {
  long top_k;
  double top_p, min_p;
};

typedef double Doubles __attribute__((vector_size(8 * LANES), may_alias));

inline int range_of(float weight) {
  uint32_t bits;
  std::memcpy(&bits, &weight, sizeof bits);
  return bits >> SHIFT;
}

inline float start_of(int range) {
  uint32_t bits = uint32_t(range) << SHIFT;
  float weight;
  std::memcpy(&weight, &bits, sizeof weight);
  return weight;
}

inline double sum(Doubles x) {
  double total = 0;
  for (int i = 0; i < LANES; i++) total += x[i];
  return total;
}

// The weights of a row, zeros up to a whole block behind them, and the sum of each block.
struct Weights {
  float *of;
  double *sums;
  long count, blocks;

  explicit Weights(long width)
      : of(scratch<float>(0, (width + BLOCK - 1) / BLOCK * BLOCK)),
        sums(scratch<double>(1, (width + BLOCK - 1) / BLOCK)),
        count(width),
        blocks((width + BLOCK - 1) / BLOCK) {}

  double total() const {
    double all = 0;
    for (long b = 0; b < blocks; b++) all += sums[b];
    return all;
  }

  // Replaces each weight by change(vector) and sums the blocks anew.
  template <typename Change>
  void each(const Change &change) {
    for (long b = 0; b < blocks; b++) {
      Doubles sums_of_lanes = {};
      for (long i = b * BLOCK; i < (b + 1) * BLOCK; i += LANES) {
        Floats changed = change(load<Floats>(of + i));
        store(of + i, changed);
        sums_of_lanes += __builtin_convertvector(changed, Doubles);
      }
      sums[b] = sum(sums_of_lanes);
    }
  }

  void fill(const float *logits, float temperature) {
    const long padded = blocks * BLOCK;
    std::memcpy(of, logits, count * sizeof(float));
    std::fill(of + count, of + padded, -INFINITY);
    Floats top = splat(-INFINITY);
    for (long i = 0; i < padded; i += LANES) top = max(load<Floats>(of + i), top);
    const float highest = largest(top) / temperature;
    each([&](Floats x) { return exp(x / temperature - highest); });
  }

  // Gives weight 0 to every token that the filters forbid.
  void filter(const Filters &filters) {
    struct Ranked {
      float weight;
      int32_t token;
    };
    int32_t *counts = scratch<int32_t>(2, RANGES);
    double *masses = scratch<double>(3, RANGES);
    std::fill(counts, counts + RANGES, 0);
    std::fill(masses, masses + RANGES, 0.0);
    for (long i = 0; i < count; i++) {
      const int range = range_of(of[i]);
      counts[range]++;
      masses[range] += of[i];
    }
    const double limit = filters.top_p * total();
    long before = 0;
    double mass = 0;
    int range = RANGES - 1;
    for (; range >= 0; range--) {
      const bool last = before + counts[range] >= filters.top_k || mass + masses[range] >= limit;
      if (counts[range] && (last || start_of(range) < filters.min_p)) break;
      before += counts[range];
      mass += masses[range];
    }
    if (range < 0) return;

    Ranked *ranked = scratch<Ranked>(4, counts[range]);
    long found = 0, allowed = 0;
    for (long i = 0; i < count; i++)
      if (range_of(of[i]) == range) ranked[found++] = {of[i], int32_t(i)};
    std::sort(ranked, ranked + found, [](const Ranked &a, const Ranked &b) {
      return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
    });
    for (; allowed < found; allowed++) {
      const float weight = ranked[allowed].weight;
      const bool passes = before + allowed < filters.top_k && mass < limit && weight >= filters.min_p;
      if (!passes && before + allowed > 0) break;  // the likeliest token always stays
      mass += weight;
    }

    const float above = start_of(range + 1);
    each([&](Floats weights) { return weights >= above ? weights : Floats{}; });
    for (long i = 0; i < allowed; i++) {
      of[ranked[i].token] = ranked[i].weight;
      sums[ranked[i].token / BLOCK] += ranked[i].weight;
    }
  }

  // The token in whose share of the cumulative sum the number in [0, 1) falls.
  long invert(double uniform) const {
    const double all = total();
    // Rounding must not carry the target up to the total, behind the last token with a share.
    const double target = std::min(uniform * all, std::nextafter(all, 0.0));
    double end = 0;
    long block = 0, token = 0;
    for (; block < blocks - 1 && end + sums[block] <= target; block++) end += sums[block];
    // The sums of blocks are rounded otherwise than this one: if it ends below the target, the last share counts.
    for (long i = block * BLOCK; i < std::min(count, (block + 1) * BLOCK); i++) {
      if (of[i] == 0) continue;
      token = i;
      end += of[i];
      if (end > target) break;
    }
    return token;
  }
};

// Any token if a logit is not a number or none is finite.
inline long draw_token(const float *logits, long width, double uniform, float temperature, const Filters *filters) {
  Weights weights(width);
  weights.fill(logits, temperature);
  if (!(weights.total() >= 1.0)) return 0;
  if (filters) weights.filter(*filters);
  return weights.invert(uniform);
}

}  // namespace mysgl
