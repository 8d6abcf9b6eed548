// What is done to each row or head by itself: norms, rotary positions, activations, the most likely or a drawn token.
// All computed in float32 and rounded where the plain composition rounds.

#include <climits>
#include <cmath>

#include "cpu/activations.h"
#include "cpu/draw.h"
#include "cpu/stored.h"
#include "cpu/threads.h"

using namespace mysgl;

namespace {

constexpr long GRAIN = 1 << 14;  // elements that are worth another thread

long chunk_of(long width) { return width < GRAIN ? GRAIN / width : 1; }

// The last elements of a row that fill no vector, as a vector with zeros behind them.
Floats load_some(const bf16 *from, long count) {
  bf16 padded[LANES] = {};
  std::memcpy(padded, from, count * sizeof(bf16));
  return load_bf16(padded);
}

Floats load_some(const float *from, long count) {
  float padded[LANES] = {};
  std::memcpy(padded, from, count * sizeof(float));
  return load<Floats>(padded);
}

void store_some(bf16 *to, Floats x, long count) {
  bf16 padded[LANES];
  store_bf16(padded, x);
  std::memcpy(to, padded, count * sizeof(bf16));
}

// each(i, n): the elements [i, i + n), n <= LANES.
template <typename Each>
void by_vectors(long width, const Each &each) {
  long i = 0;
  for (; i + LANES <= width; i += LANES) each(i, long(LANES));
  if (i < width) each(i, width - i);
}

Floats load_up_to(const bf16 *from, long n) { return n == LANES ? load_bf16(from) : load_some(from, n); }

Floats load_up_to(const float *from, long n) { return n == LANES ? load<Floats>(from) : load_some(from, n); }

void store_up_to(bf16 *to, Floats x, long n) {
  if (n == LANES)
    store_bf16(to, x);
  else
    store_some(to, x, n);
}

// out may be x. Weight: bf16 or float.
template <typename Weight>
void norm(bf16 *out, const bf16 *x, const Weight *weight, long width, float eps) {
  Floats squares = {};
  by_vectors(width, [&](long i, long n) {
    Floats v = load_up_to(x + i, n);
    squares += v * v;
  });
  const float factor = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
  by_vectors(width, [&](long i, long n) {
    store_up_to(out + i, load_up_to(x + i, n) * factor * load_up_to(weight + i, n), n);
  });
}

// Elements i and i + half of a head turn together.
void turn(bf16 *head, const float *cos_sin, long half) {
  long i = 0;
  for (; i + LANES <= half; i += LANES) {
    Floats left = load_bf16(head + i), right = load_bf16(head + half + i);
    Floats cos = load<Floats>(cos_sin + i), sin = load<Floats>(cos_sin + half + i);
    store_bf16(head + i, left * cos - right * sin);
    store_bf16(head + half + i, right * cos + left * sin);
  }
  for (; i < half; i++) {
    float left = to_float(head[i]), right = to_float(head[half + i]), cos = cos_sin[i], sin = cos_sin[half + i];
    head[i] = to_bf16(left * cos - right * sin);
    head[half + i] = to_bf16(right * cos + left * sin);
  }
}

template <typename Weight>
void norm_rows(bf16 *out, const bf16 *x, long x_stride, bf16 *residual, const Weight *weight, long rows, long width,
               float eps) {
  share(rows, chunk_of(width), [&](long first, long end) {
    for (long r = first; r < end; r++) {
      const bf16 *from = x + r * x_stride;
      if (residual) {
        bf16 *to = residual + r * width;
        by_vectors(width, [&](long i, long n) {
          store_up_to(to + i, load_up_to(to + i, n) + load_up_to(from + i, n), n);
        });
        from = to;
      }
      norm(out + r * width, from, weight, width, eps);
    }
  });
}

}  // namespace

