// The logits of a router without a GPU. Compiled by test_experts_logits.py.
#include "emulated_hopper.h"
//
#include "../../csrc/experts/logits.cuh"

template <class Tile>
void compute(const mysgl::Logits& p) {
  for (int tile = 0; tile < Tile::count(p.rows, p.experts); ++tile)
    emulated::run(1, Tile::THREADS, Tile::BYTES, [=, &p] {
      Tile one(p, tile, mysgl::shared_memory());
      one.prepare();
      one.run();
    });
}

extern "C" void emulated_logits(const mysgl::Logits* p, int tile) {
  if (tile == 0)
    compute<mysgl::Small>(*p);
  else if (tile == 1)
    compute<mysgl::Wide>(*p);
  else
    compute<mysgl::Large>(*p);
}
