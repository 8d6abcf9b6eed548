"""Backend: the interface between an interpreter and the model or service that generates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from mysglang.lang.chat_format import ChatFormat
from mysglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from mysglang.lang.prompt import Prompt
from mysglang.lang.sampling import SamplingParams

MetaInfo: TypeAlias = dict[str, Any]
Generated: TypeAlias = tuple[str | list[str], Any]
"""The text and what is known of it; lists of them for n > 1."""


class Backend(ABC):
    """A model that generates. All methods may be called from several threads at once."""

    is_chat_model: bool = False
    """True if the backend answers conversations only; then text cannot be generated in the middle of a message."""

    @abstractmethod
    def get_chat_template(self) -> ChatFormat:
        """Returns how messages become text."""

    @abstractmethod
    def generate(self, prompt: Prompt, params: SamplingParams) -> Generated:
        """Returns the text that follows `prompt`. Raises ValueError for parameters that the backend does not have."""

    @abstractmethod
    def generate_stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[tuple[str, MetaInfo]]:
        """Yields the text that follows `prompt` piece by piece, each with its meta information."""

    def select(
        self, prompt: Prompt, choices: Sequence[str], temperature: float, method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """Returns the choice that follows `prompt` best."""
        raise NotImplementedError(f"{type(self).__name__} cannot tell how likely a text is, which select() needs.")

    def cache_prefix(self, prefix: str) -> None:
        """Prepare for prompts that begin with `prefix`. Backends without a cache have nothing to do."""
        return None

    def commit(self, prompt: Prompt) -> None:
        """Prepare for several continuations of `prompt`. Backends without a cache have nothing to do."""
        return None

    def flush_cache(self, empty_cache: bool = True) -> object:
        """Forget everything that is cached."""
        raise NotImplementedError(f"{type(self).__name__} has no cache that can be flushed.")

    def get_server_info(self) -> dict[str, Any]:
        """Returns the server's options and state."""
        raise NotImplementedError(f"{type(self).__name__} has no server info.")
