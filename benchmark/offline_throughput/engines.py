"""mysglang, vLLM and SGLang behind the same four verbs, each with its own defaults but for what makes them comparable.

Comparable: random weights, no tokenizer, prompts as token ids, fixed lengths, the same sampling options, prefix cache
on and emptied before each round, room for 512 requests. An engine is imported only when it is asked for.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from offline_throughput.workloads import Workload

MAX_REQUESTS = 512
ALONE = 0.85
"""Share of the device for a peer that is alone on it; the peers' defaults differ, and the workloads need less."""
OURS = "mysglang"
HALF_WIDTH = 0.02 * 3**0.5
"""mysglang's dummy weights are uniform within so much of their centre, which is 1 for norms and otherwise 0."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Arguments that every engine is started with."""

    model_path: str
    context: int
    """Most tokens of a request."""
    memory: float | None
    """Share of the device that the engine may fill, or None for its own default."""
    options: dict[str, Any]
    """Keyword arguments for the engine's constructor, over all others."""


class OfflineEngine(Protocol):
    """An engine in this process (its workers may be others)."""

    version: str
    """Its version and, where it has several, the attention backend that it uses."""

    def generate(self, work: Workload) -> list[int]:
        """Answers all requests. Returns how many tokens each answer has."""
        ...

    def flush(self) -> None:
        """Forget every cached prefix."""
        ...

    def stop(self) -> None: ...


def srt_params(work: Workload) -> list[dict[str, Any]]:
    """Sampling parameters in SGLang's form, which mysglang shares."""
    return [{"max_new_tokens": n, "ignore_eos": True, **work.sampling} for n in work.output_lens]


def srt_logprobs(work: Workload) -> dict[str, Any]:
    """Arguments that ask for log-probabilities in SGLang's form."""
    return {"return_logprob": True, "top_logprobs_num": work.top_logprobs} if work.top_logprobs is not None else {}


def lengths(answers: Iterable[dict[str, Any]]) -> list[int]:
    return [answer["meta_info"]["completion_tokens"] for answer in answers]


class Mysglang:
    """mysglang.Engine."""

    def __init__(self, seat: Seat) -> None:
        from mysglang import Engine

        self.version = importlib.metadata.version("mysglang") if _installed("mysglang") else "working tree"
        defaults = {"context_length": seat.context, "log_level": "warning", "mem_fraction_static": seat.memory}
        self._engine = Engine(
            model_path=seat.model_path, load_format="dummy", skip_tokenizer_init=True, **{**defaults, **seat.options}
        )

    def generate(self, work: Workload) -> list[int]:
        answers = self._engine.generate(input_ids=work.prompts, sampling_params=srt_params(work), **srt_logprobs(work))
        return lengths(answers)

    def flush(self) -> None:
        self._engine.flush_cache()

    def stop(self) -> None:
        self._engine.shutdown()


class Sglang:
    """sglang.Engine, with weights that are drawn as mysglang draws them (`fill_sglang_models_as_ours`)."""

    def __init__(self, seat: Seat) -> None:
        import sglang
        import torch

        free, total = torch.cuda.mem_get_info()
        defaults = {
            "context_length": seat.context,
            "log_level": "error",
            "max_running_requests": MAX_REQUESTS,
            # Its share is of the memory that is free when it starts.
            "mem_fraction_static": min(0.9, (seat.memory or ALONE) * total / free),
        }
        self._engine = sglang.Engine(
            model_path=seat.model_path, load_format="dummy", skip_tokenizer_init=True, **{**defaults, **seat.options}
        )
        self.version = f"{sglang.__version__} ({self._engine.server_args.attention_backend})"

    def generate(self, work: Workload) -> list[int]:
        answers = self._engine.generate(input_ids=work.prompts, sampling_params=srt_params(work), **srt_logprobs(work))
        return lengths(answers)

    def flush(self) -> None:
        self._engine.flush_cache()

    def stop(self) -> None:
        self._engine.shutdown()


class Vllm:
    """vllm.LLM, with weights that are drawn as mysglang draws them.

    Its own dummy values, norms among them, are within 0.001 of zero. With these, steps of DeepSeek-V2-Lite took less
    time than reading all experts takes. So many rows must have chosen the same few experts.
    """

    def __init__(self, seat: Seat) -> None:
        import vllm
        from vllm.model_executor.model_loader import dummy_loader

        # The process that holds the model is forked from this one, so it finds this object, too.
        dummy_loader.initialize_dummy_weights = FillsAsOurs()
        self.version = vllm.__version__
        defaults = {
            "max_model_len": seat.context,
            "max_num_seqs": MAX_REQUESTS,
            "gpu_memory_utilization": seat.memory or ALONE,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
        }
        self._params = vllm.SamplingParams
        self._engine = vllm.LLM(
            model=seat.model_path, load_format="dummy", skip_tokenizer_init=True, **{**defaults, **seat.options}
        )

    def generate(self, work: Workload) -> list[int]:
        shared: dict[str, Any] = {"ignore_eos": True, "detokenize": False, "logprobs": work.top_logprobs}
        params = [self._params(max_tokens=n, **shared, **work.sampling) for n in work.output_lens]
        inputs = [{"prompt_token_ids": prompt} for prompt in work.prompts]
        answers = self._engine.generate(inputs, params, use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in answers]

    @property
    def model_runner(self) -> Any:
        """vLLM's object that runs the model, if it is in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`)."""
        return self._engine.llm_engine.model_executor.driver_worker.worker.model_runner

    def flush(self) -> None:
        self._engine.reset_prefix_cache()

    def stop(self) -> None:
        """Its workers are ended with the process group."""


ENGINES: dict[str, Callable[[Seat], OfflineEngine]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "before": Mysglang,
    "mysglang": Mysglang,
}
"""In the order in which they start. `before` is mysglang from another checkout."""


def share(engine: str, together: list[str]) -> float | None:
    """Returns the share of the device for one of several engines on it. mysglang starts last and takes what is left."""
    if len(together) == 1 or engine == OURS:
        return None
    return ALONE / len(together)


ENVIRONMENT = {
    "mysglang": {},
    "before": {},
    "vllm": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
    "sglang": {"HF_HUB_OFFLINE": "1"},
}
"""Set for an engine's process: nothing may be looked up or reported while the clock runs."""


def fill_sglang_models_as_ours() -> None:
    """Makes SGLang's loader draw weights as mysglang does. SGLang's worker calls it, since it is spawned, not forked.

    SGLang's own values are those of vLLM, which `Vllm` describes.
    """
    from sglang.srt.model_loader import loader

    fill = FillsAsOurs()

    def fill_model(model: Any) -> None:
        for module in model.modules():
            fill(module)

    loader.initialize_dummy_weights = fill_model


class FillsAsOurs:
    """Fills the weights of a peer's modules as `fill_with_dummy_weights` of mysglang does those of its models.

    vLLM's loader calls it for the model and then for each module inside. A module fills only its own weights, because
    it knows whether it is a norm, and one generator draws all of them, because layers with the same numbers would be
    no model.
    """

    def __init__(self) -> None:
        self._generator: Any = None

    def __call__(self, module: Any, *_: Any) -> None:
        import torch

        centre = 1.0 if "norm" in type(module).__name__.lower() else 0.0
        for values in module.parameters(recurse=False):
            if self._generator is None:
                self._generator = torch.Generator(values.device).manual_seed(0)
            if torch.is_floating_point(values):
                values.data.uniform_(centre - HALF_WIDTH, centre + HALF_WIDTH, generator=self._generator)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
