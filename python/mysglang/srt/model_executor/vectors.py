"""Models that make one vector of each prompt: PoolingModel, a decoder over pages; EncodingModel, an encoder; and
BidirectionalModel, a decoder whose tokens see both directions.

If a decoder's vector depends on the last token only, prompts may come in chunks and begin with a cached prefix; else
the scheduler sends them whole. Prompts of the other two come whole, and nothing is kept of them. The vectors of a step
are copied at launch, and read when the step is complete.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.factory import create_attention_backend, refuse_backends
from mysglang.srt.layers.attention.whole_prompts import WholePromptBackend
from mysglang.srt.layers.encoder_attention import PromptGroups, PromptLayout
from mysglang.srt.layers.pooler import Pooler
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.model_launch import ModelLaunch, Setup, step_workspace
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.padding import padding_prompt
from mysglang.srt.model_executor.programs import EAGER, Beside, Load, Runnable
from mysglang.srt.model_executor.step_columns import Indices, positions_of
from mysglang.srt.model_executor.step_output import to_host
from mysglang.srt.models.encoder_model import EncoderBatch, EncoderModel
from mysglang.srt.models.pooling_decoder import PoolingDecoder
from mysglang.srt.platforms.interface import Platform
from mysglang.srt.platforms.upload import Uploader


def pooling_decoder(setup: Setup, launch: ModelLaunch) -> Load:
    """Returns a decoder that makes vectors. Raises ConfigError for what cannot run here."""
    return lambda: PoolingModel(
        setup, launch, setup.load(PoolingDecoder, launch, partial(setup.check_attention, launch))
    )


class PoolingModel:
    """A decoder that turns prompts into vectors or scores (a `programs.ServedModel`)."""

    def __init__(self, setup: Setup, launch: ModelLaunch, model: PoolingDecoder) -> None:
        self.model = model
        self.stores = setup.stores(launch, model.attention_specs(), model.state_specs())
        self._setup = setup
        self._launch = launch
        self._chosen = setup.choose_attention(self.stores, launch.dtype)

    @property
    def attention(self) -> str:
        return str(self._chosen)

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        specs = self.stores.specs
        return step_workspace(self.model, self._chosen, specs, max_tokens=max_tokens, max_context=max_context)

    def ready(self, memory: ModelMemory, beside: Beside) -> Runnable:
        pooling, tables = self._launch.config.pooling, memory.tables
        assert pooling is not None, "the model pools"
        uploader = Uploader(self._setup.platform)
        backend = create_attention_backend(self._chosen, memory.pool, tables.pages, self.stores.specs)
        eager = PoolingProgram(
            HiddenStates(self.model, backend, self._setup.step_buffers(memory), uploader, memory.state_steps(uploader)),
            Pooler(pooling.mode, normalize=pooling.normalize, head=self.model.head),
            self._setup.platform,
            whole_prompts=pooling.needs_whole_prompts,
        )
        states, context = memory.states is not None, memory.budget.max_context
        return Runnable(
            eager,
            [
                padding_prompt(min(length, context), tables.padding_slot, spaces=tables.num_spaces, states=states)
                for length in self._setup.platform.warm_up_prompts
            ],
        )


class PoolingProgram:
    """Implements `programs.Program`: all steps, eagerly."""

    name = EAGER
    takes = "every step"

    def __init__(self, hidden: HiddenStates, pooler: Pooler, platform: Platform, *, whole_prompts: bool) -> None:
        self._hidden = hidden
        self._pooler = pooler
        self._platform = platform
        self._whole_prompts = whole_prompts

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return True

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        hidden, columns = self._hidden.of(batch, all_tokens=self._whole_prompts)
        if not batch.yields.any():
            return queue_vectors(batch, None, self._platform)
        if self._whole_prompts:
            vectors = self._pooler.rows(hidden, columns["extend_lens"].long())
        else:
            vectors = self._pooler.tokens(hidden.index_select(0, columns["logits_rows"]))
        return queue_vectors(batch, vectors, self._platform)


def bidirectional_decoder(setup: Setup, launch: ModelLaunch) -> Load:
    """Returns a decoder whose tokens see both directions, and which makes vectors. It uses torch's attention. Raises
    ConfigError for options that it has no use for.
    """
    refuse_backends(setup.asked_backends, "it does not attend to later tokens, as this model does")
    if setup.config.numerics != "fastest":
        raise ConfigError(
            "--enable-deterministic-inference: attention in both directions pads prompts to those beside them, which "
            "may change how numbers are rounded. Leave it out."
        )
    return lambda: BidirectionalModel(setup, launch, setup.load(PoolingDecoder, launch))


class BidirectionalModel:
    """A decoder whose tokens see both directions (a `programs.ServedModel`). It keeps nothing of a prompt."""

    attention = "sdpa"

    def __init__(self, setup: Setup, launch: ModelLaunch, model: PoolingDecoder) -> None:
        self.model = model
        self.stores = ModelStores((), launch.dtype)
        self._setup = setup
        self._launch = launch

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        return self.model.workspace(max_tokens)

    def ready(self, memory: ModelMemory, beside: Beside) -> Runnable:
        pooling = self._launch.config.pooling
        assert pooling is not None, "the model pools"
        pooler = Pooler(pooling.mode, normalize=pooling.normalize, head=self.model.head)
        eager = BidirectionalProgram(self.model, pooler, self._setup.platform)
        length = min(self._setup.platform.warm_up_prompts[0], memory.budget.max_context)
        return Runnable(eager, [padding_prompt(length, memory.tables.padding_slot)])


class BidirectionalProgram:
    """Implements `programs.Program`: all steps, eagerly."""

    name = EAGER
    takes = "every step"

    def __init__(self, model: PoolingDecoder, pooler: Pooler, platform: Platform) -> None:
        self._model = model
        self._pooler = pooler
        self._platform = platform
        self._uploader = Uploader(platform)
        self._backend = WholePromptBackend(self._uploader)

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return True

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        assert bool(batch.yields.all()) and batch.embeds is None, "prompts come whole, as tokens"
        up = self._uploader.upload(
            {
                "input_ids": batch.input_ids.astype(np.int64),
                "positions": positions_of(batch),
                "slots": batch.slots.astype(np.int64),
                "seq_lens": batch.seq_lens.astype(np.int32),
                "extend_lens": batch.extend_lens.astype(np.int32),
            }
        )
        # Nothing is stored, so where it would be does not matter.
        locs = up["positions"]
        step = ForwardBatch(
            mode=batch.mode,
            host=batch,
            input_ids=up["input_ids"],
            positions=up["positions"],
            slots=up["slots"],
            seq_lens=up["seq_lens"],
            extend_lens=up["extend_lens"],
            out_cache_locs=(locs,),
            attn_backend=self._backend,
            attn_metadata=None,
        )
        step.attn_metadata = self._backend.plan(step)
        hidden = self._model(step)
        return queue_vectors(batch, self._pooler.rows(hidden, up["extend_lens"].long()), self._platform)


def encoder(setup: Setup, launch: ModelLaunch) -> Load:
    """Loads an encoder. It uses torch's attention, whatever option is given for decoders."""
    return lambda: EncodingModel(setup, launch, setup.load(EncoderModel, launch))


