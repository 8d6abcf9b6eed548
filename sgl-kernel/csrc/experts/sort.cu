// The sort of pairs by expert; see sort.cuh.
#include "launch.cuh"
#include "sort.cuh"

namespace {

using Sorter = mysgl::PairSorter<32>;

__global__ void __launch_bounds__(Sorter::THREADS, 1) sort_pairs(const __grid_constant__ mysgl::SortedPairs p) {
  extern __shared__ __align__(16) char shared[];
  Sorter sorter(p, shared);
  sorter.prepare();
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
  sorter.run();
}

}  // namespace

// overlap: the device can start a kernel while the one before it finishes.
extern "C" cudaError_t mysgl_sort_pairs(const mysgl::SortedPairs* p, int overlap, cudaStream_t stream) {
  const int bytes = Sorter::bytes(p->experts, p->length);
  if (!Sorter::fits(*p)) return cudaErrorInvalidValue;
  const cudaError_t error = cudaFuncSetAttribute(sort_pairs, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return launch(sort_pairs, 1, Sorter::THREADS, bytes, stream, overlap, *p);
}
