// Launching the sampler of rows; see rows.cuh.
#include "rows.cuh"

namespace mysgl {
namespace {

constexpr int CLUSTER = 8;
constexpr int THREADS = 512;

template <typename Logit>
__global__ void __launch_bounds__(THREADS, 2) sample_rows_kernel(const __grid_constant__ Step step) {
  RowSampler<Logit, CLUSTER, THREADS>(step, blockIdx.x / CLUSTER).run();
}

template <typename Logit>
cudaError_t launch(const Step& step, int rows, cudaStream_t stream) {
  using Sampler = RowSampler<Logit, CLUSTER, THREADS>;
  if (!Sampler::fits(step.vocab)) return cudaErrorInvalidValue;
  const auto bytes = static_cast<int>(Sampler::bytes(step.vocab));
  const auto kernel = sample_rows_kernel<Logit>;
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

}  // namespace
}  // namespace mysgl

// dtype: 0 float32, 1 bfloat16, 2 float16. cudaErrorInvalidValue for another, and for more tokens than a block has room
// for.
extern "C" cudaError_t mysgl_sample_rows(const mysgl::Step* step, int rows, int dtype, cudaStream_t stream) {
  switch (dtype) {
    case 0: return mysgl::launch<float>(*step, rows, stream);
    case 1: return mysgl::launch<__nv_bfloat16>(*step, rows, stream);
    case 2: return mysgl::launch<__half>(*step, rows, stream);
    default: return cudaErrorInvalidValue;
  }
}
