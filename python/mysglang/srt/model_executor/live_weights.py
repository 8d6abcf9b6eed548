"""LiveWeights: the weights of a worker's model, as the scheduler may change and read them (`forward.weights`).

Everything is checked, and what comes over a network has come, before a value changes. The caller makes sure that no
step is launched during a call; a step in flight comes before these copies on the same stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.load_format import AUTO, LOAD_FORMATS, WeightFormat
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.saved_model import saved_model
from mysglang.srt.distributed.agreement import ONE_RANK, AllRanks
from mysglang.srt.distributed.joining import Joining
from mysglang.srt.distributed.ranks import ALONE, Place
from mysglang.srt.distributed.update_group import UpdateGroup
from mysglang.srt.errors import ConfigError, Conflict, InvalidRequest
from mysglang.srt.forward.weights import GroupFacts, Pulse, TensorFacts
from mysglang.srt.model_loader.kv_scales import checkpoint_scales
from mysglang.srt.model_loader.weight_update import (
    NamedTensors,
    WeightUpdate,
    check_config,
    checkpoint_tensors,
    digest,
)
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.interface import Platform
from mysglang.srt.utils.hardware import GIB
from mysglang.srt.utils.late_import import at_first_call
from mysglang.srt.utils.sharded_state import Label, ShardPlace

GROUP_TIMEOUT_S = 300.0
"""For members to come, and for weights that were announced."""

_save_shard: Callable[[WeightUpdate, ShardPlace, Label, Pulse], int] = at_first_call(
    "mysglang.srt.model_loader.sharded_state:save_shard"
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_BITS = {2: torch.int16, 4: torch.int32}
"""Bytes of a number -> the integers that show its bits."""
_NOT_ARRIVED = {torch.float32: 0x7FA5A5A5, torch.bfloat16: 0x7FA5, torch.float16: 0x7DA5}
"""Bits of a NaN that no computation makes."""


def nothing() -> None:
    """Does nothing. Default callback, for a caller that holds no addresses of weights."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint as it was when it was read."""

    path: Path
    weights: WeightFormat
    stamps: tuple[tuple[str, int, int], ...]
    """Name, size and time of change of each of its files; empty if no checkpoint holds the weights."""

    @classmethod
    def of(cls, path: Path, weights: WeightFormat = AUTO) -> Origin:
        try:
            found = [(file.name, file.stat()) for file in weights.source(path).paths]
        except (ConfigError, OSError):
            # What is gone or damaged is never unchanged.
            found = []
        return cls(path, weights, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found))

    def unchanged(self) -> bool:
        """True if the files have the same size and time as before."""
        return bool(self.stamps) and self == Origin.of(self.path, self.weights)


NOWHERE = Origin.of(Path(), LOAD_FORMATS["dummy"])
"""The origin of weights that no checkpoint holds."""


