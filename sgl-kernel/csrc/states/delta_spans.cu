// States of the gated delta rule, from chunk to chunk of a prompt; see delta_spans.cuh.
#include "delta_spans.cuh"

namespace {

using states::SpanOfHead;
using states::Spans;

constexpr int BOUNDARY = 1024;  // of tiles for wgmma

template <typename Kept>
__global__ void __launch_bounds__(states::SPAN_THREADS, 1) delta_spans(const __grid_constant__ Spans p) {
  extern __shared__ unsigned char shared[];
  const int* span = p.spans + blockIdx.y * 5;
  if (span[0] >= span[1]) return;
  unsigned char* tiles = shared + (BOUNDARY - states::shared_address(shared) % BOUNDARY) % BOUNDARY;
  SpanOfHead<Kept>(p, tiles, blockIdx.x, span).run();
}

template <typename Kept>
cudaError_t launch(const Spans& p, int rows, cudaStream_t stream) {
  constexpr int bytes = SpanOfHead<Kept>::BYTES + BOUNDARY;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(delta_spans<Kept>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (allowed != cudaSuccess) return allowed;
  delta_spans<Kept><<<dim3(p.heads, rows), states::SPAN_THREADS, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

// halved: states are kept in bf16 instead of float32.
extern "C" cudaError_t mysgl_delta_spans(const Spans* p, int rows, int halved, cudaStream_t stream) {
  return halved ? launch<__nv_bfloat16>(*p, rows, stream) : launch<float>(*p, rows, stream);
}
