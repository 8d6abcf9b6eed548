// The sort of pairs without a GPU, with few warps. Compiled by test_experts_sort.py.
#include "emulated_cuda.h"
//
#include "../../csrc/experts/sort.cuh"

extern "C" int emulated_sort_pairs(const mysgl::SortedPairs* p) {
  using Sorter = mysgl::PairSorter<4>;
  if (!Sorter::fits(*p)) return 1;
  const int bytes = Sorter::bytes(p->experts, p->length);
  emulated::run(1, Sorter::THREADS, bytes, [=] {
    Sorter sorter(*p, mysgl::shared_memory());
    sorter.prepare();
    sorter.run();
  });
  return 0;
}