class LiveWeights:
    """The weights of a running model, which can be read and updated (a `forward.weights.ModelWeights`)."""

    def __init__(
        self,
        model: CheckpointModel,
        config: ModelConfig,
        load: LoadConfig,
        platform: Platform,
        changed: Callable[[], None] = nothing,
        ranks: AllRanks = ONE_RANK,
        tp: Place = ALONE,
    ) -> None:
        """Create it right after the model was loaded. `changed` is called when values or their addresses change. Values
        change on all of `ranks` or on none. `tp`: place of this rank among those that share each layer.
        """
        self._ranks = ranks
        self._tp = tp
        self._load = load
        self._changed = changed
        self._origin = Origin.of(Path(config.path), load.format)
        """The checkpoint that holds the weights as they are now; `NOWHERE` if none does."""
        self._copy: Mapping[str, Tensor] | None = None
        """The weights while they are released, if no checkpoint holds them."""
        self._needs_copy = False
        """True if they must be copied before they are released."""
        self._released = False
        self._update = WeightUpdate(model)
        self._config = config
        self._platform = platform
        self._groups: dict[str, Joining] = {}

    def update_from_files(self, path: str, *, whole: bool, pulse: Pulse) -> int:
        with self._ranks.all_or_none():
            with _refusing():
                if whole:
                    check_config(Path(path), self._config)
                origin = Origin.of(Path(path)) if whole else NOWHERE
                dense = self._config.dense if whole else ()
                plan = self._update.plan(checkpoint_tensors(Path(path), dense=dense), whole=whole)
            if not whole:
                self._require_memory()
        if not self._released:
            with self._changing():
                self._update.apply(plan, pulse)
        # What is released reads these weights when it is resumed.
        self._origin, self._copy = origin, None
        self._settle()
        return len(plan)

    def check_release(self) -> None:
        """Finds where the weights can be read again: in their checkpoint, if it is unchanged, or else in a copy on the
        host, if they are on a device. Raises InvalidRequest if neither is possible.
        """
        self._needs_copy = not self._origin.unchanged()
        if not self._needs_copy:
            return
        if self._platform.device.type == "cpu":
            raise InvalidRequest(
                "weights: they are in no checkpoint as they are now, so they could not be read again; release "
                "kv_cache alone.",
                param="tags",
            )
        self._require_host_room()

    def release(self, pulse: Pulse) -> None:
        """Releases the memory of the weights, after `check_release`."""
        if self._needs_copy:
            self._copy = self._update.host_copy()
        self._update.release()
        self._released = True

    def resume(self, pulse: Pulse) -> None:
        """Allocates the memory again, with the weights that were in it. Raises InvalidRequest if the checkpoint has
        changed, and torch.OutOfMemoryError, after which it can be tried again.
        """
        if self._copy is not None:
            self._update.reserve()
            with self._changing():
                self._update.put_back(self._copy)
            self._copy = None
        else:
            with _refusing():
                if not self._origin.unchanged():
                    raise ConfigError(
                        f"{self._origin.path} has changed since the weights were read from it; give the weights by "
                        "/update_weights_from_disk"
                    )
                tensors = checkpoint_tensors(self._origin.path, self._origin.weights, self._config.dense)
                plan = self._update.plan(tensors, whole=True)
            self._update.reserve()
            with self._changing():
                self._update.apply(plan, pulse)
        self._released = False
        self._settle()

    @property
    def released(self) -> bool:
        """True if the memory of the weights is released."""
        return self._released

    def join_group(self, group: GroupFacts) -> Future[None]:
        if (known := self._known(group.name)) is not None:
            if not known.done.done():
                raise self._coming_together(group.name)
            raise Conflict(f"group_name: this engine is in a group {group.name!r} already.", param="group_name")
        if group.backend == "nccl" and self._platform.device.type != "cuda":
            raise InvalidRequest("backend: nccl needs CUDA; give gloo.", param="backend")
        device = torch.cuda.current_device() if self._platform.device.type == "cuda" else None

        def join(timeout_s: float) -> UpdateGroup:
            if device is not None:
                torch.cuda.set_device(device)  # each thread has its own
            where = (group.master_address, group.master_port)
            return UpdateGroup(*where, group.rank, group.world_size, group.name, group.backend, timeout_s)

        joining = Joining(group.name, group.master_address, group.master_port, join, GROUP_TIMEOUT_S)
        self._groups[group.name] = joining
        return joining.done

    def leave_group(self, name: str) -> None:
        known = self._known(name)
        if known is not None and known.group is None:
            known.give_up()
        else:
            self._group(name).leave()
        del self._groups[name]

    def receive(self, tensors: Sequence[TensorFacts], group: str, pulse: Pulse) -> int:
        with self._ranks.all_or_none():
            members = self._group(group)
            self._require_memory()
            device = torch.device("cpu") if members.on_cpu else self._platform.device
            with _refusing():
                layout = [(each.name, torch.empty(each.shape, dtype=_dtype(each), device="meta")) for each in tensors]
                self._update.plan(layout, whole=False)
                staged = [(name, _awaiting(tensor, device)) for name, tensor in layout]
        try:
            with self._ranks.all_or_none():
                _broadcast(members, [tensor for _, tensor in staged], pulse)
        except InvalidRequest:
            # On every rank: the group is of no use to any of them without the others.
            self.leave_group(group)
            raise
        with self._ranks.all_or_none(), _refusing():
            _check_arrived(staged)
            plan = self._update.plan(staged, whole=False)
        with self._changing():
            self._update.apply(plan, pulse)
        self._origin = NOWHERE
        self._settle()
        return len(plan)

    def read(self, name: str, count: int) -> list[Any]:
        self._require_one_rank()
        self._require_memory()
        with _refusing():
            rows: list[Any] = self._update.read(name)[:count].float().tolist()
        return rows

    def checksums(self, pulse: Pulse) -> dict[str, str]:
        self._require_one_rank()
        self._require_memory()
        return dict(_each(((name, digest(tensor)) for name, tensor in self._update.tensors()), pulse))

    def save_sharded(self, place: ShardPlace, pulse: Pulse) -> int:
        self._require_memory()
        if self._ranks.size > self._tp.size:
            raise InvalidRequest("pp_size: a model in several stages cannot be saved; use --tp-size instead.")
        with self._ranks.all_or_none(), _refusing():
            if checkpoint_scales(Path(self._config.path), self._load.format):
                raise ConfigError(
                    "the checkpoint has scales for an eight-bit cache, which a sharded state does not keep"
                )
            model = saved_model(self._config, self._tp.size, self._load.quantization)
            label = Label(saved=place.saved, model=model, rank=self._tp.rank, part=0, parts=1)
            return _save_shard(self._update, place, label, pulse)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Calls `_changed` on exit, because weights change inside the block, or may have if it fails."""
        try:
            yield
        finally:
            self._changed()

    def _require_host_room(self) -> None:
        # Every rank copies its part at the same time.
        needed, free = self._ranks.size * self._update.nbytes, platform_named("cpu").memory().free
        if needed > free:
            raise InvalidRequest(
                f"weights: they are in no checkpoint as they are now, and the host has no room for a copy: it takes "
                f"{needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free; release kv_cache alone.",
                param="tags",
            )

    def _require_memory(self) -> None:
        if self._released:
            raise InvalidRequest("The memory of the weights is released; resume it first.")

    def _require_one_rank(self) -> None:
        if self._ranks.size > 1:
            raise InvalidRequest(
                "Weights can be read on one rank only: the model is split over several (--tp-size, --pp-size)."
            )

    def _known(self, name: str) -> Joining | None:
        """Returns the group of that name, if it has formed or is forming."""
        known = self._groups.get(name)
        failed = known is not None and known.done.done() and known.group is None
        return None if failed else known

    def _group(self, name: str) -> UpdateGroup:
        known = self._known(name)
        if known is None:
            raise InvalidRequest(f"group_name: this engine is in no group {name!r}.", param="group_name")
        if known.group is None:
            raise self._coming_together(name)
        return known.group

    def _coming_together(self, name: str) -> Conflict:
        return Conflict(
            f"group_name: the group {name!r} is still coming together; if its members do not come, that is given up "
            f"{GROUP_TIMEOUT_S:g} s after it was asked for, or when the group is destroyed.",
            param="group_name",
        )

    def _settle(self) -> None:
        """Waits until the device has the values. The caller may then change the memory from which they were copied."""
        if self._platform.device.type == "cuda":
            torch.cuda.synchronize()


def _awaiting(layout: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor to receive into, whose every number says that none has arrived."""
    made = torch.empty_like(layout, device=device)
    made.view(_BITS[made.itemsize]).fill_(_NOT_ARRIVED[made.dtype])
    return made


