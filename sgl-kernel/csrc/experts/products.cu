// Products of blocks of rows with their experts; see products.cuh.
#include "products.cuh"

#include "../gemm/maps.cuh"
#include "launch.cuh"

namespace {

using namespace experts;

// Registers of a thread that multiplies and of one that fetches; together no more than a multiprocessor has.
constexpr int MULTIPLY_REGISTERS = 160, FETCH_REGISTERS = 32;

template <bool GATED>
__global__ void __launch_bounds__(THREADS, 1)
    multiply_blocks(const __grid_constant__ CUtensorMap weights, const __grid_constant__ Product p) {
  extern __shared__ char shared[];
  ExpertProducts<GATED> products(p, (hopper::shared_address(shared) + 1023) & ~1023u);
  hopper::launch_dependents();
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&weights);
    products.start_barriers();
  }
  __syncthreads();
  hopper::wait_for_kernels_ahead();
  if (threadIdx.x >= GROUPS * 128) {
    give_registers<FETCH_REGISTERS>();
    products.fetch(&weights, blockIdx.x, gridDim.x);
  } else {
    take_registers<MULTIPLY_REGISTERS>();
    products.multiply();
  }
}

template <bool GATED>
cudaError_t start(const Product& p, const void* weights, int rows, int blocks, cudaStream_t stream) {
  CUtensorMap map;
  // What would be fetched ahead of all tiles together does not fit into the cache.
  constexpr auto no_more = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  cudaError_t error = map_matrix(map, weights, rows, p.inputs, p.inputs, HALF, no_more);
  if (error != cudaSuccess) return error;
  constexpr int bytes = BYTES + 1024;
  const auto kernel = multiply_blocks<GATED>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return launch(kernel, blocks, THREADS, bytes, stream, true, map, p);
}

}  // namespace

// weights: [rows, p->inputs], of all experts. blocks: of threads, one for each multiprocessor.
extern "C" cudaError_t mysgl_multiply_blocks(
    const Product* p, const void* weights, int rows, int gated, int blocks, cudaStream_t stream) {
  return gated ? start<true>(*p, weights, rows, blocks, stream) : start<false>(*p, weights, rows, blocks, stream);
}
