"""mysglang, vLLM and SGLang behind the same four verbs, each with its own defaults but for what makes them comparable.

Comparable: random weights, no tokenizer, prompts as token ids, greedy, fixed lengths, prefix cache on and emptied
before each round, room for 512 requests of 8192 tokens. An engine is imported only when it is asked for.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any, Protocol

CONTEXT = 8192
MAX_REQUESTS = 512
PEER_MEMORY = 0.85
"""Share of the device that the peers may fill; their defaults differ, and the workloads need less."""

Prompts = list[list[int]]


class OfflineEngine(Protocol):
    """An engine in this process (its workers may be others)."""

    version: str

    def generate(self, prompts: Prompts, output_lens: list[int]) -> list[int]:
        """Answer all of them; how many tokens each answer has."""
        ...

    def flush(self) -> None:
        """Forget every cached prefix."""
        ...

    def stop(self) -> None: ...


class Mysglang:
    """mysglang.Engine."""

    def __init__(self, model_path: str, options: dict[str, Any]) -> None:
        from mysglang import Engine

        self.version = importlib.metadata.version("mysglang") if _installed("mysglang") else "working tree"
        defaults = {"context_length": CONTEXT, "log_level": "warning"}
        self._engine = Engine(
            model_path=model_path, load_format="dummy", skip_tokenizer_init=True, **{**defaults, **options}
        )

    def generate(self, prompts: Prompts, output_lens: list[int]) -> list[int]:
        params = [{"max_new_tokens": n, "ignore_eos": True, "temperature": 0.0} for n in output_lens]
        answers = self._engine.generate(input_ids=prompts, sampling_params=params)
        return [len(answer["output_ids"]) for answer in answers]

    def flush(self) -> None:
        self._engine.flush_cache()

    def stop(self) -> None:
        self._engine.shutdown()


class Sglang:
    """sglang.Engine."""

    def __init__(self, model_path: str, options: dict[str, Any]) -> None:
        import sglang

        self.version = sglang.__version__
        defaults = {
            "context_length": CONTEXT,
            "log_level": "error",
            "max_running_requests": MAX_REQUESTS,
            "mem_fraction_static": PEER_MEMORY,
        }
        self._engine = sglang.Engine(
            model_path=model_path, load_format="dummy", skip_tokenizer_init=True, **{**defaults, **options}
        )

    def generate(self, prompts: Prompts, output_lens: list[int]) -> list[int]:
        params = [{"max_new_tokens": n, "ignore_eos": True, "temperature": 0.0} for n in output_lens]
        answers = self._engine.generate(input_ids=prompts, sampling_params=params)
        return [answer["meta_info"]["completion_tokens"] for answer in answers]

    def flush(self) -> None:
        self._engine.flush_cache()

    def stop(self) -> None:
        self._engine.shutdown()


class Vllm:
    """vllm.LLM."""

    def __init__(self, model_path: str, options: dict[str, Any]) -> None:
        import vllm

        self.version = vllm.__version__
        defaults = {
            "max_model_len": CONTEXT,
            "max_num_seqs": MAX_REQUESTS,
            "gpu_memory_utilization": PEER_MEMORY,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
        }
        self._params = vllm.SamplingParams
        self._engine = vllm.LLM(
            model=model_path, load_format="dummy", skip_tokenizer_init=True, **{**defaults, **options}
        )

    def generate(self, prompts: Prompts, output_lens: list[int]) -> list[int]:
        params = [self._params(max_tokens=n, ignore_eos=True, detokenize=False, temperature=0.0) for n in output_lens]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = self._engine.generate(inputs, params, use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in answers]

    def flush(self) -> None:
        self._engine.reset_prefix_cache()

    def stop(self) -> None:
        """Its workers are ended with the process group."""


ENGINES: dict[str, Callable[[str, dict[str, Any]], OfflineEngine]] = {
    "mysglang": Mysglang,
    "vllm": Vllm,
    "sglang": Sglang,
}

ENVIRONMENT = {
    "mysglang": {},
    "vllm": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
    "sglang": {"HF_HUB_OFFLINE": "1"},
}
"""Set for an engine's process: nothing may be looked up or reported while the clock runs."""


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
