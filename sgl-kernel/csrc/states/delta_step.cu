// The gated delta rule for one new token of many rows; see delta_step.cuh.
#include "delta_step.cuh"
#include "launch.cuh"

namespace {

using states::one_token::Params;
using states::one_token::Ring;
using states::one_token::THREADS;

template <typename Kept>
__global__ void __launch_bounds__(THREADS, 1) delta_step(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t ring = hopper::shared_address(shared);
  hopper::launch_dependents();
  if (threadIdx.x == 0) states::one_token::start_barriers<Kept>(ring);
  __syncthreads();
  hopper::wait_for_kernels_ahead();
  states::one_token::walk_through<Kept>({p, int(blockIdx.x), int(gridDim.x)}, shared, ring);
}

template <typename Kept>
cudaError_t start(const Params& p, int blocks, cudaStream_t stream) {
  constexpr int bytes = Ring<Kept>::BYTES;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(delta_step<Kept>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (allowed != cudaSuccess) return allowed;
  return launch(delta_step<Kept>, blocks, THREADS, bytes, stream, true, p);
}

}  // namespace

// halved: states are kept in bf16 instead of float32. blocks: at most one for each multiprocessor.
extern "C" cudaError_t mysgl_delta_step(const Params* p, int halved, int blocks, cudaStream_t stream) {
  return halved ? start<__nv_bfloat16>(*p, blocks, stream) : start<float>(*p, blocks, stream);
}
