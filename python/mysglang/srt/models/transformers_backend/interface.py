"""The interface to transformers: its attention modules call the function that is registered here under one name.

The object that answers calls is set for the time of a forward pass (`attending`): the probe that looks at a model
before it is loaded, the steps of the server, or a plain computation that both are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache

NAME: Final = "mysglang"
"""Name of our attention and of our masks, registered in transformers."""


Rotate: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
"""A function of transformers that rotates queries and keys: (q, k, cos, sin) -> both, rotated."""


class Attends(Protocol):
    """Answers the attention calls of one forward pass."""

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: object, arguments: Mapping[str, Any]
    ) -> Tensor:
        """Attends. q: [1, heads, T, head_dim]; k, v: [1, kv_heads, T, dim]; `mask`: what the model hands over, which
        `mask` made unless the model has another. Returns [1, T, heads, dim of v].
        """
        ...

    def mask(self, sees: Callable[..., Tensor], width: int | None) -> object:
        """Returns an object in place of a mask. sees(0, 0, i, j) says whether query i sees key j; width: of its window,
        if it has one.
        """
        ...

    def turn(self, theirs: Rotate, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Returns rotated queries and keys, as `theirs` computes them; shapes as of `kernels.rotary.turn_heads`."""
        ...

    def embedded(self, x: Tensor) -> Tensor:
        """Returns the embeddings [1, T, hidden_size] of the pass, some of them replaced by given vectors."""
        ...


@runtime_checkable
class NormsSums(Protocol):
    """A norm of ours that can be computed together with the sum of which it is."""

    def sum_and_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (x + residual, norm(x + residual)), both new. x, residual: [T, size]."""
        ...


_current: ContextVar[Attends] = ContextVar("attends")


@contextmanager
def attending(attends: Attends) -> Iterator[None]:
    """Makes `attends` answer attention calls during a forward pass."""
    token = _current.set(attends)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Attends:
    """Returns the object that answers attention calls now."""
    return _current.get()


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object, **arguments: Any
) -> tuple[Tensor, None]:
    return current().attend(module, query, key, value, attention_mask, arguments), None


def _mask(*, mask_function: Callable[..., Tensor], local_size: int | None = None, **_: Any) -> object:
    return current().mask(mask_function, local_size)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)


class NoCache(Cache):  # type: ignore[misc]
    """The cache object of a model: keys and values are stored by the object that answers the attention calls.

    With it transformers makes masks of the step alone, and does not look at positions to find where prompts begin,
    which would wait for the device.
    """

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self.layers: list[Any] = []

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def get_query_offset(self, *_: Any) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, *_: Any) -> tuple[int, int]:
        return query_length, 0
