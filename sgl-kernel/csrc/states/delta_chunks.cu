// What chunks of 64 tokens write, take and see by the gated delta rule; see delta_chunks.cuh.
#include "delta_chunks.cuh"

namespace {

using states::ChunkOfHeads;
using states::Chunks;

__global__ void __launch_bounds__(states::CHUNK_THREADS, 3) delta_chunks(const __grid_constant__ Chunks p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int* chunk = p.chunks + blockIdx.y * 2;
  const int begin = chunk[0], end = p.cuts[chunk[1] * 5 + 1];
  if (begin < end) ChunkOfHeads(p, shared, blockIdx.x, begin, end).run();
}

}  // namespace

extern "C" cudaError_t mysgl_delta_chunks(const Chunks* p, int chunks, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(delta_chunks, cudaFuncAttributeMaxDynamicSharedMemorySize, ChunkOfHeads::BYTES);
  if (allowed != cudaSuccess) return allowed;
  delta_chunks<<<dim3(p->heads / p->shared, chunks), states::CHUNK_THREADS, ChunkOfHeads::BYTES, stream>>>(*p);
  return cudaGetLastError();
}
