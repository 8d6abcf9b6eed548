// States from chunk to chunk of a prompt; see spans.cuh.
#include "spans.cuh"

namespace {

using states::Spans;

constexpr int BOUNDARY = 1024;  // of tiles for wgmma

template <class Rule, typename Kept>
__global__ void __launch_bounds__(states::SPAN_THREADS, 1) take_spans(const __grid_constant__ Spans p) {
  extern __shared__ unsigned char shared[];
  const int* span = p.spans + blockIdx.y * 5;
  if (span[0] >= span[1]) return;
  unsigned char* tiles = shared + (BOUNDARY - states::shared_address(shared) % BOUNDARY) % BOUNDARY;
  states::SpanOfHeads<Rule, Kept>(p, tiles, blockIdx.x, span).run();
}

template <class Rule, typename Kept>
cudaError_t launch(const Spans& p, int rows, cudaStream_t stream) {
  constexpr int bytes = states::SpanOfHeads<Rule, Kept>::BYTES + BOUNDARY;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(take_spans<Rule, Kept>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (allowed != cudaSuccess) return allowed;
  take_spans<Rule, Kept><<<dim3(p.heads / Rule::HEADS, rows), states::SPAN_THREADS, bytes, stream>>>(p);
  return cudaGetLastError();
}

template <class Rule>
cudaError_t launch(const Spans& p, int rows, int halved, cudaStream_t stream) {
  return halved ? launch<Rule, __nv_bfloat16>(p, rows, stream) : launch<Rule, float>(p, rows, stream);
}

}  // namespace

// halved: states are kept in bf16 instead of float32.
extern "C" cudaError_t mysgl_delta_spans(const Spans* p, int rows, int halved, cudaStream_t stream) {
  return launch<states::DeltaRule>(*p, rows, halved, stream);
}

extern "C" cudaError_t mysgl_scan_spans(const Spans* p, int rows, int halved, cudaStream_t stream) {
  return launch<states::Mamba2>(*p, rows, halved, stream);
}