extern "C" {

// residual: null, or [rows, width], dense: x is added to it, and the sum normed. weight: bf16, or float if it is wide.
void mysgl_rms_norm(bf16 *out, const bf16 *x, long x_stride, bf16 *residual, const void *weight, bool wide, long rows,
                    long width, float eps) {
  if (wide)
    norm_rows(out, x, x_stride, residual, static_cast<const float *>(weight), rows, width, eps);
  else
    norm_rows(out, x, x_stride, residual, static_cast<const bf16 *>(weight), rows, width, eps);
}

// x: [rows, 2 * width], dense.
void mysgl_gated(bf16 *out, const bf16 *x, long rows, long width, int activation) {
  share(rows, chunk_of(width), [&](long first, long end) {
    for (long r = first; r < end; r++) {
      const bf16 *gate = x + r * 2 * width, *up = gate + width;
      by_vectors(width, [&](long i, long n) {
        store_up_to(out + r * width + i, gated(activation, load_up_to(gate + i, n), load_up_to(up + i, n)), n);
      });
    }
  });
}

// Heads of queries and keys are normed, if weights are given, and turned in place; keys and values go to the caches,
// whose numbers are of `format` (cpu/stored.h): those of eight bits times k_inverse and v_inverse.
void mysgl_rope_and_store(bf16 *q, long q_stride, bf16 *k, long k_stride, const bf16 *v, long v_stride,
                          const int64_t *positions, const float *cos_sin, const bf16 *q_norm, const bf16 *k_norm,
                          float eps, void *k_cache, void *v_cache, const int64_t *locations, long tokens, long heads,
                          long kv_heads, long dim, int format, float k_inverse, float v_inverse) {
  const long kv_width = kv_heads * dim;
  share(tokens, chunk_of((heads + 2 * kv_heads) * dim), [&](long first, long end) {
    for (long t = first; t < end; t++) {
      const float *angles = cos_sin + positions[t] * dim;
      for (long h = 0; h < heads + kv_heads; h++) {
        bf16 *head = h < heads ? q + t * q_stride + h * dim : k + t * k_stride + (h - heads) * dim;
        if (q_norm) norm(head, head, h < heads ? q_norm : k_norm, dim, eps);
        turn(head, angles, dim / 2);
      }
      write_stored(k_cache, locations[t] * kv_width, k + t * k_stride, kv_width, format, k_inverse);
      write_stored(v_cache, locations[t] * kv_width, v + t * v_stride, kv_width, format, v_inverse);
    }
  });
}

// The first of the largest elements of each row, -1 where one is not finite.
void mysgl_greedy(int64_t *tokens, const bf16 *logits, long stride, long rows, long width) {
  share(rows, 1, [&](long first, long end) {
    for (long r = first; r < end; r++) {
      const bf16 *row = logits + r * stride;
      Floats best = splat(-INFINITY), nothing = {};
      long i = 0;
      for (; i + LANES <= width; i += LANES) {
        Floats x = load_bf16(row + i);
        best = max(x, best);
        nothing += x * 0.0f;  // NaN from here on if x is not finite
      }
      float top = largest(best), none = sum(nothing);
      for (; i < width; i++) {
        float x = to_float(row[i]);
        top = x > top ? x : top;
        none += x * 0.0f;
      }
      tokens[r] = -1;
      if (none != 0.0f) continue;
      for (i = 0; to_float(row[i]) != top;) i++;
      tokens[r] = i;
    }
  });
}

// A token of each row. uniforms: in [0, 1). Each filter: null, or a number for each row (include/cpu/draw.h).
void mysgl_draw(int64_t *tokens, const float *logits, long stride, const double *uniforms, const float *temperatures,
                const int32_t *top_k, const float *top_p, const float *min_p, long rows, long width) {
  share(rows, 1, [&](long first, long end) {
    for (long r = first; r < end; r++) {
      const Filters filters{top_k ? top_k[r] : LONG_MAX, top_p ? top_p[r] : INFINITY, min_p ? min_p[r] : 0.0};
      const bool given = top_k || top_p || min_p;
      tokens[r] = draw_token(logits + r * stride, width, uniforms[r], temperatures[r], given ? &filters : nullptr);
    }
  });
}

}
