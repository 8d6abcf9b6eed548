"""Verification: steps whose rows try drafts, or begin where only the device knows.

    in      newest  d1  d2  d3          drafts after the newest token
    out         t1  t2  t3  t4          what the model says behind each
    count   t1 always; t2 if d1 = t1; t3 if d2 = t2 too; …

So greedy decoding with drafts gives the tokens that it gives without (Leviathan et al., arXiv 2211.17192, for a draft
that is one token instead of a distribution). Keys of drafts that do not count stand behind the row's end, and are
overwritten by its next tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.late_rows import LateRows, has_drafts
from mysglang.srt.model_executor.programs import VERIFICATION, Drafter
from mysglang.srt.model_executor.step_columns import table_columns
from mysglang.srt.model_executor.token_end import ForwardOutput, TokenParts
from mysglang.srt.platforms.upload import Uploader


class Verification:
    """Runs steps with drafts, and keeps the drafts that the served model confirms (a `programs.Program`)."""

    name = VERIFICATION

    def __init__(
        self, takes: str, hidden: HiddenStates, parts: TokenParts, uploader: Uploader, rows: LateRows, drafter: Drafter
    ) -> None:
        self.takes = takes
        self._hidden = hidden
        self._logits = parts.logits
        self._tables = parts.memory.tables
        self._end = parts.end
        self._uploader = uploader
        self._rows = rows
        self._drafter = drafter

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return has_drafts(batch)

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        if batch.table_writes is not None:
            # Only the device knows this row's length. The page table says where the row goes on, so this step's pages
            # must be in it.
            writes = table_columns(batch.table_writes, self._tables.max_pages)
            self._tables.write(self._uploader.upload(writes))
        step = self._rows.begin(batch)
        drafts = self._drafter.propose(step)
        places = replace(step.places, ids=torch.where(drafts >= 0, drafts, step.places.ids))
        hidden, _ = self._hidden.of(step.batch, all_tokens=True, at=places)
        inputs = self._end.stage(step.batch, step.columns, step.late)
        up = inputs.tokens
        output = ForwardOutput(
            logits=self._logits.next_token_logits(hidden, up["with_logits"]),
            # Tokens of prompts beside the rows that decode.
            prompt_logprobs=None if inputs.prompt is None else self._logits.prompt_logprobs(hidden, inputs.prompt),
            hidden=hidden,
        )
        return self._end.choose_and(
            partial(self._rows.commit, up, places.positions, drafts), step.batch, inputs, output
        )
