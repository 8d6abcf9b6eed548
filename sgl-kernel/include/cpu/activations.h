// Activations of gated layers, by the number that a caller gives.
#pragma once

#include "cpu/vec.h"

namespace mysgl {

enum Activation { NONE = 0, SILU = 1, GELU_TANH = 2, SWIGLUOAI = 3 };

// The function of the gate, times `up`.
inline Floats gated(int activation, Floats x, Floats up) {
  if (activation == SILU) return x / (1.0f + exp(-x)) * up;
  if (activation == SWIGLUOAI) {
    // max and min give their second argument where the first is NaN: it must stay NaN.
    x = min(splat(7.0f), x);
    return (max(splat(-7.0f), min(splat(7.0f), up)) + 1.0f) * (x / (1.0f + exp(-1.702f * x)));
  }
  return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x))) * up;
}

}  // namespace mysgl
