// Causal convolutions of prompts; see convolution.cuh.
#include "convolution.cuh"

namespace {

using namespace states;

template <int TAPS>
__global__ void __launch_bounds__(CONVOLVED_THREADS) convolve_parts(const __grid_constant__ Convolution p) {
  ConvolvedPart<TAPS>(p, blockIdx.y, blockIdx.x * CONVOLVED_THREADS + threadIdx.x).run();
}

}  // namespace

extern "C" cudaError_t mysgl_convolve(const Convolution* p, int taps, int chunks, cudaStream_t stream) {
  const int groups = p->channels / CHANNELS;
  const dim3 grid((groups + CONVOLVED_THREADS - 1) / CONVOLVED_THREADS, chunks * (p->chunk / CONVOLVED_TOKENS));
  if (taps == 4)
    convolve_parts<4><<<grid, CONVOLVED_THREADS, 0, stream>>>(*p);
  else if (taps == 3)
    convolve_parts<3><<<grid, CONVOLVED_THREADS, 0, stream>>>(*p);
  else
    return cudaErrorInvalidValue;
  return cudaGetLastError();
}
