"""sample_rows as one kernel, a cluster of blocks for each row; see `csrc/sampling/rows.cuh` of the kernels' package."""

from mysgl_kernel.sampling import BIAS, MOST_TOKENS, ROW, available, sample_rows
from mysglang.srt.kernels import row_layout

__all__ = ["available", "sample_rows"]

assert MOST_TOKENS >= row_layout.MOST_TOKENS
assert ROW == row_layout.ROW and BIAS == row_layout.BIAS, "the kernel reads another layout"
