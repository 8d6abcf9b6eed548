"""Executor: the models of one rank, their memory, and the programs that run their steps. The worker of every model.

    load models ──> plan memory over the stores of all of them ──> programs, in order ──> a step: the first that covers

It knows no kind of model: which programs there are is the business of generation.py, pooling.py and encoding.py. What
a model does for the one that is served is the business of its own file, as of draft_model.py.
Everything of a step is queued on one stream, so steps take effect in the order in which they come.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence

import torch

from mysglang.srt.distributed.agreement import AllRanks
from mysglang.srt.distributed.groups import Group, OrderedGroup
from mysglang.srt.distributed.pipeline import JoinStages, pipeline_stage
from mysglang.srt.distributed.process_group import tensor_parallel_group
from mysglang.srt.distributed.ranks import RankContext
from mysglang.srt.forward.host_pages import HostPages
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker import WorkerCapacity
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.kernels.op import Numerics, use_ops
from mysglang.srt.model_executor.device_occupation import DeviceOccupation
from mysglang.srt.model_executor.generation import generation
from mysglang.srt.model_executor.graph_capture import graph_sizes
from mysglang.srt.model_executor.kv_setup import make_host_pages
from mysglang.srt.model_executor.live_weights import LiveWeights
from mysglang.srt.model_executor.memory_budget import agreed
from mysglang.srt.model_executor.model_launch import Help, ModelLaunch, Setup
from mysglang.srt.model_executor.model_memory import addresses, allocate, plan_memory, weight_bytes
from mysglang.srt.model_executor.page_identity import page_identity
from mysglang.srt.model_executor.programs import (
    Beside,
    Captured,
    HelpingModel,
    Load,
    LoadHelp,
    Program,
    Runnable,
    ServedModel,
)
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.stages import CopiesInOrder, StepsOnDemand
from mysglang.srt.model_executor.step_rates import step_rates
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.profile import described
from mysglang.srt.utils.hardware import GIB
from mysglang.srt.utils.late_import import at_first_call
from mysglang.srt.utils.logging import measured

logger = logging.getLogger(__name__)


class Executor:
    """Runs the steps of one rank's models on its device (a `forward.worker.Worker`)."""

    def __init__(
        self,
        config: RunnerConfig,
        launches: Sequence[ModelLaunch],
        join: Callable[[RankContext], Group] = tensor_parallel_group,
        join_stages: JoinStages = pipeline_stage,
    ) -> None:
        """Loads the models, plans and allocates memory, and captures graphs. The first model is the served one; the
        others help it, and share its page numbers and its memory.

        Raises ConfigError where the launch's values and this machine do not fit.
        """
        # 1. What this machine is, and which ranks share the work.
        self.platform = platform = platform_named(config.device)
        self.tokens_per_step = 1 + config.draft_tokens
        use_ops(config.numerics)
        tp, stage = SUMS[config.numerics](join(config.ranks)), join_stages(config.ranks)
        every = AllRanks(tp, stage, size=config.ranks.world.size)
        setup = Setup(config, platform, graph_sizes(config, platform), tp=tp, stage=stage)

        # 2. The models: the served one, and those that help it.
        launch, *others = launches
        load, loads = recipe(launch)(setup, launch), [helper(other)(setup, other) for other in others]
        before = platform.memory()
        with measured(setup.startup_times, "load_weight"):
            served, helpers = load(), [load_helper() for load_helper in loads]
        models: list[ServedModel | HelpingModel] = [served, *helpers]
        self.weights = LiveWeights(
            served.model,
            launch.config,
            launch.load,
            platform,
            self._weights_changed,
            ranks=every,
            tp=config.ranks.tp,
        )
        weights = [
            self.weights,
            *(
                LiveWeights(each.model, other.config, other.load, platform, ranks=every)
                for each, other in zip(helpers, others, strict=True)
            ),
        ]

        # 3. Their memory, planned over the stores of all models and agreed among the ranks.
        context = launch.config.context_len
        # No rank looks at free memory while another one still loads.
        every.smallest([0])
        budget = agreed(
            plan_memory(config, platform, models, context=context, graph_sizes=setup.graph_sizes, before=before),
            every,
        )
        with measured(setup.startup_times, "kv_cache_allocation"):
            memories = allocate(budget, models, platform)
            pool = memories[0].pool
            identity = page_identity(launch.config, launch.load, config, pool)
            self.host_pages: HostPages = make_host_pages(config.host_tier, pool, platform, identity, every)

        # 4. The programs that run steps. The helping models come first: the served model's programs run them, too.
        beside = Beside()
        for each, memory in zip(helpers, memories[1:], strict=True):
            beside = each.ready(memory, beside)
        runnable, tables = served.ready(memories[0], beside), memories[0].tables
        self.late_lengths = not runnable.why_exact
        if runnable.why_exact:
            logger.info("A step with drafts waits for the step before, because %s.", runnable.why_exact)
        self.steps = StepPrograms(served, runnable)
        self.slot_buffers = (*tables.declared, *runnable.slot_buffers)
        """Every tensor that the device keeps for slots between steps."""
        logger.debug("The device keeps for each request: %s.", "; ".join(map(str, self.slot_buffers)))
        pools = [memory.pool for memory in memories]
        states = [memory.states for memory in memories if memory.states is not None]
        self.occupation = DeviceOccupation(weights, [*pools, *states], self.steps, platform, every)

        # 5. What the scheduler may know of all that.
        self.device_name = platform.device_name
        self.device_profile = described(platform.profile, platform.device_name)
        logger.debug("Steps are planned with the figures of this device: %s.", self.device_profile)
        self.attention_backend = served.attention
        memory_bytes = {
            "weights": sum(weight_bytes(model.model) for model in models),
            "kvcache": sum(pool.nbytes for pool in pools),
            "graph": self.steps.nbytes,
            "slots": tables.nbytes,
            **({"states": sum(pool.nbytes for pool in states)} if states else {}),
        }
        self.capacity = WorkerCapacity(
            spaces=budget.spaces,
            states=budget.states,
            num_slots=budget.num_slots,
            max_context=budget.max_context,
            vocab_size=launch.config.vocab_size,
            memory_usage={name: nbytes / GIB for name, nbytes in memory_bytes.items()},
            rates=step_rates(
                platform.profile.rates,
                launch.config,
                self.steps.captured,
                tp_size=config.ranks.tp.size,
                weights=every.smallest([weight_bytes(served.model)])[0],
                token_bytes=pools[0].nbytes / max(budget.spaces[0].num_tokens, 1),
            ),
            startup_times=setup.startup_times,
        )
        self.builds = setup.builds
        """Kernels that were not compiled yet when the executor started."""
        self._behind = False

        # 6. Warm up, so that no request waits for what is compiled at first use.
        self.steps.warm_up()
        self._launch = self.steps.run
        if stage.last and not stage.first and platform.steps_are_done:
            on_demand = StepsOnDemand(self.steps.run)
            self._launch, self.host_pages = on_demand.launch, CopiesInOrder(self.host_pages, on_demand)

    @property
    def programs(self) -> Mapping[str, str]:
        """Name of each program -> the steps that it takes at the moment, or why it is not used."""
        return self.steps.described()

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queues the step. On CUDA it returns while the device still works. On a CPU it returns when the step is done,
        or at once if another stage must compute it first.
        """
        return self._launch(batch)

    def catch_up(self, *, idle: bool) -> None:
        """Uses kernels that have been compiled since the start. Called between two steps. If nothing runs (`idle`),
        the steps that waited for them are captured, which takes seconds.
        """
        for build in self.builds:
            self._behind |= build.catch_up()
        if self._behind and idle and self.steps.complete:
            self._behind = False
            self.steps.extend()
            self.steps.warm_up()

    def _weights_changed(self) -> None:
        self.steps.weights_changed()


class StepPrograms:
    """The ordered programs of the served model, and their captures, which know addresses."""

    def __init__(self, served: ServedModel, runnable: Runnable) -> None:
        self._served = served
        self._runnable = runnable
        self.captured = Captured()
        """The programs that know addresses, at the moment."""
        self._captured_over: tuple[int, ...] | None = None
        """Addresses of the weights that the captures know; None: there are no captures."""
        self._always = (*runnable.special, runnable.eager)
        self._programs: tuple[Program, ...] = self._always
        self.restore()
        # /server_info says, too, which programs are not used and why.
        used = [program.name for program in self._programs]
        for name, line in self.described().items():
            logger.log(logging.INFO if name in used else logging.DEBUG, "Program %s: %s.", name, line)

    @property
    def complete(self) -> bool:
        """False while the captures are dropped."""
        return self._captured_over is not None

    @property
    def nbytes(self) -> int:
        """Device memory of the captures."""
        return self.captured.nbytes

    def described(self) -> dict[str, str]:
        """Maps the name of each program to a description of its steps, or to the reason why it is not used."""
        return {**dict(self.captured.lines), **{program.name: program.takes for program in self._always}}

    @torch.inference_mode()
    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queues the step with the first program that covers it."""
        return self._covering(batch).run(batch)

    def _covering(self, batch: ModelWorkerBatch) -> Program:
        for program in self._programs:
            if program.covers(batch):
                return program
        raise AssertionError("the last program covers every step")

    def drop(self) -> None:
        """Drops the captured graphs, and with them all addresses. No step may be launched until `restore`."""
        self.captured, self._captured_over = Captured(), None
        self._programs = self._always
        gc.collect()  # a graph that sits in a cycle would keep its memory

    def restore(self) -> None:
        """Captures all graphs again."""
        self.captured = self._runnable.capture()
        self._captured_over = addresses(self._served.model)
        self._arrange()

    def extend(self) -> None:
        """Captures the graphs that wait for kernels, if some do. Those that are there stay."""
        if self.captured.waits:
            self.captured.add(self._runnable.capture_late())
            self._arrange()

    def _arrange(self) -> None:
        captured, runnable = self.captured, self._runnable
        self._programs = (*captured.first, *runnable.special, *captured.programs, runnable.eager)

    def weights_changed(self) -> None:
        """Captures graphs again if weights have moved to other addresses."""
        if self._captured_over is not None and self._captured_over != addresses(self._served.model):
            self.drop()
            self.restore()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs all kernels that are compiled at first use. So no request waits for the compiler, and a kernel that
        cannot be compiled fails here.
        """
        for batch in self._runnable.warm_ups:
            program = self._covering(batch)
            program.run(batch).complete()
            if program not in self._always:
                # Some step of this shape runs eagerly all the same: with log-probabilities of its prompt, say.
                next(program for program in self._always if program.covers(batch)).run(batch).complete()


SUMS: dict[Numerics, Callable[[Group], Group]] = {"fastest": lambda group: group, "invariant": OrderedGroup}
"""How ranks add up their parts."""

HELPERS: dict[Help, Callable[[Setup, ModelLaunch], LoadHelp]] = {
    "drafts": at_first_call("mysglang.srt.model_executor.draft_model:drafting"),
}

VECTORS = "mysglang.srt.model_executor.vectors"

_encoder: Callable[[Setup, ModelLaunch], Load] = at_first_call(f"{VECTORS}:encoder")
_pooling_decoder: Callable[[Setup, ModelLaunch], Load] = at_first_call(f"{VECTORS}:pooling_decoder")
_bidirectional_decoder: Callable[[Setup, ModelLaunch], Load] = at_first_call(f"{VECTORS}:bidirectional_decoder")


def helper(launch: ModelLaunch) -> Callable[[Setup, ModelLaunch], LoadHelp]:
    """Returns the function that makes a model which helps the served one."""
    assert launch.helps is not None, "there is one served model, the first"
    return HELPERS[launch.helps]


def recipe(launch: ModelLaunch) -> Callable[[Setup, ModelLaunch], Load]:
    """Returns the function that loads and serves a model of this kind."""
    if launch.config.encoder is not None:
        return _encoder
    if launch.config.pooling is None:
        return generation
    return _bidirectional_decoder if launch.config.decodes_both_ways else _pooling_decoder
