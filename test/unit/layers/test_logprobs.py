"""Log-probabilities in runs of any size, against log_softmax over everything."""

import numpy as np
import pytest
import torch

from mysglang.srt.layers import logprobs
from mysglang.srt.layers.logprobs import LogprobQuery, find_logprobs

N, VOCAB = 7, 40


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_runs_of_any_size(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", rows_at_once * 4 * VOCAB)
    logits = torch.randn(N, VOCAB)
    chosen = torch.randint(VOCAB, (N,))
    counts = np.array([0, 2, 0, 1, 3, 0, 1])
    pair_rows = torch.from_numpy(np.repeat(np.arange(N), counts))
    pair_ids = torch.randint(VOCAB, (7,))
    query = LogprobQuery(3, np.concatenate([[0], np.cumsum(counts)]), pair_rows, pair_ids)
    asked = []

    def logits_of(begin: int, end: int) -> torch.Tensor:
        asked.append(end - begin)
        return logits[begin:end]

    found = find_logprobs(logits_of, chosen, query, VOCAB)
    expected = logits.log_softmax(-1)
    assert max(asked) <= rows_at_once and sum(asked) == N
    assert torch.equal(found.chosen, expected[torch.arange(N), chosen])
    assert torch.equal(found.top_vals, expected.sort(descending=True).values[:, :3])
    assert torch.equal(found.pair_vals, expected[pair_rows, pair_ids])


def test_more_than_the_vocabulary() -> None:
    query = LogprobQuery(10**9, np.zeros(2, dtype=np.int64), torch.zeros(0).long(), torch.zeros(0).long())
    found = find_logprobs(lambda begin, end: torch.zeros(1, VOCAB), torch.zeros(1).long(), query, VOCAB)
    assert found.top_vals.shape == (1, VOCAB)
