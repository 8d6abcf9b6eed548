// The sampler of rows without a GPU, with few threads. Compiled by test_sampling.py.
#include "emulated_cuda.h"
//
#include "../../csrc/sampling/plain.cuh"
#include "../../csrc/sampling/rows.cuh"

constexpr int CLUSTER = 4, THREADS = 64;

template <class Sampler>
void sample(const mysgl::Step& step, int rows) {
  for (int row = 0; row < rows; ++row)
    emulated::run(CLUSTER, THREADS, Sampler::bytes(step.vocab), [=, &step] { Sampler(step, row).run(); });
}

extern "C" int emulated_sample_rows(const mysgl::Step* step, int rows, int plain) {
  using Sampler = mysgl::RowSampler<float, CLUSTER, THREADS>;
  if (!Sampler::fits(step->vocab)) return 1;
  plain ? sample<mysgl::PlainSampler<float, CLUSTER, THREADS>>(*step, rows) : sample<Sampler>(*step, rows);
  return 0;
}
