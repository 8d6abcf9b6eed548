// The gated delta rule over prompts, without a GPU: first chunks by themselves, then states. Compiled by
// test_delta_rule.py.
#include "emulated_tiles.h"
//
#include "../../csrc/states/delta_chunks.cuh"
#include "../../csrc/states/delta_spans.cuh"

namespace {

unsigned char* shared() { return reinterpret_cast<unsigned char*>(mysgl::shared_memory()); }

template <typename Kept>
void take(const states::Spans& p, const int* span) {
  using Span = states::SpanOfHead<Kept>;
  for (int head = 0; span[0] < span[1] && head < p.heads; ++head)
    emulated::run(1, states::SPAN_THREADS, Span::BYTES, [=, &p] { Span(p, shared(), head, span).run(); });
}

}  // namespace

extern "C" void emulated_delta_chunks(const states::Chunks* p, int chunks) {
  using states::ChunkOfHeads;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int begin = p->chunks[2 * chunk], end = p->cuts[p->chunks[2 * chunk + 1] * 5 + 1];
    for (int key_head = 0; begin < end && key_head < p->heads / p->shared; ++key_head)
      emulated::run(1, states::CHUNK_THREADS, ChunkOfHeads::BYTES,
                    [=] { ChunkOfHeads(*p, shared(), key_head, begin, end).run(); });
  }
}

extern "C" void emulated_delta_spans(const states::Spans* p, int rows, int halved) {
  for (int row = 0; row < rows; ++row) {
    const int* span = p->spans + row * 5;
    halved ? take<__nv_bfloat16>(*p, span) : take<float>(*p, span);
  }
}
