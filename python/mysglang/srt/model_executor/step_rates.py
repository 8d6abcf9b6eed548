"""Costs of a model's steps, from the measured rates of the device and the sizes of what was loaded."""

from __future__ import annotations

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.worker import StepRates
from mysglang.srt.model_executor.programs import Captured
from mysglang.srt.platforms.profile import DeviceRates


def step_rates(
    rates: DeviceRates | None,
    config: ModelConfig,
    captured: Captured,
    *,
    tp_size: int,
    weights: int,
    token_bytes: float,
) -> StepRates | None:
    """Returns the cost rates of steps; None if the device was not measured, or nothing is known about the layers.
    weights: bytes of this rank's weights; token_bytes: bytes that its layers keep of a token.
    """
    if rates is None or config.decoder is None or config.pooling is not None:
        return None
    plan = config.decoder
    return StepRates(
        token_s=plan.used_parameters(config.hidden_size) / tp_size / rates.products,
        weights_s=weights / rates.bytes_read,
        key_s=token_bytes / rates.bytes_read,
        step_s=len(plan.layers) * rates.layer_s,
        queued_s=len(plan.layers) * rates.layer_queued_s,
        decode_rows=captured.decode_rows,
        prompt_tokens=captured.prompt_tokens,
        mixed_steps=captured.mixed_steps,
    )
