"""Protocols of attention backends whose steps can be captured and replayed, in addition to `AttentionBackend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy.typing as npt
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch

HostColumns: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Arrays of one step on the host, by name."""

NO_COLUMNS: HostColumns = {}

Column = TypeVar("Column")


class FillsColumns(Protocol):
    """Adds arrays of its own to the upload of captured steps."""

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        """Write a step into the arrays, which still hold the values of an earlier step of this size.

        They are views of the upload buffer. Rows beyond the batch's are padding, of length 1.
        """
        ...


class GraphColumns(FillsColumns, Protocol):
    """A source of arrays that go with the one upload of a captured decode step."""

    def graph_columns(self, size: int) -> HostColumns:
        """Returns names, shapes and dtypes (contents: padding) of what is added to the upload of a step of `size` rows.

        The tensors that arrive are `ForwardBatch.attn_columns`, under the same names, at fixed addresses.
        """
        ...


class OpensGraphs(Protocol):
    """The part of a captured step's attention that steps of all kinds have."""

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        """Returns metadata for all steps of this batch's shape. `batch.host` has the lengths of the first step."""
        ...

    def begin_step(self, batch: ForwardBatch) -> None:
        """Queues the work on the device that depends only on the batch's tensors."""
        ...


@runtime_checkable
class GraphAttentionBackend(GraphColumns, OpensGraphs, AttentionBackend, Protocol):
    """Attention of decode steps whose tensors keep their addresses while their contents change.

    graph_columns   once for each batch size: arrays of its own that the backend wants on the device in every step
    open_graph      once for each batch size, before the capture
    begin_step      captured: the work on the device that all layers of a step share
    forward         captured
    fill_columns    before each replay: the contents of those arrays, which go with the step's one upload
    plan_replay     before each replay: any other work on the host
    """

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        """Plans a replay for rows of these lengths; padding rows have length 1. It may use `seq_lens` only: the tensors
        on the device may not have their new contents yet.
        """
        ...

    def covers(self, seq_lens: Ints) -> bool:
        """True if the buffers for replays are large enough for these rows."""
        ...


@runtime_checkable
class LateBackend(AttentionBackend, Protocol):
    """A backend that plans steps that try drafts on the host, for rows as long as they may be at most.

    takes_drafts    whether a step is of this kind
    pays            whether it is worth planning captured steps of some size
    late_columns    once for each size of captured steps: what such a step adds to the upload
    open_late       captured: the step over these columns
    fill_late       before each replay: their contents
    """

    def takes_drafts(self, host: ModelWorkerBatch) -> bool:
        """True if the backend attends in this step that is no DECODE step."""
        ...

    def pays(self, rows: int) -> bool:
        """True if captured steps of so many rows take less time with it than with kernels that plan nothing."""
        ...

    def late_columns(self, rows: int, width: int) -> HostColumns:
        """Returns names, shapes and dtypes for `rows` rows with room for `width` tokens each."""
        ...

    def open_late(self, batch: ForwardBatch) -> AttentionMetadata:
        """Metadata for all steps of this batch's shape, over `batch.attn_columns`."""
        ...

    def fill_late(self, batch: ModelWorkerBatch, width: int, columns: HostColumns) -> None:
        """Write the plan of a step into arrays like `late_columns`. Rows beyond the batch's are padding."""
        ...


class LateColumns:
    """The columns of one backend in the upload of captured steps that try drafts (a `GraphColumns`): none if it plans
    nothing on the host.
    """

    def __init__(self, backend: AttentionBackend, width: int, prefix: str) -> None:
        """`width`: tokens for which each row has room. `prefix`: how the names of the columns begin, since a step may
        have those of several backends.
        """
        self._backend = backend if isinstance(backend, LateBackend) else None
        self._width = width
        self._prefix = prefix

    def graph_columns(self, size: int) -> HostColumns:
        if self._backend is None:
            return NO_COLUMNS
        return {self._prefix + name: column for name, column in self._backend.late_columns(size, self._width).items()}

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        own = _named(self._prefix, columns)
        if self._backend is not None and own:
            self._backend.fill_late(batch, self._width, own)

    def views(self, uploaded: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns the backend's own columns on the device, under its own names."""
        return _named(self._prefix, uploaded)


def _named(prefix: str, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Returns the columns whose names begin so, without that beginning."""
    return {name[len(prefix) :]: column for name, column in columns.items() if name.startswith(prefix)}


def open_late(backend: AttentionBackend, batch: ForwardBatch) -> AttentionMetadata:
    """Returns the metadata of a captured step that tries drafts."""
    return backend.open_late(batch) if isinstance(backend, LateBackend) else backend.plan(batch)


class PromptCapture(OpensGraphs, Protocol):
    """Attention of captured steps with new tokens. Tokens and rows are padded; rows at the end may be empty.

    open_graph      once for each size, before the capture
    begin_step      captured: the work on the device that all layers of a step share
    plan_replay     before each replay: the work on the host
    """

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        """Plans a replay for rows of these lengths, padding included. It may use the arguments only: the tensors on the
        device may not have their new contents yet.
        """
        ...

    def covers(self, seq_lens: Ints, extend_lens: Ints) -> bool:
        """True if the buffers for replays are large enough for these rows, and no kernel that is not captured is better
        for them.
        """
        ...


@runtime_checkable
class PromptGraphBackend(AttentionBackend, Protocol):
    """A backend that may know how to capture steps with new tokens."""

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        """Returns the prompt capture for models with these layers; None if a layer cannot be captured."""
        ...


class MixedCapture(PromptCapture, Protocol):
    """Attention of captured steps whose last rows decode: a fixed number of them, padding included.

    columns, fill_columns   as `graph_columns` and `fill_columns` of `GraphAttentionBackend`
    """

    def columns(self) -> HostColumns:
        """Returns names, shapes and dtypes of what the decoding rows add to the upload."""
        ...

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        """Writes the plan of the decoding rows. `batch` is padded."""
        ...


@runtime_checkable
class MixedGraphBackend(AttentionBackend, Protocol):
    """A backend that may know how to capture steps of prompts and decoding rows."""

    def mixed_capture(self, specs: Sequence[AttentionSpec], decoding: int) -> MixedCapture | None:
        """Returns the capture of steps in which `decoding` rows decode, for models with these layers; None if a layer
        cannot be captured.
        """
        ...


def mixed_capture(backend: AttentionBackend, specs: Sequence[AttentionSpec], decoding: int) -> MixedCapture | None:
    """Returns how steps of prompts and `decoding` decoding rows are captured; None if they cannot be."""
    return backend.mixed_capture(specs, decoding) if isinstance(backend, MixedGraphBackend) else None


def decode_capture(backend: AttentionBackend) -> GraphAttentionBackend | None:
    """Returns the backend if its decode steps can be captured; otherwise None."""
    return backend if isinstance(backend, GraphAttentionBackend) else None


def prompt_capture(backend: AttentionBackend, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
    """Returns how steps with new tokens are captured with this backend and these layers; None if they cannot be."""
    return backend.prompt_capture(specs) if isinstance(backend, PromptGraphBackend) else None
