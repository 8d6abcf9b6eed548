// The sampler of rows without a GPU, with few threads. Compiled by test_sampling.py.
#include "emulated_cuda.h"
//
#include "../../csrc/sampling/rows.cuh"

extern "C" int emulated_sample_rows(const mysgl::Step* step, int rows) {
  constexpr int CLUSTER = 4, THREADS = 64;
  using Sampler = mysgl::RowSampler<float, CLUSTER, THREADS>;
  if (!Sampler::fits(step->vocab)) return 1;
  for (int row = 0; row < rows; ++row) {
    emulated::run(CLUSTER, THREADS, Sampler::bytes(step->vocab), [=] { Sampler(*step, row).run(); });
  }
  return 0;
}
