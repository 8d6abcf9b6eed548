"""Which rows a kernel may sample without a look at edits, filters and log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.sampling_decoder import SLOTS, Decoder
from mysglang.srt.kernels.row_layout import NEUTRAL, ROW
from mysglang.srt.kernels.sampled_rows import sample_rows
from mysglang.srt.sampling.drawing import TOP_K_ALL
from mysglang.srt.sampling.row_table import RowTable
from mysglang.srt.sampling.sampling_params import SamplingParams

DRAWN = {"top_k": TOP_K_ALL, "temperature": 0.7, "seed": 5}
ASKED = {
    "line": 0,
    "top_k": 50,
    "top_p": 0.95,
    "min_p": 0.1,
    "top_logprobs": 0,
    "bias_end": 1,
    "forbidden_end": 1,
}
"""Fields by which a drawn row asks for more than its temperature."""
NO_REQUEST = {"seed", "temperature", "frequency", "presence", "repetition", "bias_begin", "forbidden_begin", "unused"}
"""Fields that ask for nothing by themselves."""


def drawn_rows() -> RowTable:
    table = RowTable(3)
    table.put(np.arange(1, 3), **DRAWN)
    return table


def test_rows_with_a_temperature_and_greedy_ones_are_plain() -> None:
    assert RowTable(2).plain() and drawn_rows().plain()


@pytest.mark.parametrize("field", ASKED)
def test_a_row_that_asks_for_more_is_not_plain(field: str) -> None:
    table = drawn_rows()
    table.put(np.array([2]), **{field: ASKED[field]})
    assert not table.plain() and table.plain(np.arange(2))


@pytest.mark.parametrize("field", [name for name in ASKED if name not in ("top_k", "top_p", "min_p")])
def test_a_greedy_row_that_asks_for_more_is_not_plain(field: str) -> None:
    table = RowTable(1)
    table.put(slice(None), **{field: ASKED[field]})
    assert not table.plain()


def test_every_field_is_looked_at_or_asks_for_nothing() -> None:
    assert ROW.names is not None and set(ROW.names) == ASKED.keys() | NO_REQUEST
    assert NEUTRAL["top_k"] == 1


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        ([{"temperature": 0.8}, {"temperature": 0}], True),
        ([{"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.9}], False),
        ([{"temperature": 1.0, "logit_bias": {3: 5.0}}], False),
        ([{"temperature": 1.0, "min_new_tokens": 3}], False),
    ],
)
@pytest.mark.parametrize("prompts", [False, True])
def test_steps_say_whether_their_rows_are_plain(
    params: list[dict[str, object]], plain: bool, prompts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    reference = sample_rows.reference

    def recorded(*args: object, **named: object) -> object:
        said.append(named["plain"])
        return reference(*args, **named)

    monkeypatch.setattr(sample_rows, "reference", recorded)
    decoder = Decoder(by_rows=True)
    slots = np.arange(len(params), dtype=np.int64)
    assert len(slots) <= SLOTS
    for slot, asked in enumerate(params):
        decoder.open(slot, SamplingParams(**asked))
    decoder.step(slots, [True] * len(slots), prompts=prompts)
    assert said == [plain]
