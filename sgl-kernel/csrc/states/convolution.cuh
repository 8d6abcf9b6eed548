// Causal convolutions of prompts over the newest few tokens, channel by channel.
//
// A thread walks through some tokens with eight neighbouring channels. It asks for several tokens before it computes the
// first of them, and keeps the newest inputs in registers, so each input is read once and nothing waits but for memory.
// Sums have the order of the taps.
#pragma once

#include "tiles.cuh"

namespace states {

constexpr int CONVOLVED_TOKENS = 32;  // of a thread, at most
constexpr int CONVOLVED_THREADS = 128;
constexpr int CHANNELS = 8;  // of a thread: sixteen bytes
constexpr int AHEAD = 8;     // tokens that are asked for together

struct Convolution {
  const __nv_bfloat16 *x, *weight, *bias;  // [tokens, channels], [channels, taps], [channels] or null
  const __nv_bfloat16* recent;             // [entries, taps - 1, channels], what came before
  const int *cuts, *chunks;  // [spans, 5]: first token, end, the row's first token, entry, …; [chunks, 2]: token, span
  __nv_bfloat16* out;        // [tokens, channels]
  long x_stride;
  int channels, chunk, silu;  // chunk: tokens of a chunk, a multiple of CONVOLVED_TOKENS
};

struct Eight {
  float values[CHANNELS];
};

__device__ __forceinline__ Eight widened_eight(uint4 eight) {
  const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
  Eight found;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpacked(pairs[i]);
    found.values[2 * i] = two.x, found.values[2 * i + 1] = two.y;
  }
  return found;
}

template <int TAPS>
class ConvolvedPart {
 public:
  // part: of CONVOLVED_TOKENS tokens of all chunks; group: of CHANNELS channels.
  __device__ ConvolvedPart(const Convolution& p, int part, int group) : p(p), channel(group * CHANNELS) {
    const int parts = p.chunk / CONVOLVED_TOKENS, first_of_chunk = p.chunks[part / parts * 2];
    const int* cut = p.cuts + p.chunks[part / parts * 2 + 1] * 5;
    begin = first_of_chunk + part % parts * CONVOLVED_TOKENS;
    end = min(begin + CONVOLVED_TOKENS, cut[1]);
    first = cut[2], entry = cut[3];
  }

  __device__ void run() const {
    if (begin >= end || channel >= p.channels) return;
    Eight taps[TAPS], before[TAPS - 1];
    load_taps(taps);
#pragma unroll
    for (int i = 0; i < TAPS - 1; ++i) before[i] = widened_eight(load(begin - (TAPS - 1) + i));
    Eight bias = {};
    if (p.bias != nullptr) bias = widened_eight(*reinterpret_cast<const uint4*>(p.bias + channel));
#pragma unroll 1
    for (int from = begin; from < end; from += AHEAD) {
      uint4 given[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) given[i] = load(min(from + i, end - 1));
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        const Eight now = widened_eight(given[i]);
        if (from + i < end) convolve(taps, before, now, bias, from + i);
#pragma unroll
        for (int tap = 0; tap < TAPS - 2; ++tap) before[tap] = before[tap + 1];
        before[TAPS - 2] = now;
      }
    }
  }

 private:
  const Convolution& p;
  int channel, begin, end, first, entry;

  // The inputs of a token; those before the row's first one are in its window.
  __device__ uint4 load(int token) const {
    const long older = long(entry) * (TAPS - 1) + (TAPS - 1) + token - first;
    const __nv_bfloat16* from = token < first ? p.recent + older * p.channels : p.x + token * p.x_stride;
    return *reinterpret_cast<const uint4*>(from + channel);
  }

  __device__ void load_taps(Eight (&taps)[TAPS]) const {
    const __nv_bfloat16* from = p.weight + long(channel) * TAPS;
#pragma unroll
    for (int i = 0; i < TAPS; ++i) {
      const Eight some = widened_eight(reinterpret_cast<const uint4*>(from)[i]);
#pragma unroll
      for (int n = 0; n < CHANNELS; ++n) {
        const int place = i * CHANNELS + n;
        taps[place % TAPS].values[place / TAPS] = some.values[n];
      }
    }
  }

  __device__ void convolve(
      const Eight (&taps)[TAPS], const Eight (&before)[TAPS - 1], const Eight& now, const Eight& bias, int token) const {
    float sums[CHANNELS];
#pragma unroll
    for (int n = 0; n < CHANNELS; ++n) {
      float sum = 0.f;
#pragma unroll
      for (int tap = 0; tap < TAPS - 1; ++tap) sum += taps[tap].values[n] * before[tap].values[n];
      sum += taps[TAPS - 1].values[n] * now.values[n];
      sum += bias.values[n];
      sums[n] = p.silu ? silu(sum) : sum;
    }
    const uint4 eight = {
        packed(sums[0], sums[1]), packed(sums[2], sums[3]), packed(sums[4], sums[5]), packed(sums[6], sums[7])};
    *reinterpret_cast<uint4*>(p.out + long(token) * p.channels + channel) = eight;
  }
};

}  // namespace states
