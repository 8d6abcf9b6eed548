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

from dataclasses import dataclass


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
    meeting_file: str = ""
    """A file in the server's private directory, through which ranks find one another; empty for a rank alone."""

    @property
    def leads(self) -> bool:
        """True for the rank that receives requests, chooses tokens and sends answers: the first rank of the last stage,
        which has the logits.
        """
        return self.world.rank == 0

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
    tp_size: int, pp_size: int = 1, *, device: str, first_gpu: int, meeting_file: str = ""
) -> list[RankContext]:
    """The context of each process of a server, by its rank in the world: those of the last stage come first.

    GPUs are numbered as SGLang numbers them: those of the first stage come first.
    """
    places = [(Place(stage, pp_size), Place(rank, tp_size)) for stage in range(pp_size) for rank in range(tp_size)]
    last_first = sorted(places, key=lambda each: -each[0].rank)
    return [
        RankContext(
            world=Place(number, len(places)),
            tp=tp,
            attention_tp=tp,
            pp=pp,
            device=device,
            gpu=first_gpu + places.index((pp, tp)),
            meeting_file=meeting_file,
        )
        for number, (pp, tp) in enumerate(last_first)
    ]
