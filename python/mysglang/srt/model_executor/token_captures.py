"""TokenCaptures: the captured programs of a model that generates.

decode steps      the kernel of whole steps, and layer by layer
steps with drafts
steps of prompts  beside decoding rows, and alone
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mysglang.srt.layers.attention.graph import MixedCapture, decode_capture, mixed_capture, prompt_capture
from mysglang.srt.layers.attention.stand_in import KernelBuild
from mysglang.srt.model_executor.compiled_decode import CompiledSteps
from mysglang.srt.model_executor.decode_graph_runner import DecodeGraphRunner
from mysglang.srt.model_executor.draft_graph_runner import DraftGraphRunner
from mysglang.srt.model_executor.graph_capture import MOST_DECODING, mixed_sizes, prompt_sizes, why_no_graphs
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.late_rows import LateRows
from mysglang.srt.model_executor.memory_budget import draft_sizes
from mysglang.srt.model_executor.mixed_graph_runner import MixedGraphRunner
from mysglang.srt.model_executor.model_launch import ModelLaunch, Setup
from mysglang.srt.model_executor.model_memory import weight_bytes
from mysglang.srt.model_executor.programs import (
    CAPTURED_DECODE,
    CAPTURED_MIXED,
    CAPTURED_PROMPTS,
    CAPTURED_VERIFICATION,
    WHOLE_STEP,
    Captured,
    DoesNotCover,
    Drafter,
    Program,
)
from mysglang.srt.model_executor.prompt_graph_runner import PromptGraphRunner
from mysglang.srt.model_executor.step_program import LayerByLayer, StepProgram, whole_steps
from mysglang.srt.model_executor.token_end import TokenParts
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.platforms.interface import CannotCapture
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.utils.logging import measured

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TriedDrafts:
    """Parts of the programs that try drafts."""

    program: Program
    """Runs such a step eagerly."""
    hidden: HiddenStates
    rows: LateRows
    uploader: Uploader
    why_exact: str
    """Why the host must know how long all rows are, a clause; empty: it need not."""
    not_captured: str
    """Why such steps are not captured, a clause; empty: they may be."""


class TokenCaptures:
    """Makes the captured programs of a model that generates, as often as its weights or its memory move."""

    def __init__(
        self,
        setup: Setup,
        launch: ModelLaunch,
        model: TokenModel,
        parts: TokenParts,
        drafter: Drafter,
        build: KernelBuild,
        tried: TriedDrafts | None,
        compiled: CompiledSteps,
        *,
        left_out: str = "",
    ) -> None:
        """`build`: kernels without which prompts are not captured. `tried`: None if no drafts are tried. `left_out`:
        why there are no captures at all, a clause; empty: as the model and the device allow.
        """
        self._tried = tried
        self._compiled = compiled
        self._left_out = left_out
        self._setup = setup
        self._launch = launch
        self._model = model
        self._parts = parts
        self._drafter = drafter
        self._build = build
        self._specs = model.attention_specs()
        layers, plan = len(self._specs) + len(model.state_specs()), launch.config.decoder
        # A token goes through a few of a layer's experts.
        used = 1.0 if plan is None else min(1.0, plan.used_share(launch.config.hidden_size))
        layer_weights = int(used * weight_bytes(model)) // launch.dtype.itemsize // layers
        context = parts.memory.budget.max_context
        self._prompt_sizes = prompt_sizes(setup.config, setup.platform, context, layer_weights)

    def take(self) -> Captured:
        """Captures all declared programs. A capture that fails ends the start, unless the platform reports that it
        cannot capture such a step.
        """
        if self._left_out:
            drafts = (CAPTURED_VERIFICATION,) if self._tried else ()
            names = (WHOLE_STEP, CAPTURED_DECODE, CAPTURED_MIXED, CAPTURED_PROMPTS, *drafts)
            return Captured(left_out=dict.fromkeys(names, self._left_out))
        captured = self._all_of(
            {
                CAPTURED_DECODE: self._decode_steps,
                CAPTURED_PROMPTS: self._prompts,
                CAPTURED_VERIFICATION: self._verification,
            }
        )
        captured.programs[:0] = map(self._drafter.beside, self._compiled.programs)
        captured.left_out |= self._compiled.left_out
        return captured

    def take_prompts(self) -> Captured:
        """Captures the programs of prompts alone, as `take` does."""
        if self._left_out:
            return Captured(left_out={CAPTURED_PROMPTS: self._left_out})
        return self._all_of({CAPTURED_PROMPTS: self._prompts})

    def _all_of(self, captures: Mapping[str, Callable[[Captured], None]]) -> Captured:
        captured = Captured()
        for name, capture in captures.items():
            try:
                capture(captured)
            except CannotCapture as error:
                logger.warning("The program %s is left out, so its steps run without a graph: %s.", name, error)
                captured.left_out[name] = str(error)
        captured.programs = [self._drafter.beside(program) for program in captured.programs]
        return captured

    def _decode_steps(self, captured: Captured) -> None:
        """Captures decode steps: the kernel's graphs and those layer by layer, in one pool of memory. The largest is
        captured first.
        """
        setup, memory = self._setup, self._parts.memory
        backend, hidden = decode_capture(self._parts.backend), setup.config.enable_return_hidden_states
        if not setup.graph_sizes or backend is None:
            reason = why_no_graphs(setup.config, setup.platform) or "its attention backend cannot be captured"
            captured.left_out |= {WHOLE_STEP: reason, CAPTURED_DECODE: reason}
            return
        whole: Mapping[int, StepProgram] = {}
        try:
            self._check_whole_steps()
            whole = whole_steps(self._model, memory.pool, memory.tables.pages, setup.graph_sizes)
        except DoesNotCover as error:
            captured.left_out[WHOLE_STEP] = str(error)
        compiled = self._compiled
        general = LayerByLayer(self._model, self._parts.logits, backend)
        small = LayerByLayer(compiled.to_capture or self._model, self._parts.logits, backend)
        sizes = [size for size in setup.graph_sizes if size not in whole]
        layered = {size: small if size <= compiled.most_rows else general for size in sizes}
        with measured(setup.startup_times, "cuda_graph_decode"), setup.platform.recorder() as recorder:
            made = [
                DecodeGraphRunner(name, steps, self._parts, recorder, keep_hidden=hidden)
                for name, steps in ((CAPTURED_DECODE, layered), (WHOLE_STEP, whole))
                if steps
            ]
            captured.programs += reversed(made)
            captured.decode_rows = setup.graph_sizes[-1]
            captured.nbytes += recorder.nbytes

    def _verification(self, captured: Captured) -> None:
        """Captures steps that try drafts, in a pool of memory of their own."""
        setup, tried = self._setup, self._tried
        if tried is None:
            return
        sizes = draft_sizes(setup.graph_sizes, tried.rows.width)
        if reason := why_no_graphs(setup.config, setup.platform) or tried.not_captured:
            captured.left_out[CAPTURED_VERIFICATION] = reason
        elif sizes:
            with measured(setup.startup_times, "cuda_graph_drafts"), setup.platform.recorder() as recorder:
                made = DraftGraphRunner(
                    sizes, tried.hidden, self._parts, tried.rows, self._drafter, tried.uploader, recorder
                )
                captured.first.append(made)
                captured.nbytes += recorder.nbytes

    def _mixed_sizes(self) -> tuple[tuple[int, int], ...]:
        """Returns the sizes of captured steps of prompts beside decoding rows."""
        running = self._setup.config.max_running_requests or MOST_DECODING
        return mixed_sizes(self._prompt_sizes, min(max(self._setup.graph_sizes, default=0), running))

    def _mixed_left_out(self) -> str:
        """Returns why no step of prompts beside decoding rows is captured; empty if some are."""
        if self._setup.config.draft_tokens:
            return "decoding rows have drafts"
        if not self._mixed_sizes():
            return "the captured steps with prompts are too short"
        able = mixed_capture(self._parts.backend, self._specs, 1) is not None
        return "" if able else "its attention backend cannot be captured with prompts and decoding rows in one step"

    def _mixed_attention(self, decoding: int) -> MixedCapture:
        found = mixed_capture(self._parts.backend, self._specs, decoding)
        assert found is not None, "it was asked before"
        return found

    def _check_whole_steps(self) -> None:
        """Raises DoesNotCover if the launch's options ask for something in every step that the kernel does not do."""
        config = self._setup.config
        if self._parts.memory.states is not None:
            raise DoesNotCover("its layers keep a state for each request")
        if config.disable_persistent_decode:
            raise DoesNotCover("--disable-persistent-decode was given")
        if config.enable_return_hidden_states:
            raise DoesNotCover("it keeps no hidden states, and --enable-return-hidden-states was given")

    def _why_no_prompts(self) -> str:
        """Returns why no steps with prompts are captured now, whatever the attention backend; empty: they may be."""
        if not self._prompt_sizes:
            return why_no_graphs(self._setup.config, self._setup.platform) or "--disable-prefill-cuda-graph was given"
        return f"not before {self._build.waits_for}" if self._build.waits_for else ""

    def _prompts(self, captured: Captured) -> None:
        """Captures steps of prompts, alone and beside decoding rows, in one pool of memory."""
        setup, reason = self._setup, self._why_no_prompts()
        attention = None if reason else prompt_capture(self._parts.backend, self._specs)
        if attention is None:
            reason = reason or "its attention backend cannot be captured with these layers and KV pages"
            captured.left_out |= dict.fromkeys((CAPTURED_MIXED, CAPTURED_PROMPTS), reason)
            if self._prompt_sizes and self._build.waits_for:
                # Steps are planned as they will be then.
                captured.waits = True
                captured.prompt_tokens = self._prompt_sizes
                captured.mixed_steps = () if setup.config.draft_tokens else self._mixed_sizes()
            return
        if reason := self._mixed_left_out():
            captured.left_out[CAPTURED_MIXED] = reason
        with measured(setup.startup_times, "cuda_graph_prefill"), setup.platform.recorder() as recorder:
            if not reason:
                captured.mixed_steps = self._mixed_sizes()
                runner = MixedGraphRunner(captured.mixed_steps, self._mixed_attention, self._parts, recorder)
                captured.programs.append(runner)
            captured.programs.append(PromptGraphRunner(self._prompt_sizes, attention, self._parts, recorder))
            captured.prompt_tokens = self._prompt_sizes
            captured.nbytes += recorder.nbytes
