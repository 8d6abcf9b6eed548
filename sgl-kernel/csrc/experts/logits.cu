// The logits of a router; see logits.cuh.
#include "launch.cuh"
#include "logits.cuh"

namespace {

using Tile = mysgl::LogitTile;

__global__ void __launch_bounds__(Tile::THREADS, 1) router_logits(const __grid_constant__ mysgl::Logits p) {
  __shared__ __align__(16) char shared[Tile::BYTES];
  Tile tile(p, blockIdx.x, shared);
  hopper::launch_dependents();
  tile.prepare();
  hopper::wait_for_kernels_ahead();
  tile.run();
}

}  // namespace

extern "C" cudaError_t mysgl_router_logits(const mysgl::Logits* p, cudaStream_t stream) {
  if (p->inputs % Tile::PIECE) return cudaErrorInvalidValue;
  const int across = (p->experts + Tile::EXPERTS - 1) / Tile::EXPERTS, down = (p->rows + Tile::ROWS - 1) / Tile::ROWS;
  return launch(router_logits, across * down, Tile::THREADS, 0, stream, true, *p);
}
