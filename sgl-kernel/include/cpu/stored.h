// Numbers as KV pages hold them: bfloat16, or eight bits of a format that is told as a number.
//
//     1    e4m3: 1 sign, 4 exponent, 3 mantissa bits, no infinities, up to 448
//     2    e5m2: 1 sign, 5 exponent, 2 mantissa bits, up to 57344
//
// Every such number is one in bfloat16. Micikevicius et al., "FP8 formats for deep learning" (2022).
#pragma once

#include "cpu/vec.h"

namespace mysgl {

enum Format { BF16 = 0, E4M3 = 1, E5M2 = 2 };

template <int FORMAT>
struct Eight {
  static constexpr int SHIFT = FORMAT == E4M3 ? 20 : 21;  // bits of a float's mantissa that it lacks
  static constexpr uint32_t REBIAS = uint32_t(FORMAT == E4M3 ? 120 : 112) << 23;  // between the exponents' biases
  static constexpr uint32_t LARGEST = uint32_t(FORMAT == E4M3 ? 135 : 142) << 23 | 0x600000;  // bits of a float
  static constexpr uint32_t LEAST_NORMAL = REBIAS + (1u << 23);
  // A float whose last bit is worth as much as the last one of a number below the least normal one.
  static constexpr uint32_t MAGIC = uint32_t(FORMAT == E4M3 ? 141 : 134) << 23;
  static constexpr uint16_t NO_NUMBER = FORMAT == E4M3 ? 0x7f : 0x7c;  // from here on, without the sign

  typedef uint16_t Wide __attribute__((vector_size(4 * LANES), may_alias));

  // bfloat16 from codes in the lanes. Below the least normal number the mantissa's leading bit becomes the exponent.
  static Wide decode(Wide code) {
    const Wide m = code & 0x7f;
    Wide found = (m << (SHIFT - 16)) + uint16_t(REBIAS >> 16);
    if (FORMAT == E4M3) {
      found = m < 8 ? (m & 3) << 5 | uint16_t(0x3c00) : found;
      found = m < 4 ? (m & 1) << 6 | uint16_t(0x3b80) : found;
      found = m < 2 ? m * uint16_t(0x3b00) : found;
    } else {
      found = m < 4 ? (m & 1) << 6 | uint16_t(0x3800) : found;
      found = m < 2 ? m * uint16_t(0x3780) : found;
    }
    found = m >= NO_NUMBER ? found | uint16_t(0x7fc0) : found;
    return found | (code & 0x80) << 8;
  }

  // x * inverse as codes: to nearest, ties to even; the largest of its sign beyond that; no number if x is none.
  static Pairs encode(Floats x, float inverse) {
    const Pairs bits = (Pairs)(x * inverse), magnitude = bits & 0x7fffffff;
    const Pairs capped = magnitude < LARGEST ? magnitude : splat(LARGEST);  // positive floats have their bits' order
    const Pairs normal = (capped - REBIAS + ((1u << (SHIFT - 1)) - 1) + (capped >> SHIFT & 1)) >> SHIFT;
    const Pairs small = (Pairs)((Floats)capped + (Floats)splat(MAGIC)) - MAGIC;
    Pairs code = capped < LEAST_NORMAL ? small : normal;
    code = ((Pairs)x & 0x7fffffff) < 0x7f800000u ? code : splat(0x7fu);
    return code | (bits >> 24 & 0x80);
  }

  // Rows of `width` numbers, a multiple of 2 * LANES, that begin at these offsets: one behind the other, in bfloat16.
  static void read(bf16 *to, const uint8_t *from, const long *offsets, long rows, long width) {
    typedef uint8_t Bytes __attribute__((vector_size(2 * LANES), may_alias));
    for (long r = 0; r < rows; r++)
      for (long i = 0; i < width; i += 2 * LANES, to += 2 * LANES)
        store(to, decode(__builtin_convertvector(load<Bytes>(from + offsets[r] + i), Wide)));
  }

  static void write(uint8_t *to, const bf16 *from, long count, float inverse) {
    typedef uint8_t Bytes __attribute__((vector_size(LANES), may_alias));
    long i = 0;
    for (; i + LANES <= count; i += LANES)
      store(to + i, __builtin_convertvector(encode(load_bf16(from + i), inverse), Bytes));
    if (i == count) return;
    bf16 last[LANES] = {};
    std::memcpy(last, from + i, (count - i) * sizeof(bf16));
    const Bytes codes = __builtin_convertvector(encode(load_bf16(last), inverse), Bytes);
    std::memcpy(to + i, &codes, count - i);
  }
};

// Rows of numbers of eight bits, as `Eight::read`.
inline void read_stored(bf16 *to, const void *from, const long *offsets, long rows, long width, int format) {
  const uint8_t *codes = static_cast<const uint8_t *>(from);
  auto read = format == E4M3 ? Eight<E4M3>::read : Eight<E5M2>::read;
  read(to, codes, offsets, rows, width);
}

// Elements [offset, offset + count) become `from`, times `inverse` unless they are bfloat16.
inline void write_stored(void *to, long offset, const bf16 *from, long count, int format, float inverse) {
  uint8_t *codes = static_cast<uint8_t *>(to) + offset;
  switch (format) {
    case BF16: std::memcpy(static_cast<bf16 *>(to) + offset, from, count * sizeof(bf16)); return;
    case E4M3: return Eight<E4M3>::write(codes, from, count, inverse);
    case E5M2: return Eight<E5M2>::write(codes, from, count, inverse);
  }
}

}  // namespace mysgl
