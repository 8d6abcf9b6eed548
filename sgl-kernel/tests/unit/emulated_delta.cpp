// What chunks write, take and see by the gated delta rule, without a GPU. Compiled by test_delta_chunks.py.
#include "emulated_tiles.h"
//
#include "../../csrc/states/delta_chunks.cuh"

extern "C" void emulated_delta_chunks(const states::Chunks* p, int chunks) {
  using states::ChunkOfHeads;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int begin = p->chunks[2 * chunk], end = p->cuts[p->chunks[2 * chunk + 1] * 5 + 1];
    for (int key_head = 0; begin < end && key_head < p->heads / p->shared; ++key_head)
      emulated::run(1, states::CHUNK_THREADS, ChunkOfHeads::BYTES, [=] {
        auto* shared = reinterpret_cast<unsigned char*>(mysgl::shared_memory());
        ChunkOfHeads(*p, shared, key_head, begin, end).run();
      });
  }
}
