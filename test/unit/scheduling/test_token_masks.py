"""The requests as logit processors see them: the tokens at the time when a step's are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.driven_scheduler import Answer
from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.forward.worker_batch import DraftColumns, TokenMask
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.token_masks import TokenMasks

PROMPT = [5, 6, 7, 8]


@pytest.mark.parametrize("overlap", [False, True])
def test_processors_are_shown_all_tokens_so_far_and_no_copies(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[int]] = []
    of = TokenMasks.of

    def noting(masks: TokenMasks, batch: ScheduleBatch, drafts: DraftColumns | None) -> TokenMask:
        mask = of(masks, batch, drafts)
        [call] = mask.calls
        assert call.name == "Own" and call.params == [{"a": 1}]
        [prompt], [output] = call.prompts, call.outputs
        assert prompt.tolist() == PROMPT
        shown.append(output.tolist())
        for view in (prompt, output):
            assert not len(view) or np.shares_memory(view, masks._table.tokens)
            with pytest.raises(ValueError, match="read-only"):
                view[:] = 0
        return mask

    monkeypatch.setattr(TokenMasks, "of", noting)
    scheduler = LateScheduler(Setup(overlap=overlap))
    scheduler.answers["r"] = Answer()
    params = SamplingParams(max_new_tokens=12, ignore_eos=True, sampling_seed=1, custom_params={"a": 1})
    scheduler.requests.send(
        TokenizedGenerateReqInput(
            rid="r", input_ids=pack_ids(PROMPT), sampling_params=params, stream=True, logit_processor="Own"
        )
    )
    scheduler.run()
    answer = solo(PROMPT, 12, VOCAB, ignore_eos=True)
    assert scheduler.answers["r"].ids == answer
    assert shown == [answer[:count] for count in range(12)]
