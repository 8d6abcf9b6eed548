"""logit_bias: arrays that are made once, finite whatever a client adds, and added to each logits row of a request."""

import numpy as np
import pytest
import torch

from mysglang.srt.model_executor.step_columns import feature_columns
from mysglang.srt.sampling.feature import ANY_WIDTH, HostFacts
from mysglang.srt.sampling.logit_bias import BiasBySlot
from mysglang.srt.sampling.logit_edits import EditsOnDevice
from mysglang.srt.sampling.logits_rows import LogitsRows
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.sampling_builder import SamplingBuilder


def test_biases_are_made_arrays_once() -> None:
    """Thousands of biases in each of many rows must not be gone through again in each step."""
    side = BiasBySlot(HostFacts(RequestTable(num_slots=4, max_context=16), eos_token_ids=(2,)))
    bias = {7: 1.5, 9: -1e300}
    assert side.open(2, SamplingParams(logit_bias=bias))
    bias.clear()
    found = side.kept(np.asarray([0, 2]), np.asarray([1]))
    assert found.rows is not None
    assert found.rows.tolist() == [1, 1]
    assert found.columns["ids"].tolist() == [7, 9]
    assert found.columns["values"].tolist() == [1.5, pytest.approx(-1e20)]
    side.close(2)
    with pytest.raises(KeyError):
        side.kept(np.asarray([2]), np.asarray([0]))


def test_a_row_may_try_several_tokens() -> None:
    """Each of its logits rows gets what it would get as the only one, and so do those of its neighbours."""
    builder = SamplingBuilder(RequestTable(num_slots=4, max_context=16), eos_token_ids=(2,))
    bias = {7: 1.5, 3: -4.0}
    builder.open(0, SamplingParams(temperature=0))
    builder.open(1, SamplingParams(temperature=0, logit_bias=bias))
    builder.open(2, SamplingParams(temperature=0, logit_bias=bias, frequency_penalty=1.0))
    assert [builder.widest(slot) for slot in (0, 1, 2)] == [None, ANY_WIDTH, 1]

    side = BiasBySlot(HostFacts(RequestTable(num_slots=4, max_context=16), eos_token_ids=(2,)))
    side.open(1, SamplingParams(logit_bias=bias))
    part = side.kept(np.asarray([0, 1]), np.asarray([1]))
    columns = feature_columns(part, LogitsRows(np.array([2, 3])))
    act = EditsOnDevice().act({name.partition(".")[2]: torch.from_numpy(column) for name, column in columns.items()})
    assert act is not None
    logits = torch.zeros(5, 10)
    act.edit(logits, torch.zeros(5, dtype=torch.bool))
    expected = torch.zeros(5, 10)
    expected[2:, 7], expected[2:, 3] = 1.5, -4.0
    assert torch.equal(logits, expected)
