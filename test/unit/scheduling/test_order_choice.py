"""Which order of prompts and running requests a launch gets: what its flags say, else what is known of its steps."""

from __future__ import annotations

import pytest

from fixtures.late_scheduler import RATES
from mysglang.srt.distributed.ranks import RANKS_OF_ONE
from mysglang.srt.forward.worker import StepRates
from mysglang.srt.managers.scheduler_builder import order_of
from mysglang.srt.scheduling.step_planner import OrderName
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.hardware import Hardware


@pytest.mark.parametrize(
    ("flags", "rates", "order"),
    [
        ((), RATES, "short"),
        ((), None, "bounded"),
        (("--enable-mixed-chunk",), RATES, "mixed"),
        (("--decode-wait-tokens", "4096"), RATES, "bounded"),
        (("--decode-wait-tokens", "0"), RATES, "prefill_first"),
        (("--chunked-prefill-size", "512"), RATES, "short"),
        (("--speculative-algorithm", "NGRAM"), RATES, "bounded"),
    ],
)
def test_flags_decide_then_costs(flags: tuple[str, ...], rates: StepRates | None, order: OrderName) -> None:
    args = ServerArgs.from_cli([*flags, "--device", "cuda"], Hardware(gpu_memory=(139.8,)))
    assert order_of(args, RANKS_OF_ONE, rates) == order
