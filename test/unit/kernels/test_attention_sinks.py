"""Sinks after an attention that knows none: the same as one more key whose value is zero."""

import pytest

from fixtures.triton_on_cpu import run_interpreted

PROGRAM = """
import torch
from mysglang.srt.kernels.cuda.attention_sinks import weigh_sinks
for tokens, heads, dim in ((1, 1, 8), (5, 3, 80), (70, 8, 64)):
    torch.manual_seed(tokens)
    scores, values = 3 * torch.randn(heads, tokens, 9), torch.randn(heads, 9, dim)
    sinks = torch.tensor([*torch.randn(heads - 1), 200.0]).mul(2)
    one_more = torch.cat((scores, sinks.view(-1, 1, 1).expand(-1, tokens, 1)), -1).softmax(-1)[..., :-1] @ values
    out = (scores.softmax(-1) @ values).transpose(0, 1).contiguous()
    lse = scores.logsumexp(-1).T.contiguous() * 1.4426950408889634
    weigh_sinks(out, lse, sinks)
    torch.testing.assert_close(out, one_more.transpose(0, 1), atol=1e-5, rtol=1e-4)
print("all agree")
"""


def test_as_one_more_key() -> None:
    pytest.importorskip("triton")
    assert run_interpreted(PROGRAM).strip() == "all agree"
