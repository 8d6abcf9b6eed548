// The logits of a router; see logits.cuh.
#include "launch.cuh"
#include "logits.cuh"

namespace {

template <class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1) router_logits(const __grid_constant__ mysgl::Logits p) {
  __shared__ __align__(16) char shared[Tile::BYTES];
  Tile tile(p, blockIdx.x, shared);
  hopper::launch_dependents();
  tile.prepare();
  hopper::wait_for_kernels_ahead();
  tile.run();
}

template <class Tile>
cudaError_t start(const mysgl::Logits& p, cudaStream_t stream) {
  if (p.inputs % Tile::PIECE) return cudaErrorInvalidValue;
  return launch(router_logits<Tile>, Tile::count(p.rows, p.experts), Tile::THREADS, 0, stream, true, p);
}

}  // namespace

// tile: 0, 1 or 2, from the smallest.
extern "C" cudaError_t mysgl_router_logits(const mysgl::Logits* p, int tile, cudaStream_t stream) {
  switch (tile) {
    case 0: return start<mysgl::Small>(*p, stream);
    case 1: return start<mysgl::Wide>(*p, stream);
    default: return start<mysgl::Large>(*p, stream);
  }
}
