"""NormPlan: a norm of a decoder's plan (`configs/layer_plan.py`)."""

from __future__ import annotations

from typing import Literal

import msgspec

NormKind = Literal["rms", "rms_unit", "rms_plus_one", "layer", "layer_plus_one", "layer_without_bias"]
"""An RMSNorm that multiplies by its weight, by nothing, or by 1 + its weight; or a LayerNorm, which subtracts the mean
before, and adds a bias after.
"""


class NormPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A norm over hidden states, or over each head."""

    eps: float
    kind: NormKind = "rms"
