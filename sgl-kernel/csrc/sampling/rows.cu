// Launching the samplers of rows; see rows.cuh and plain.cuh.
#include "plain.cuh"
#include "rows.cuh"

namespace mysgl {
namespace {

constexpr int CLUSTER = 8;
constexpr int THREADS = 512;

template <class Sampler, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) sample_rows_kernel(const __grid_constant__ Step step) {
  Sampler(step, blockIdx.x / CLUSTER).run();
}

// BLOCKS: as many are to fit a multiprocessor by their registers.
template <class Sampler, int BLOCKS>
cudaError_t launch(const Step& step, int rows, cudaStream_t stream) {
  const auto bytes = static_cast<int>(Sampler::bytes(step.vocab));
  const auto kernel = sample_rows_kernel<Sampler, BLOCKS>;
  static int prepared = 0;
  if (bytes > prepared) {
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) {
      return error;
    }
    prepared = bytes;
  }
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = CLUSTER;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(rows * CLUSTER);
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, step);
}

template <typename Logit>
cudaError_t launch_of(const Step& step, int rows, bool plain, cudaStream_t stream) {
  using Sampler = RowSampler<Logit, CLUSTER, THREADS>;
  if (plain) return launch<PlainSampler<Logit, CLUSTER, THREADS>, 4>(step, rows, stream);
  return Sampler::fits(step.vocab) ? launch<Sampler, 2>(step, rows, stream) : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace mysgl

// plain: no row asks for more than a temperature. dtype: 0 float32, 1 bfloat16, 2 float16. cudaErrorInvalidValue for
// another, and for more tokens than a block has room for.
extern "C" cudaError_t mysgl_sample_rows(
    const mysgl::Step* step, int rows, int plain, int dtype, cudaStream_t stream) {
  switch (dtype) {
    case 0: return mysgl::launch_of<float>(*step, rows, plain, stream);
    case 1: return mysgl::launch_of<__nv_bfloat16>(*step, rows, plain, stream);
    case 2: return mysgl::launch_of<__half>(*step, rows, plain, stream);
    default: return cudaErrorInvalidValue;
  }
}
