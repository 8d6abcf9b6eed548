// From the logits of a row to its token, if nothing but a temperature is asked for.
//
// The largest logit is known, and neither edits nor filters need another look at a weight. So a block keeps its logits
// as they are, in less than half the shared memory of a RowSampler, and twice as many blocks are on a multiprocessor.
// Every weight is computed once, in the order in which its thread adds it up, and those of one thread a second time.
// Sums and tokens have the bits of a RowSampler.
#pragma once

#include "row.cuh"

namespace mysgl {

template <typename Logit, int CLUSTER, int THREADS>
class PlainSampler : RowPart<Logit, CLUSTER, THREADS> {
  using Part = RowPart<Logit, CLUSTER, THREADS>;
  using Part::aligned, Part::begin, Part::count, Part::finish, Part::index, Part::logits, Part::rank, Part::row;
  using Part::scaled, Part::step, Part::VECTOR;
  using Mailbox = Mail<CLUSTER, THREADS, 1>;
  static constexpr int HEAD = (sizeof(Mailbox) + 15) / 16 * 16;

 public:
  // Bytes of shared memory of a block.
  static constexpr int64_t bytes(int vocab) { return HEAD + static_cast<int64_t>(Part::part(vocab)) * sizeof(Logit); }

  __device__ PlainSampler(const Step& step, int row_index)
      : Part(step, row_index), kept(reinterpret_cast<Logit*>(shared_memory() + HEAD)) {}

  __device__ void run() const {
    const int64_t likeliest = step.greedy[index];
    if (likeliest < 0 || row.top_k == 1) {
      if (rank == 0 && threadIdx.x == 0) finish(likeliest, 0.0f);
      return;
    }
    const float top = scaled(static_cast<float>(logits()[likeliest]));
    const auto as_it_is = [&](int i) { return expf(static_cast<float>(kept[i]) - top); };
    const auto weight = [&](int i) { return expf(scaled(static_cast<float>(kept[i])) - top); };
    keep();
    cluster_sync();  // the logits are there, and no block writes to another that has not begun
    const auto own = Part::run_of_thread();
    const uint64_t mine = units(row.temperature == 1.0f ? mass(own, as_it_is) : mass(own, weight));
    uint64_t before[1] = {mine}, total[1];
    Exchange<CLUSTER, THREADS, 1>(reinterpret_cast<Mailbox*>(shared_memory()), rank).before(before, total);
    if (total[0] == 0) {  // no weight is a number
      if (rank == 0 && threadIdx.x == 0) finish(likeliest, 0.0f);
      return;
    }
    const int token = Part::drawn(own, before[0], mine, total[0], weight);
    if (token >= 0) finish(begin + token, 0.0f);
  }

 private:
  Logit* const kept;

  template <typename Weight>
  static __device__ float mass(typename Part::Run run, Weight weight) {
    float sum = 0;
#pragma unroll 4
    for (int i = run.first; i < run.end; ++i) sum += weight(i);
    return sum;
  }

  // Copies the block's logits.
  __device__ void keep() const {
    const Logit* source = logits() + begin;
    const int done = aligned() ? count / VECTOR * VECTOR : 0;
#pragma unroll 2
    for (int i = threadIdx.x * VECTOR; i < done; i += THREADS * VECTOR)
      *reinterpret_cast<uint4*>(kept + i) = *reinterpret_cast<const uint4*>(source + i);
    for (int i = done + threadIdx.x; i < count; i += THREADS) kept[i] = source[i];
  }
};

}  // namespace mysgl
