"""DraftModel: a small model of the same vocabulary that proposes drafts, in a chain (SGLang's STANDALONE).

    step     newest   d1   d2   d3        rows of the served model's verification
    pass 0   newest                -> d1    the draft model, one token of each row at a time
    pass 1            d1           -> d2
    pass 2                 d2      -> d3
    pass 3                      d3          only its keys and values

The draft's keys and values are under the same page numbers as those of the served model, and are written for the same
tokens: the draft model runs beside every step, also those of prompts and of rows without drafts. So a cached prefix has
both. What is there of a token that was not accepted is overwritten, since rows only grow. The draft's pages are
advisory: whatever is there, the served model decides which drafts are right.

A row that draws its tokens has its drafts drawn with the same random numbers: a draft of a token has the seed and the
place that the token has (drafter-invariant sampling, arXiv 2408.07978). So a draft model that is as sure as the served
one is right in drawn text, too, and a text does not change by its drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import TokenPlaces
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import (
    DRAFTED,
    ON_DEVICE,
    Bools,
    ForwardMode,
    Ints,
    ModelWorkerBatch,
    SamplingColumns,
    Slots,
)
from mysglang.srt.kernels.late_rows import NO_DRAFT_HERE
from mysglang.srt.kernels.sampling import greedy_tokens
from mysglang.srt.layers.attention.factory import create_attention_backend
from mysglang.srt.layers.attention.graph import GraphColumns
from mysglang.srt.layers.logits_processor import LogitsProcessor
from mysglang.srt.layers.sampler import ChoosesTokens, Sampler, SamplingOps, SharedSampler
from mysglang.srt.model_executor.feature_stager import FeatureStager, LateLogits
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.late_rows import DraftStep
from mysglang.srt.model_executor.model_launch import ModelLaunch, Setup, step_workspace
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.programs import Beside, LoadHelp, Program, RoomyStep
from mysglang.srt.model_executor.step_inputs import StepStager
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.platforms.slot_buffer import SlotBuffer
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.sampling.drawing import DRAWING
from mysglang.srt.sampling.feature import DeviceFacts, FeatureColumns
from mysglang.srt.sampling.logit_bias import LOGIT_BIAS

FEATURES = (DRAWING, LOGIT_BIAS)
"""The sampling features that drafts are chosen with: those of rows that may have drafts."""


def drafting(setup: Setup, launch: ModelLaunch) -> LoadHelp:
    """Returns a model that proposes drafts. Raises ConfigError for what cannot run here."""
    ops = SamplingOps.choose(reference=setup.wants_reference)
    check = partial(setup.check_attention, launch, keeps_dtype=True)
    return lambda: DraftModel(setup, launch, setup.load(TokenModel, launch, check), ops)  # type: ignore[type-abstract]


class DraftModel:
    """The draft model of STANDALONE (a `programs.HelpingModel`)."""

    def __init__(self, setup: Setup, launch: ModelLaunch, model: TokenModel, ops: SamplingOps) -> None:
        self.model = model
        # --kv-cache-dtype is about the served model; a draft's few layers keep what they compute.
        self.stores = ModelStores(tuple(model.attention_specs()), launch.dtype)
        self._setup = setup
        self._vocab_size = launch.config.vocab_size
        self._ops = ops
        self._chosen = setup.choose_attention(self.stores, launch.dtype)
        self._late = setup.late_attention(self._chosen, self.stores, launch.dtype)

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        specs = self.stores.specs
        return step_workspace(self.model, self._chosen, specs, max_tokens=max_tokens, max_context=max_context)

    def ready(self, memory: ModelMemory, beside: Beside) -> Beside:
        platform = self._setup.platform
        uploader, buffers = Uploader(platform), self._setup.step_buffers(memory)
        following, proposing = (
            HiddenStates(
                self.model,
                create_attention_backend(names, memory.pool, memory.tables.pages, self.stores.specs),
                buffers,
                uploader,
            )
            for names in (self._chosen, self._late.names)
        )
        facts = DeviceFacts(self._vocab_size, platform.device, self._ops.draw)
        chain = DraftChain(
            following,
            proposing,
            LogitsProcessor(self.model.compute_logits, self._vocab_size),
            StepStager(uploader, FeatureStager(facts, FEATURES), self._ops),
            # Ranks that differ in a draft would verify different tokens.
            SharedSampler(Sampler(self._ops), self._setup.tp),
            uploader,
        )
        return replace(beside, drafter=chain, why_exact=self._late.why_exact or beside.why_exact)


class DraftChain:
    """Proposes a chain of drafts with the draft model (a `programs.Drafter`)."""

    slot_buffers: Sequence[SlotBuffer] = ()

    def __init__(
        self,
        following: HiddenStates,
        proposing: HiddenStates,
        logits: LogitsProcessor,
        stager: StepStager,
        sampler: ChoosesTokens,
        uploader: Uploader,
    ) -> None:
        """`following` runs the draft model in steps without drafts, `proposing` in steps with drafts."""
        self._following = following
        self._hidden = proposing
        self._logits = logits
        self._stager = stager
        self._sampler = sampler
        self._uploader = uploader
        # All passes of a captured step have one plan: for the longest that rows may be after the last one.
        self._planned = proposing.late_columns(1, "draft_")
        self.columns: Sequence[GraphColumns] = (self._planned,)

    def beside(self, program: Program) -> Program:
        return WithDraftModel(program, self)

    def follow(self, batch: ModelWorkerBatch) -> None:
        """Writes the draft model's keys and values of a step's tokens, all of which the device knows."""
        self._next(self._following, batch, np.zeros(batch.num_rows, dtype=np.bool_))

    def propose(self, step: DraftStep) -> Tensor:
        batch, places, drafts = step.batch, step.places, step.drafts
        batch = replace(batch, sampling=SamplingColumns(tuple(filter(_drafts_use, batch.sampling.parts))))
        drafted = batch.input_ids == DRAFTED
        first = np.cumsum(batch.extend_lens) - batch.extend_lens
        count = np.add.reduceat(drafted, first, dtype=np.int64) if batch.num_rows else first
        up = self._uploader.upload({"kept": np.flatnonzero(~drafted), "drafted": count.astype(np.int32)})
        at = places.of(up["kept"], places.seq_lens - up["drafted"])
        tokens = self._next(self._hidden, without(batch, drafted), count > 0, at)
        for depth in range(1, int(count.max(initial=0)) + 1):
            rows = np.flatnonzero(count >= depth)
            mine = first[rows] + depth
            up = self._uploader.upload({"places": mine.astype(np.int64), "hosted": step.hosted[rows]})
            assert tokens is not None, "these rows were to have a draft"
            given = drafts.index_select(0, up["places"])
            # A row whose logits are not finite has the token -1, which has no embedding. So has a draft of the host's
            # that is not there, at whose place stands the newest token.
            drafted_ids = given.where(up["hosted"], tokens.clamp(min=0))
            drafts = drafts.index_copy(0, up["places"], drafted_ids)
            at = places.of(up["places"], places.positions.index_select(0, up["places"]).int() + 1)
            at = replace(at, ids=torch.where(drafted_ids >= 0, drafted_ids, at.ids))
            tokens = self._next(self._hidden, one_token_of(batch, rows, mine, depth), count[rows] > depth, at)
        return drafts

    def captures(self, batch: ModelWorkerBatch) -> bool:
        """True if no row draws its tokens: a captured chain proposes the most likely tokens, which rows that draw
        rarely accept.
        """
        return not any(part.feature == DRAWING.name for part in batch.sampling.parts)

    def propose_captured(self, step: RoomyStep, at: TokenPlaces, drafts: Tensor) -> Tensor:
        hosted, host = step.known >= 0, padding_decode(step.rows, 0, spaces=len(at.locs))
        host = replace(host, high_lens=host.seq_lens)
        ones, planned = torch.ones_like(step.extend_lens), self._planned.views(step.views)
        first = torch.arange(0, step.rows * step.width, step.width, device=drafts.device)
        passing = at.of(first, at.positions.index_select(0, first).int() + 1)
        for depth in range(1, step.width):
            hidden = self._hidden.at_places(host, passing, step.slots, ones, planned)
            tokens = greedy_tokens(self._logits.next_token_logits(hidden, None))
            mine = first + depth
            given = drafts.index_select(0, mine)
            found = given.where(hosted, tokens.clamp(min=0)).where(depth < step.extend_lens, NO_DRAFT_HERE)
            drafts = drafts.index_copy(0, mine, found)
            passing = at.of(mine, at.positions.index_select(0, mine).int() + 1)
            passing = replace(passing, ids=torch.where(found >= 0, found, passing.ids))
        # The keys and values of the last drafts.
        self._hidden.at_places(host, passing, step.slots, ones, planned)
        return drafts

    def _next(
        self, hidden_states: HiddenStates, batch: ModelWorkerBatch, wanted: Bools, at: TokenPlaces | None = None
    ) -> Tensor | None:
        """Runs one pass. Returns the tokens [N] int64 that follow the wanted rows [R]; None if no row is wanted.

        at: where the batch's tokens stand, if the device has found it.
        """
        # Outputs of a request other than its tokens come from the served model.
        batch = replace(
            batch,
            yields=wanted,
            sampling_now=(),
            logprobs=None,
            hidden=None,
            embeds=None,
            shared=None,
            waits_for_mask=False,
            logits_per_row=None,
        )
        hidden, _ = hidden_states.of(batch, at=at)
        if not wanted.any():
            return None
        late = None
        if at is not None and batch.high_lens is not None:
            late = LateLogits(at.positions, np.cumsum(batch.extend_lens, dtype=np.int64)[wanted] - 1)
        inputs = self._stager.stage(batch, {"wanted": np.flatnonzero(wanted)}, late)
        logits = self._logits.next_token_logits(hidden, inputs.tokens["wanted"])
        return self._sampler.sample(logits, inputs.sampling).tokens


class WithDraftModel:
    """Implements `programs.Program`: another program's steps, which the draft model sees, too."""

    def __init__(self, program: Program, chain: DraftChain) -> None:
        self._program = program
        self._chain = chain
        self.name = program.name
        self.takes = program.takes

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return self._program.covers(batch)

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        # First, since the tokens that only the device knows are other ones afterwards.
        self._chain.follow(batch)
        return self._program.run(batch)


