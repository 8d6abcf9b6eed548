// Activations of gated layers, by the number that a caller gives.
#pragma once

#include "cpu/vec.h"

namespace mysgl {

enum Activation { NONE = 0, SILU = 1, GELU_TANH = 2 };

inline Floats activate(int activation, Floats x) {
  if (activation == SILU) return x / (1.0f + exp(-x));
  return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

}  // namespace mysgl
