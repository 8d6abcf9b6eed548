// The logits of a router without a GPU. Compiled by test_experts_logits.py.
#include "emulated_hopper.h"
//
#include "../../csrc/experts/logits.cuh"

extern "C" void emulated_logits(const mysgl::Logits* p, int tiles) {
  using Tile = mysgl::LogitTile;
  for (int tile = 0; tile < tiles; ++tile)
    emulated::run(1, Tile::THREADS, Tile::BYTES, [=] {
      Tile one(*p, tile, mysgl::shared_memory());
      one.prepare();
      one.run();
    });
}
