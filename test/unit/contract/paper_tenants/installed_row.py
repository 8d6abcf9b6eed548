"""Prefill and decode on different machines: a row whose prompt was computed elsewhere is installed, and decodes here.

prefill   chunk done -> pages final up to `low` -> sent … prompt done -> first token sent -> row released, pages held
decode    pages reserved -> sender told where -> pages arrive -> installed as a row that decodes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from mysglang.srt.forward.worker_batch import ForwardMode, Ints, ModelWorkerBatch, TableWrites
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.role import Role


class Transferred(msgspec.Struct, frozen=True, tag=True):
    """News: all pages of a request are here, and its first token. Every rank learns it in the same turn."""

    rid: str
    first_token: int


@dataclass(slots=True)
class Incoming:
    """A request whose pages are being written by another machine."""

    req: Req
    pages: Ints


class DecodeRole:
    """`scheduling.role.Role` of the machine that decodes: a request waits for memory, then for its pages."""

    def __init__(self, kv: KvManager) -> None:
        self._kv = kv
        self._incoming: dict[str, Incoming] = {}
        self._ready: list[Req] = []

    def admit(self, req: Req) -> None:
        """CANNOT: reserve pages that belong to no row yet. `KvManager` gives pages to a slot, and only a planner gives
        slots. CANNOT either: refuse to reuse them after an abort until the sender says that it has stopped writing.
        """
        self._incoming[req.rid] = Incoming(req, np.zeros(0, dtype=np.int32))

    def look(self) -> Sequence[Transferred]:
        return ()

    def learn(self, news: Transferred) -> None:
        """Sayable: as a request that was retracted after one token. It goes through the waiting queue."""
        incoming = self._incoming.pop(news.rid)
        incoming.req.ids = np.append(incoming.req.ids, np.int32(news.first_token))
        self._ready.append(incoming.req)

    def ready(self) -> Iterable[Req]:
        ready, self._ready = self._ready, []
        return ready

    @property
    def expecting(self) -> bool:
        return bool(self._ready)

    def abort(self, rid: str) -> Req | None:
        found = self._incoming.pop(rid, None)
        return None if found is None else found.req


class PrefillRole(DecodeRole):
    """The machine that computes prompts. Its requests are ready when the other side has said where pages go."""

    def pages_final(self, slot: int, low: int) -> None:
        """CANNOT be called: a role comes before the waiting queue, and hears of no settled chunk, of no prompt that is
        done and of no row that is released. `low` is there, in the request table.
        """

    def hold(self, rid: str, pages: Ints) -> None:
        """CANNOT: pages live as long as their row, or as the prefix cache has them. Nothing keeps them beyond that
        until a peer has acknowledged, but a lock on a node of the tree, which not every page is in.
        """


def role(kv: KvManager, *, decodes: bool) -> Role:
    return DecodeRole(kv) if decodes else PrefillRole(kv)


def installed(req: Req, slot: int, pages: Ints, page_size: int) -> ModelWorkerBatch:
    """The step that installs a row: its table, and the first token as input.

    Sayable as a prompt all but one token of which is cached: its last token is computed again, which gives the token
    after it, and penalties, draws and minimum length follow from the tokens. CANNOT: a row without a forward pass, and
    bring the buffers that must travel with it, such as the state of a recurrent layer: `Keeping` only says which.
    """
    length = len(req.ids)
    columns = np.arange(len(pages), dtype=np.int64)
    last = length - 1
    return ModelWorkerBatch(
        mode=ForwardMode.EXTEND,
        input_ids=req.ids[-1:],
        slots=np.array([slot]),
        seq_lens=np.array([length], dtype=np.int32),
        extend_lens=np.array([1], dtype=np.int32),
        out_cache_locs=(pages[last // page_size : last // page_size + 1] * page_size + last % page_size,),
        yields=np.array([True]),
        table_writes=TableWrites(np.full(len(pages), slot), columns, (pages,)),
    )
