// What steps and prompts of the gated delta rule make of a token's numbers in the same way.
#pragma once

constexpr float QUERY_SCALE = 0.08838834764831845f;  // 128 ** -0.5, of queries of 128 numbers

// log(1 + exp(x)), also where 1 + exp(x) rounds to 1.
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.f) + log1pf(__expf(-fabsf(x))); }

// The logarithm of a decay.
__device__ __forceinline__ float decay_of(float time, float shift, float log_rate) {
  return -__expf(log_rate) * softplus(time + shift);
}

__device__ __forceinline__ float strength_of(float x, float strongest) { return strongest / (1.f + __expf(-x)); }