def _check_arrived(staged: NamedTensors) -> None:
    """Raises ConfigError if less was sent than announced, which no backend reports: the rest would be arbitrary."""
    for name, tensor in staged:
        missing = int((tensor.view(_BITS[tensor.itemsize]) == _NOT_ARRIVED[tensor.dtype]).sum())
        if missing:
            raise ConfigError(
                f"{missing} of the {tensor.numel()} numbers of tensor {name} did not arrive; rank 0 must send the "
                "shape and dtype that it announces"
            )


def _broadcast(members: UpdateGroup, tensors: Sequence[Tensor], pulse: Pulse) -> None:
    try:
        members.broadcast(tensors, pulse)
    except (RuntimeError, TimeoutError) as error:
        raise InvalidRequest(
            f"The weights did not arrive, the old ones are served; the group was left: {error}"
        ) from error


def _dtype(facts: TensorFacts) -> torch.dtype:
    if facts.dtype not in DTYPES:
        raise ConfigError(f"tensor {facts.name} is of {facts.dtype}; known are {', '.join(DTYPES)}")
    return DTYPES[facts.dtype]


def _each(found: Iterator[tuple[str, str]], pulse: Callable[[], None]) -> Iterator[tuple[str, str]]:
    for item in found:
        pulse()
        yield item


@contextmanager
def _refusing() -> Iterator[None]:
    """Report any error in the weights as an error of the request that brought them."""
    try:
        yield
    except ConfigError as error:
        raise InvalidRequest("; ".join(error.problems)) from error
    except (SafetensorError, OSError) as error:
        raise InvalidRequest(f"The weights cannot be read: {error}") from error
    except torch.OutOfMemoryError as error:
        raise InvalidRequest(f"The device has no room to receive so much at once; send less: {error}") from error