class EncodingModel:
    """An encoder that turns prompts into vectors or scores (a `programs.ServedModel`)."""

    attention = "sdpa"

    def __init__(self, setup: Setup, launch: ModelLaunch, model: EncoderModel) -> None:
        self.model = model
        self.stores = ModelStores((), launch.dtype)
        self._setup = setup
        self._launch = launch

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        return 0

    def ready(self, memory: ModelMemory, beside: Beside) -> Runnable:
        pooling = self._launch.config.pooling
        assert pooling is not None, "an encoder does not generate"
        pooler = Pooler(pooling.mode, normalize=pooling.normalize, head=self.model.head)
        length = min(self._setup.platform.warm_up_prompts[0], memory.budget.max_context)
        eager = EncodingProgram(self.model, pooler, self._setup.platform)
        return Runnable(eager, [padding_prompt(length, memory.tables.padding_slot)])


class EncodingProgram:
    """Implements `programs.Program`: all steps, eagerly."""

    name = EAGER
    takes = "every step"

    def __init__(self, model: EncoderModel, pooler: Pooler, platform: Platform) -> None:
        self._model = model
        self._pooler = pooler
        self._platform = platform
        self._uploader = Uploader(platform)

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return True

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        assert bool(batch.yields.all()) and bool((batch.seq_lens == batch.extend_lens).all()), "prompts come whole"
        lens = batch.extend_lens
        layout = PromptLayout.of(lens.tolist())
        positions = positions_of(batch)
        up = self._uploader.upload(
            {
                "input_ids": batch.input_ids.astype(np.int64),
                "positions": positions,
                "token_types": token_types(batch, positions),
                "lens": lens.astype(np.int64),
                "tokens": layout.tokens,
                "real": layout.real,
                "places": layout.places,
            }
        )
        groups = PromptGroups(layout.groups, up["tokens"], up["real"], up["places"])
        hidden = self._model(EncoderBatch(up["input_ids"], up["positions"], up["token_types"], groups))
        return queue_vectors(batch, self._pooler.rows(hidden, up["lens"]), self._platform)


def token_types(batch: ModelWorkerBatch, positions: Indices) -> Indices:
    """Returns 1 for the tokens of a pair's second text, else 0, [T]."""
    if batch.second_texts is None:
        return np.zeros(batch.num_tokens, dtype=np.int64)
    seconds = np.repeat(batch.second_texts, batch.extend_lens)
    types: Indices = (positions >= seconds).astype(np.int64)
    return types


def queue_vectors(batch: ModelWorkerBatch, vectors: Tensor | None, platform: Platform) -> BatchResult:
    """Returns the result of the step that was queued last. vectors: [rows that yield, width] float32; None if none
    does.
    """
    counts = batch.yields.astype(np.int32)
    tokens = np.zeros(int(counts.sum()), dtype=np.int32)
    if vectors is None:
        return BatchResult(lambda: StepOutput(tokens=tokens, counts=counts))
    on_host = to_host(vectors)
    done = platform.record_event()

    def finish() -> StepOutput:
        done.synchronize()
        return StepOutput(tokens=tokens, counts=counts, vectors=on_host.numpy())

    return BatchResult(finish)
