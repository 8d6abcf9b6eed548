// Recurrences and convolutions without a GPU. Compiled by test_states.py.
#include "emulated_tiles.h"
//
#include "../../csrc/states/convolution.cuh"
#include "../../csrc/states/delta_chunks.cuh"
#include "../../csrc/states/delta_step.cuh"
#include "../../csrc/states/spans.cuh"

namespace {

unsigned char* shared() { return reinterpret_cast<unsigned char*>(mysgl::shared_memory()); }

template <class Rule, typename Kept>
void take(const states::Spans& p, const int* span) {
  using Span = states::SpanOfHeads<Rule, Kept>;
  for (int block = 0; span[0] < span[1] && block < p.heads / Rule::HEADS; ++block)
    emulated::run(1, states::SPAN_THREADS, Span::BYTES, [=, &p] { Span(p, shared(), block, span).run(); });
}

template <class Rule>
void take(const states::Spans* p, int rows, bool halved) {
  for (int row = 0; row < rows; ++row) {
    const int* span = p->spans + row * 5;
    halved ? take<Rule, __nv_bfloat16>(*p, span) : take<Rule, float>(*p, span);
  }
}

template <typename Kept>
void step(const states::one_token::Params& p, int blocks) {
  using namespace states::one_token;
  for (int block = 0; block < blocks; ++block)
    emulated::run(1, THREADS, Ring<Kept>::BYTES, [=, &p] {
      if (threadIdx.x == 0) start_barriers<Kept>(0);
      __syncthreads();
      walk_through<Kept>({p, block, blocks}, shared(), 0);
    });
}

}  // namespace

extern "C" void emulated_delta_step(const states::one_token::Params* p, int halved, int blocks) {
  halved ? step<__nv_bfloat16>(*p, blocks) : step<float>(*p, blocks);
}

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
  take<states::DeltaRule>(p, rows, halved);
}

extern "C" void emulated_scan_spans(const states::Spans* p, int rows, int halved) {
  take<states::Mamba2>(p, rows, halved);
}

extern "C" void emulated_convolve(const states::Convolution* p, int taps, int chunks) {
  // No thread knows of another.
  for (int part = 0; part < chunks * p->chunk / states::CONVOLVED_TOKENS; ++part)
    for (int group = 0; group < p->channels / states::CHANNELS; ++group)
      taps == 4 ? states::ConvolvedPart<4>(*p, part, group).run() : states::ConvolvedPart<3>(*p, part, group).run();
}
