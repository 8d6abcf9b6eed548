"""RankContext: which rank a process is in each of the groups that it belongs to, and which device is its own.

    world          every process of a server that computes
    tp             those that share each layer
    attention_tp   those that share each layer's attention: fewer than tp, where attention is split by requests
    ep             those that share each layer's experts
    pp             those that have one run of layers each
    dp             those that have requests of their own

Contexts are made where processes are started, and each is handed to its process; from its composition root on they are
passed down, and no code learns about ranks in another way. These are plain numbers, known before torch is loaded:
what ranks do together, a `Group` does (`groups.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Transport: TypeAlias = Literal["none", "gloo", "nccl", "gloo_through_host"]
"""How tensors get from rank to rank (`process_group.py`). `gloo_through_host`: NCCL refuses two ranks on one GPU."""

TRANSPORTS: dict[Transport, str] = {
    "none": "none: there is one rank",
    "gloo": "Gloo, on the loopback address",
    "nccl": "NCCL",
    "gloo_through_host": "Gloo, through memory of the host, since ranks share a GPU: for tests, not for speed",
}
"""Text of the log and of `/server_info` for each transport."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position of one rank in a group: number `rank` out of 0 … size - 1."""

    rank: int = 0
    size: int = 1


ALONE = Place()
"""In a group of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """The places of one process, and its device. Without arguments: a process that computes alone, on a CPU."""

    world: Place = ALONE
    tp: Place = ALONE
    attention_tp: Place = ALONE
    ep: Place = ALONE
    pp: Place = ALONE
    dp: Place = ALONE
    device: str = "cpu"
    """cpu or cuda."""
    gpu: int = 0
    """The number of its GPU among those that are visible, if its device is one."""
    on_device: Place = ALONE
    """Its place among the ranks that compute on the same device, and so divide its memory."""
    meeting_file: str = ""
    """A file in the server's private directory, through which ranks find one another; empty for a rank alone."""

    @property
    def leads(self) -> bool:
        """True for the rank that receives requests, chooses tokens and sends answers: the first rank of the last stage,
        which has the logits.
        """
        return self.world.rank == 0

    @property
    def transport(self) -> Transport:
        """How this rank and the others exchange tensors."""
        if self.world.size == 1:
            return "none"
        if self.device == "cpu":
            return "gloo"
        return "nccl" if self.on_device.size == 1 else "gloo_through_host"

    @property
    def name(self) -> str:
        """Prefix of log lines: `TP1`, and with several stages `PP0 TP1`."""
        tp = f"TP{self.tp.rank}"
        return tp if self.pp.size == 1 else f"PP{self.pp.rank} {tp}"

    @property
    def title(self) -> str:
        """`name` for titles of processes and names of files: `PP0_TP1`."""
        return self.name.replace(" ", "_")

    @property
    def labels(self) -> dict[str, str]:
        """Returns the Prometheus labels of this rank, under the names that SGLang's dashboards use."""
        return {"tp_rank": str(self.tp.rank), "pp_rank": str(self.pp.rank), "moe_ep_rank": str(self.ep.rank)}


RANKS_OF_ONE = RankContext()


def rank_contexts(
    tp_size: int, pp_size: int = 1, *, device: str, gpus: Sequence[int] = (), meeting_file: str = ""
) -> list[RankContext]:
    """Returns the context of each process of a server, by its rank in the world: those of the last stage come first.

    gpus: the GPU of each rank, those of the first stage first, as SGLang numbers them. On a CPU none is given.
    """
    places = [(Place(stage, pp_size), Place(rank, tp_size)) for stage in range(pp_size) for rank in range(tp_size)]
    devices = list(gpus) if device == "cuda" else [0] * len(places)
    last_first = sorted(zip(places, devices, sharers(devices), strict=True), key=lambda each: -each[0][0].rank)
    return [
        RankContext(
            world=Place(number, len(places)),
            tp=tp,
            attention_tp=tp,
            pp=pp,
            device=device,
            gpu=gpu,
            on_device=on_device,
            meeting_file=meeting_file,
        )
        for number, ((pp, tp), gpu, on_device) in enumerate(last_first)
    ]


def sharers(devices: Sequence[int]) -> list[Place]:
    """Returns, for each rank, its place among the ranks of the same device. `devices`: the device of each rank."""
    total, so_far = Counter(devices), Counter[int]()
    found = []
    for device in devices:
        found.append(Place(so_far[device], total[device]))
        so_far[device] += 1
    return found
