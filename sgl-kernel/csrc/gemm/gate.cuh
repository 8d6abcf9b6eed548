// Gates of products of which one half is a gate of the other.
#pragma once

// g * sigmoid(g * (a + b g^2)): silu with (1, 0), gelu in its tanh form with (1.59576912, 0.0713548163).
struct Gate {
  float a, b;
};

// gate(g) * up.
__device__ __forceinline__ float gate_rounded(const Gate& of, float g, float up) {
  return __fdividef(g, 1.0f + __expf(-g * (of.a + of.b * g * g))) * up;
}
