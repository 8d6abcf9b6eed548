"""logit_bias on the host: arrays that are made once, and finite whatever a client adds."""

import numpy as np
import pytest

from mysglang.srt.sampling.feature import HostFacts
from mysglang.srt.sampling.logit_bias import BiasBySlot
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.request_table import RequestTable


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
