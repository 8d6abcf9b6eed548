"""SchedulerWeights: handlers of control messages about weights. They wait until no request uses the old weights, and
handle the effects.

What a weight is, it does not know: that is the business of `forward.weights.ModelWeights`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from mysglang.srt.errors import InvalidRequest, RequestError
from mysglang.srt.forward.weights import GroupFacts, ModelWeights, TensorFacts
from mysglang.srt.managers.scheduler import Handlers, Scheduler
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import ControlReqOutput
from mysglang.srt.messages.requests import AbortReq
from mysglang.srt.messages.weights import (
    CheckWeightsReq,
    DestroyWeightsUpdateGroupReq,
    GetWeightsByNameReq,
    InitWeightsUpdateGroupReq,
    SaveShardedModelReq,
    UpdateWeightsFromDistributedReq,
    UpdateWeightsReq,
    UpdateWeightVersionReq,
    WeightUpdate,
)
from mysglang.srt.utils.sharded_state import ShardPlace
from mysglang.srt.utils.words import counted

ABORTED = "Aborted, since the weights change."


class SchedulerWeights:
    """Changes the weights, and the name of their version, between two steps."""

    def __init__(
        self,
        scheduler: Scheduler,
        kv: KvManager,
        weights: ModelWeights,
        to_tokenizer: Sender[ToTokenizer],
        *,
        rank: int,
    ) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._weights = weights
        self._to_tokenizer = to_tokenizer
        self._rank = rank
        self._joining: dict[int, Future[None]] = {}
        self._snapshot: dict[str, str] | None = None

    def handlers(self) -> Handlers:
        """Returns the rows that this part contributes to the dispatch table."""
        return {
            UpdateWeightsReq: self.update_weights,
            UpdateWeightsFromDistributedReq: self.update_weights_from_distributed,
            InitWeightsUpdateGroupReq: self.init_weights_update_group,
            DestroyWeightsUpdateGroupReq: self.destroy_weights_update_group,
            UpdateWeightVersionReq: self.update_weight_version,
            GetWeightsByNameReq: self.get_weights_by_name,
            CheckWeightsReq: self.check_weights,
            SaveShardedModelReq: self.save_sharded_model,
        }

    def on_turn(self) -> None:
        """Sends the replies for groups that have formed, or failed to."""
        for number, future in list(self._joining.items()):
            if future.done():
                del self._joining[number]
                self._settle(number, partial(_joined, future))

    def update_weights(self, message: UpdateWeightsReq) -> None:
        """Updates the weights from files."""

        def load() -> int:
            return self._weights.update_from_files(message.path, whole=message.whole, pulse=self._scheduler.pulse)

        self._change(message.id, message.update, load)

    def update_weights_from_distributed(self, message: UpdateWeightsFromDistributedReq) -> None:
        """Updates the weights with tensors that rank 0 of a group broadcasts."""
        tensors = [
            TensorFacts(name, dtype, tuple(shape))
            for name, dtype, shape in zip(message.names, message.dtypes, message.shapes, strict=True)
        ]

        def load() -> int:
            return self._weights.receive(tensors, message.group_name, self._scheduler.pulse)

        self._change(message.id, message.update, load)

    def init_weights_update_group(self, message: InitWeightsUpdateGroupReq) -> None:
        """Joins a trainer's group in the background, while steps continue."""
        group = GroupFacts(
            name=message.group_name,
            master_address=message.master_address,
            master_port=message.master_port,
            rank=message.rank_offset + self._rank,
            world_size=message.world_size,
            backend=message.backend,
        )
        try:
            self._joining[message.id] = self._weights.join_group(group)
        except RequestError as error:
            self._refuse(message.id, error)

    def destroy_weights_update_group(self, message: DestroyWeightsUpdateGroupReq) -> None:
        """Leaves a trainer's group."""

        def leave() -> str:
            self._weights.leave_group(message.group_name)
            return "The group was left."

        self._settle(message.id, leave)

    def update_weight_version(self, message: UpdateWeightVersionReq) -> None:
        """Changes the name of the weights' version only."""
        if message.abort_all_requests:
            self._scheduler.abort_request(AbortReq(abort_all=True, message=ABORTED))
        self._scheduler.rename_weights(message.new_version)
        self._reply(message.id, f"The weights are called {message.new_version!r} now.")

    def get_weights_by_name(self, message: GetWeightsByNameReq) -> None:
        """Returns weights as they are between two steps."""

        def read() -> dict[str, Any]:
            return {"parameter": self._weights.read(message.name, message.truncate_size)}

        self._settle(message.id, lambda: "", read)

    def check_weights(self, message: CheckWeightsReq) -> None:
        """Computes checksums of the weights, and stores or compares them as the message says."""

        def check() -> dict[str, Any]:
            found = self._weights.checksums(self._scheduler.pulse)
            match message.action:
                case "snapshot":
                    self._snapshot = found
                case "compare":
                    if self._snapshot is None:
                        raise InvalidRequest("action: there is no snapshot to compare with.", param="action")
                    changed = sorted(name for name in found if found[name] != self._snapshot.get(name))
                    return {"changed": changed}
            return {"checksums": found}

        self._settle(message.id, lambda: "", check)

    def save_sharded_model(self, message: SaveShardedModelReq) -> None:
        """Writes the weights to files as they are between two steps."""
        place = ShardPlace(path=message.path, pattern=message.pattern, max_size=message.max_size, saved=message.saved)

        def save() -> str:
            count = self._weights.save_sharded(place, self._scheduler.pulse)
            return f"Rank {self._rank} wrote {counted(count, 'file', 'files')} to {place.path}."

        self._settle(message.id, save)

    def _change(self, number: int, update: WeightUpdate, load: Callable[[], int]) -> None:
        """Loads weights when no request computes with the old ones any more."""

        def change() -> None:
            running = self._scheduler.lanes.size
            if update.flush_cache and running:
                raise InvalidRequest(
                    f"flush_cache: {counted(running, 'request holds', 'requests hold')} the cache; pause with mode "
                    "retract or abort, or send flush_cache=false.",
                    param="flush_cache",
                )
            paused = len(self._scheduler.reqs)
            count = load()
            self._kv.cache.lower.weights_changed()
            if update.flush_cache:
                flushed = self._kv.flush()
                assert flushed, "nobody runs"
            if update.weight_version is not None:
                self._scheduler.rename_weights(update.weight_version)
            self._reply(
                number, f"{counted(count, 'tensor was', 'tensors were')} changed.", {"num_paused_requests": paused}
            )

        def attempt() -> None:
            try:
                change()
            except RequestError as error:
                self._refuse(number, error)

        if update.abort_all_requests:
            self._scheduler.abort_request(AbortReq(abort_all=True, message=ABORTED))
        self._scheduler.standstill.ask(attempt)

    def _settle(
        self, number: int, text: Callable[[], str], details: Callable[[], dict[str, Any]] = dict[str, Any]
    ) -> None:
        try:
            self._reply(number, text(), details())
        except RequestError as error:
            self._refuse(number, error)

    def _reply(self, number: int, text: str, details: dict[str, Any] | None = None) -> None:
        self._to_tokenizer.send(ControlReqOutput(id=number, success=True, message=text, details=details or {}))

    def _refuse(self, number: int, error: RequestError) -> None:
        self._to_tokenizer.send(ControlReqOutput.refusing(number, error))


def _joined(future: Future[None]) -> str:
    future.result()
    return "The group is complete."
