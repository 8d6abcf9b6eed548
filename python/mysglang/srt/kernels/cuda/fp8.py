"""Numbers of eight bits in Triton, by their bits: any device, and the interpreter, reads and writes them alike.

FORMAT: 0 for numbers as they are, 1 for e4m3, 2 for e5m2 (`kernels.fp8.FORMATS`). Pointers to the latter are to uint8.
"""

import triton
import triton.language as tl


@triton.jit
def to_stored(x, inverse, FORMAT: tl.constexpr):
    """Converts x times `inverse` to a stored number. `kernels.fp8.to_stored` says how it is rounded."""
    # A function compiled for numbers as they are must not hold the rest: Triton goes on behind a return under an `if`.
    if FORMAT == 0:
        return x
    else:
        return _coded(x, inverse, FORMAT)


@triton.jit
def _coded(x, inverse, FORMAT: tl.constexpr):
    # Bits of a float32 that the mantissa of a stored number lacks, and the distance of the exponents' biases.
    SHIFT: tl.constexpr = 20 if FORMAT == 1 else 21
    REBIAS: tl.constexpr = (120 if FORMAT == 1 else 112) << 23
    LARGEST: tl.constexpr = ((135 if FORMAT == 1 else 142) << 23) | 0x600000
    LEAST_NORMAL: tl.constexpr = REBIAS + (1 << 23)
    # A float32 whose last bit has the value of the last bit of a stored number below the smallest normal one.
    MAGIC: tl.constexpr = (141 if FORMAT == 1 else 134) << 23
    given = x.to(tl.float32)
    wide = (given * inverse).to(tl.int32, bitcast=True)
    magnitude = wide & 0x7FFFFFFF
    # Positive numbers have the order of their bits.
    capped = tl.minimum(magnitude, LARGEST)
    normal = (capped - REBIAS + (1 << (SHIFT - 1)) - 1 + ((capped >> SHIFT) & 1)) >> SHIFT
    magic = tl.full(wide.shape, MAGIC, tl.int32)
    sum = capped.to(tl.float32, bitcast=True) + magic.to(tl.float32, bitcast=True)
    small = sum.to(tl.int32, bitcast=True) - MAGIC
    code = tl.where(capped < LEAST_NORMAL, small, normal)
    # A finite number may have become infinite above.
    finite = (given.to(tl.int32, bitcast=True) & 0x7FFFFFFF) < 0x7F800000
    code = tl.where(finite, code, 0x7F)
    return (code | ((wide >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def from_stored(x, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """Converts stored numbers to this dtype, which represents them exactly, without their scale."""
    if FORMAT == 0:
        return x.to(dtype)
    wide = x.to(tl.uint16)
    if FORMAT == 2:
        # A float16 with the other mantissa bits left out.
        return (wide << 8).to(tl.float16, bitcast=True).to(dtype)
    # The exponent has a bit fewer than that of a float16, and a bias smaller by 8. This holds below the least normal
    # number, too.
    half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    value = half.to(tl.float32) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), value).to(dtype)