def without(batch: ModelWorkerBatch, drafted: Bools) -> ModelWorkerBatch:
    """Returns the step without these tokens [T], which are the last ones of their rows."""
    kept = ~drafted
    row_of = np.repeat(np.arange(batch.num_rows), batch.extend_lens)
    lens = np.bincount(row_of[kept], minlength=batch.num_rows).astype(np.int32)
    return replace(
        batch,
        mode=ForwardMode.DECODE if (lens == 1).all() else ForwardMode.EXTEND,
        input_ids=batch.input_ids[kept],
        seq_lens=longer(batch.seq_lens, lens - batch.extend_lens),
        high_lens=None if batch.high_lens is None else longer(batch.high_lens, lens - batch.extend_lens),
        extend_lens=lens,
        out_cache_locs=tuple(locs[kept] for locs in batch.out_cache_locs),
    )


def longer(lens: Ints, more: Ints) -> Ints:
    """Returns the lengths plus `more`, [R]; lengths that are ON_DEVICE stay so."""
    found: Ints = np.where(lens == ON_DEVICE, lens, lens + more).astype(np.int32)
    return found


def one_token_of(batch: ModelWorkerBatch, rows: Slots, places: Slots, depth: int) -> ModelWorkerBatch:
    """Returns a decode step of the drafts at `depth` (1, 2, …) of these rows, which are the tokens `places` of the
    step.
    """
    ones = np.ones(len(rows), dtype=np.int32)
    more = np.int32(depth + 1) - batch.extend_lens[rows]
    return replace(
        batch,
        mode=ForwardMode.DECODE,
        input_ids=np.full(len(rows), ON_DEVICE, dtype=np.int32),
        slots=batch.slots[rows],
        seq_lens=longer(batch.seq_lens[rows], more),
        high_lens=None if batch.high_lens is None else longer(batch.high_lens[rows], more),
        extend_lens=ones,
        out_cache_locs=tuple(locs[places] for locs in batch.out_cache_locs),
        sampling=SamplingColumns(tuple(part_of_rows(part, rows) for part in batch.sampling.parts)),
        second_texts=None,
    )


def part_of_rows(part: FeatureColumns, rows: Slots) -> FeatureColumns:
    """Returns the columns of a feature for these ascending rows of a batch, renumbered 0, 1, … for another batch."""
    assert part.rows is not None, f"{part.feature} speaks of no rows"
    mine = np.isin(part.rows, rows)
    return FeatureColumns(
        part.feature,
        np.searchsorted(rows, part.rows[mine]),
        {name: column[mine] for name, column in part.columns.items()},
        {name: column[mine] for name, column in part.host.items()},
    )


def _drafts_use(part: FeatureColumns) -> bool:
    return any(part.feature == feature.name for feature in FEATURES)
