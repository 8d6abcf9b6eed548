"""GenerationModel: a model that predicts tokens, with the programs that run its steps.

whole-step kernel   captured decode steps of a few rows, of models that the kernel takes
compiled decode     decode steps of models whose layers torch.compile can compile, if the launch asks for it
captured decode     the other captured decode steps, layer by layer
captured mixed      short steps of prompts beside decoding rows
captured prompts    other short steps with new tokens
eager               all other steps
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.worker_batch import ON_DEVICE, ModelWorkerBatch, mask_words
from mysglang.srt.kernels.ahead import compile_ahead
from mysglang.srt.kernels.row_layout import MOST_TOKENS
from mysglang.srt.kernels.sampled_rows import sample_rows
from mysglang.srt.layers.attention.factory import create_attention_backend
from mysglang.srt.layers.logits_processor import LogitsProcessor
from mysglang.srt.layers.sampler import ChoosesTokens, Sampler, SamplingOps, SharedSampler
from mysglang.srt.model_executor.compiled_decode import compiled_steps
from mysglang.srt.model_executor.eager_program import EagerProgram
from mysglang.srt.model_executor.feature_stager import FeatureStager
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.late_rows import LateRows
from mysglang.srt.model_executor.model_launch import ModelLaunch, Setup, step_workspace
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.padding import (
    beside_one_token,
    no_states,
    padding_decode,
    padding_drafts,
    padding_prompt,
)
from mysglang.srt.model_executor.programs import (
    Beside,
    Load,
    Runnable,
)
from mysglang.srt.model_executor.row_stager import BY_ACTS, RowStager, StagesRows
from mysglang.srt.model_executor.stages import StageWork, work_of
from mysglang.srt.model_executor.state_steps import StateStager
from mysglang.srt.model_executor.step_inputs import StepStager
from mysglang.srt.model_executor.step_output import StepReturns
from mysglang.srt.model_executor.token_captures import TokenCaptures, TriedDrafts
from mysglang.srt.model_executor.token_end import TokenEnd, TokenParts
from mysglang.srt.model_executor.verification import Verification
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.sampling.drawing import TOP_K_ALL
from mysglang.srt.sampling.feature import DeviceFacts
from mysglang.srt.sampling.logit_processors import load_processors

WARM_UP_TOP_K = (1, 2, TOP_K_ALL)
"""Greedy, filtered, drawn from all."""
CACHED_TOKENS = 16
"""Length of the beginning of a prompt of the warm-up that counts as cached. Its keys are those of page 0."""


def generation(setup: Setup, launch: ModelLaunch) -> Load:
    """Returns a model that generates. Raises ConfigError for what cannot run here."""
    platform = setup.platform
    setup.check_numerics()
    if (plan := launch.config.decoder) is not None:
        head_dim = next((attention.head_dim for attention in plan.attentions), None)
        has = {"keeps_states": plan.has_states, "has_experts": bool(plan.mixtures)}
        compile_ahead(platform.name, head_dim=head_dim, dtype=launch.dtype, **has)
    processors = load_processors(setup.config.logit_processors)
    ops = SamplingOps.choose(reference=setup.wants_reference)

    def load() -> GenerationModel:
        model = setup.load(TokenModel, launch, partial(setup.check_attention, launch))  # type: ignore[type-abstract]
        features = FeatureStager(DeviceFacts(launch.config.vocab_size, platform.device, ops.draw))
        stager = StepStager(Uploader(platform), features, ops, processors, rows_by_kernel(setup, launch, features))
        work = work_of(setup.stage)
        sampler = work.sampler(SharedSampler(Sampler(ops), setup.tp))
        logits = torch.zeros(1, launch.config.vocab_size, dtype=launch.dtype, device=platform.device)
        warm_sampling(ops, sampler, stager, logits)
        return GenerationModel(setup, launch, model, features, stager, sampler, work)

    return load


def rows_by_kernel(setup: Setup, launch: ModelLaunch, features: FeatureStager) -> StagesRows:
    """Returns the kernel that samples the rows of captured decode steps; None if they are sampled by acts. That is so
    if the platform has no such kernel, if ranks or stages must share one choice, or if the kernel's bits would depend
    on how a row was computed before.
    """
    platform, vocab_size = setup.platform, launch.config.vocab_size
    alone = setup.config.ranks.world.size == 1
    if not alone or setup.wants_reference or setup.config.numerics != "fastest" or vocab_size > MOST_TOKENS:
        return BY_ACTS
    op = sample_rows.choose(platform.device.type)
    return BY_ACTS if op is sample_rows.reference else RowStager(op, features, Uploader(platform), vocab_size)


class GenerationModel:
    """A model that generates text, with its captured steps (a `programs.ServedModel`)."""

    def __init__(
        self,
        setup: Setup,
        launch: ModelLaunch,
        model: TokenModel,
        features: FeatureStager,
        stager: StepStager,
        sampler: ChoosesTokens,
        work: StageWork,
    ) -> None:
        self._work = work
        self.model = model
        self.stores = setup.stores(launch, model.attention_specs(), model.state_specs())
        self._setup = setup
        self._launch = launch
        self._features = features
        self._stager = stager
        self._sampler = sampler
        self._chosen = setup.choose_attention(self.stores, launch.dtype)
        self._late = setup.late_attention(self._chosen, self.stores, launch.dtype)

    @property
    def attention(self) -> str:
        return str(self._chosen)

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        specs = self.stores.specs
        return step_workspace(self.model, self._chosen, specs, max_tokens=max_tokens, max_context=max_context)

    def ready(self, memory: ModelMemory, beside: Beside) -> Runnable:
        tables, drafter, work = memory.tables, beside.drafter, self._work
        drafts = self._setup.config.draft_tokens
        if drafts >= memory.budget.max_context:
            raise ConfigError(
                f"--speculative-num-draft-tokens {1 + drafts}: a step tries so many tokens of a request at once, and a "
                f"request has at most {memory.budget.max_context} (--context-length, --max-total-tokens)"
            )
        # Behind the tokens of a step with drafts stands how many of each row's count.
        returns = StepReturns(self._setup.platform, tables.padding_slot * (drafts + 2 if drafts else 1))
        uploader = Uploader(self._setup.platform)
        parts = TokenParts(
            self.model,
            work.logits(LogitsProcessor(self.model.compute_logits, self._launch.config.vocab_size)),
            create_attention_backend(self._chosen, memory.pool, tables.pages, self.stores.specs),
            memory,
            self._setup.step_buffers(memory),
            memory.state_steps(uploader),
            TokenEnd(self._stager, self._sampler, tables, returns, work.choosing),
        )
        hidden = HiddenStates(
            self.model, parts.backend, parts.buffers, uploader, parts.states, all_tokens=work.all_tokens
        )
        tried = self._trying(parts, uploader, parts.states, beside) if drafts else None
        compiled = compiled_steps(
            self._setup,
            self.model,
            parts,
            lambda layers: HiddenStates(layers, parts.backend, parts.buffers, uploader, parts.states),
        )
        captures = TokenCaptures(
            self._setup,
            self._launch,
            self.model,
            parts,
            drafter,
            self._chosen.build,
            tried,
            compiled,
            left_out=work.not_captured or self._setup.tp.not_captured,
        )
        return Runnable(
            eager=work.program(drafter.beside(EagerProgram(hidden, parts.logits, parts.end))),
            warm_ups=self._warm_ups(memory),
            special=[] if tried is None else [tried.program],
            slot_buffers=(
                *self._features.slot_buffers,
                *(() if tried is None else tried.rows.slot_buffers),
                *drafter.slot_buffers,
            ),
            why_exact="" if tried is None else tried.why_exact,
            capture=captures.take,
            capture_late=captures.take_prompts,
        )

    def _warm_ups(self, memory: ModelMemory) -> list[ModelWorkerBatch]:
        """Returns prompts and decode steps of padding, one of each kind that has kernels of its own on this
        platform.
        """
        platform, tables, states = self._setup.platform, memory.tables, memory.states is not None
        prompt = partial(padding_prompt, slot=tables.padding_slot, spaces=tables.num_spaces, states=states)
        decode = partial(padding_decode, slot=tables.padding_slot, spaces=tables.num_spaces, states=states)
        context = memory.budget.max_context
        lengths = sorted({min(length, context) for length in platform.warm_up_prompts})
        rows = sorted({min(count, memory.budget.num_slots) for count in platform.warm_up_rows})
        steps = [
            *(prompt(lengths[0], top_k=top_k) for top_k in WARM_UP_TOP_K),
            *map(prompt, lengths[1:]),
            # What a prompt reads of pages may take a kernel that no whole prompt needs.
            prompt(lengths[0], cached=min(CACHED_TOKENS, context - lengths[0])),
            # The device knows the newest tokens, as in the steps of requests.
            *(replace(decode(count), input_ids=np.full(count, ON_DEVICE, dtype=np.int32)) for count in rows),
        ]
        company = memory.budget.num_slots > 1
        """True if a step may have two rows."""
        if memory.states is not None:
            if company:
                # Rows of one token are computed apart from the others of a step.
                steps.append(beside_one_token(prompt(lengths[0])))
            # To the entry for padding, which no request has.
            copied = partial(no_states, 1, target=memory.states.num_states)
            steps += [replace(prompt(lengths[0]), states=copied(copies=count)) for count in platform.warm_up_copies]
        if tries := self._setup.config.draft_tokens:
            drafts = partial(padding_drafts, 1 + tries, tables.padding_slot, spaces=tables.num_spaces)
            steps += [drafts(), drafts(draws=True)]
            steps += [drafts(prompt=length) for length in lengths if company]
        return steps

    def _trying(self, parts: TokenParts, uploader: Uploader, states: StateStager, beside: Beside) -> TriedDrafts:
        """Returns the parts of this model's steps that try drafts."""
        memory, platform, work = parts.memory, self._setup.platform, self._work
        rows = LateRows(
            memory.tables,
            memory.pool.page_size,
            1 + self._setup.config.draft_tokens,
            uploader,
            read_lengths=platform.steps_are_done,
        )
        backend = create_attention_backend(self._late.names, memory.pool, memory.tables.pages, self.stores.specs)
        hidden = HiddenStates(self.model, backend, parts.buffers, uploader, states, all_tokens=work.all_tokens)
        why_exact = self._late.why_exact or beside.why_exact
        takes = f"steps that try drafts; attention: {self._late.names}" + (
            f"; each waits for the step before, because {why_exact}" if why_exact else ""
        )
        program = work.program(Verification(takes, hidden, parts, uploader, rows, beside.drafter))
        reads = "the host reads how long rows are" if platform.steps_are_done else ""
        return TriedDrafts(program, hidden, rows, uploader, why_exact, reads or why_exact)


@torch.inference_mode()
def warm_sampling(ops: SamplingOps, sampler: ChoosesTokens, stager: StepStager, logits: Tensor) -> None:
    """Samples a token once in each way, so that the kernels are compiled while others still are in the background.
    logits: [1, vocab] zeros.
    """
    for top_k in WARM_UP_TOP_K:
        sampler.sample(logits, stager.stage(padding_prompt(1, 0, top_k=top_k), {}).sampling)
    row = torch.zeros(1, dtype=torch.int64, device=logits.device)
    ops.mask(logits.float(), row, row.new_zeros(1, mask_words(logits.shape[1]), dtype=torch.int32))
