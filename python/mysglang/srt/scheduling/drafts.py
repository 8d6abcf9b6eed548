"""Drafts: which decoding rows try drafts in a step, how far their rows may grow by them, and the drafts of the host.

    Drafts           plans the lengths of rows that try drafts (the Growth of `decode_planner.py`)
    NgramProposer    the host looks drafts up in the text of the request
    DeviceProposer   the device proposes the drafts itself (a draft model); the host only says how many
    Patient          around one of them: rows whose drafts were wrong do without for a while
    ForcedDrafts     around one of them: what a grammar leaves no choice about are drafts, which are always right

A host proposer knows the newest tokens only when the step in flight is done. So it proposes a longer run from what it
knows, and the device takes the part after the real newest token, if the run was right so far (`DraftColumns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from mysglang.srt.forward.worker import Worker
from mysglang.srt.forward.worker_batch import NO_DRAFT, ON_DEVICE, Bools, DraftColumns, Ints, Longs, Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.decode_planner import DecodingRows, Grown, Growth, OneToken
from mysglang.srt.scheduling.request_table import RequestTable

FEW_TEXTS = 8
"""Texts of finished requests are dropped once there are more than this many beside twice the rows of a step."""
MATCH = 3
"""Tokens at the end of the text that must have stood in it before."""
_BITS = 21
"""Bits of a token id in a key. The largest known vocabularies have fewer than 2^19 tokens."""
_FEW = 16
"""New tokens up to which a loop is quicker than arrays are."""


class Drafts:
    """Implements Growth for steps that try drafts.

    A row gets up to `table.widest` tokens: one, and those drafts behind it that turn out right.
    """

    def __init__(self, table: RequestTable, kv: KvManager, proposer: Proposer, *, late_lengths: bool) -> None:
        """`late_lengths`: True if the worker accepts steps with rows whose start only the device knows."""
        self._table = table
        self._proposer = proposer
        self._kv = kv
        self._late_lengths = late_lengths

    def must_settle(self, rows: DecodingRows) -> bool:
        table, slots = self._table, rows.slots
        return not self._late_lengths and not np.array_equal(table.low[slots], table.high[slots])

    def grow(self, rows: DecodingRows) -> Grown:
        return self._grow(rows, self._proposer.widths(rows.slots, self._table.widest[rows.slots]))

    def grow_least(self, rows: DecodingRows) -> Grown:
        return self._grow(rows, rows.ones)

    def give_back(self, slots: Slots) -> None:
        self._kv.trim_rows(slots, self._table.high[slots])

    def begin(self, grown: Grown) -> tuple[Ints, Bools | None]:
        table, slots = self._table, grown.slots
        low, high = table.low[slots], table.high[slots]
        table.high[slots] = grown.after
        # However many tokens the step before gives, this one writes at least the token that it begins with.
        table.low[slots] = low + 1
        late: Bools = low != high
        return (np.where(late, np.int32(ON_DEVICE), high), late) if late.any() else (high, None)

    def drafts(self, batch: ScheduleBatch) -> DraftColumns | None:
        decoding = batch.num_prompts
        return self._proposer.columns(batch, decoding + np.flatnonzero(batch.lens[decoding:] > 1))

    def settle(self, batch: ScheduleBatch, counts: Ints, alive: Bools) -> None:
        rows = alive.copy()
        rows[: batch.num_prompts] = False
        slots, got = batch.slots[rows], counts[rows]
        drafted = self._table.drafted
        drafted[slots, 0] += batch.lens[rows] - 1
        drafted[slots, got] += 1
        tried = batch.lens[rows] > 1
        self._proposer.note_accepted(slots[tried], got[tried] - 1)
        self._table.low[slots] += got - 1
        self._table.high[slots] -= batch.lens[rows] - got

    def _grow(self, rows: DecodingRows, widths: Ints) -> Grown:
        high = self._table.high[rows.slots]
        # The last token of an answer is never computed with, so nothing is written for it.
        after = np.minimum(high + widths, rows.final_len - 1)
        live = after > high
        slots, lens = rows.slots, after - high
        if np.count_nonzero(live) < len(live):
            slots, lens, after = slots[live], lens[live], after[live]
        return Grown(slots, lens, after, int(lens.sum()), self._table.low[slots])


def growth_of(worker: Worker, table: RequestTable, kv: KvManager, proposer: MakeProposer) -> Growth:
    """Returns how rows grow in the steps of `worker`."""
    if worker.tokens_per_step == 1:
        return OneToken(table)
    return Drafts(table, kv, proposer(table), late_lengths=worker.late_lengths)


class Proposer(Protocol):
    """Decides which rows try drafts, and proposes those that the host knows."""

    def widths(self, slots: Slots, most: Ints) -> Ints:
        """Returns the tokens of each row in the next step, its drafts included: at least 1, at most `most`. All [R]."""
        ...

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        """Returns the host's drafts for these rows [D] of a step, which try drafts as `widths` said just before."""
        ...

    def note_accepted(self, slots: Slots, accepted: Ints) -> None:
        """Takes the result of rows that tried drafts: how many drafts of each row were accepted. Both [R]."""
        ...


MakeProposer: TypeAlias = Callable[[RequestTable], Proposer]


class DeviceProposer:
    """The device proposes drafts for every row."""

    def __init__(self, table: RequestTable) -> None:
        """`table` is not read."""

    def widths(self, slots: Slots, most: Ints) -> Ints:
        return most

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        return None

    def note_accepted(self, slots: Slots, accepted: Ints) -> None:
        """Does nothing: the drafts do not depend on earlier results."""


def from_own_text(table: RequestTable) -> Proposer:
    """Returns the proposer of NGRAM: drafts come from the request's own text."""
    return Patient(NgramProposer(table), table, misses=NGRAM_MISSES)


def from_draft_model(table: RequestTable) -> Proposer:
    """Returns the proposer of STANDALONE: drafts come from a draft model, on the device."""
    return Patient(DeviceProposer(table), table, misses=MODEL_MISSES)


class Patient:
    """Lets a row try no drafts for a while after several steps in a row none of whose drafts was right.

    The pause is counted in tokens: 8 at first, twice as many each time, up to 512. One accepted draft halves the next.
    """

    FIRST, MOST = 8, 6
    """Tokens of the first pause; how often a pause doubles at most."""

    def __init__(self, inner: Proposer, table: RequestTable, *, misses: int) -> None:
        """A pause begins after `misses` steps in a row without an accepted draft."""
        self._inner = inner
        self._table = table
        self._most_misses = misses
        slots = table.num_slots
        self._life: Longs = np.full(slots, -1, dtype=np.int64)
        """The life that the other columns belong to."""
        self._misses: Ints = np.zeros(slots, dtype=np.int32)
        self._level: Ints = np.zeros(slots, dtype=np.int32)
        self._until: Ints = np.zeros(slots, dtype=np.int32)
        """Known tokens at which the row tries again."""

    def widths(self, slots: Slots, most: Ints) -> Ints:
        self._renew(slots)
        paused = self._table.known[slots] < self._until[slots]
        return self._inner.widths(slots, np.where(paused, np.int32(1), most) if paused.any() else most)

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        return self._inner.columns(batch, rows)

    def note_accepted(self, slots: Slots, accepted: Ints) -> None:
        self._renew(slots)
        right, wrong = slots[accepted > 0], slots[accepted == 0]
        self._misses[right] = 0
        self._level[right] = np.maximum(self._level[right] - 1, 0)
        self._misses[wrong] += 1
        tired = wrong[self._misses[wrong] >= self._most_misses]
        self._until[tired] = self._table.known[tired] + (self.FIRST << self._level[tired])
        self._misses[tired] = 0
        self._level[tired] = np.minimum(self._level[tired] + 1, self.MOST)
        self._inner.note_accepted(slots, accepted)

    def _renew(self, slots: Slots) -> None:
        """Resets the columns of slots that have a new request."""
        lives = self._table.life[slots]
        fresh = slots[self._life[slots] != lives]
        if len(fresh):
            self._life[fresh] = self._table.life[fresh]
            self._misses[fresh] = self._level[fresh] = self._until[fresh] = 0


class _Text:
    """The text of a request in a slot, and what was found in it."""

    __slots__ = ("index", "known", "life", "run")

    def __init__(self, life: int) -> None:
        self.life = life
        self.index = NgramIndex()
        self.run: Ints | None = None
        """Tokens that may follow the first `known` ones; None: nothing was found."""
        self.known = -1


class NgramProposer:
    """Proposes what followed the row's last tokens when they stood in its text before."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._texts: dict[int, _Text] = {}

    def widths(self, slots: Slots, most: Ints) -> Ints:
        table = self._table
        if len(self._texts) > 2 * len(slots) + FEW_TEXTS:
            self._texts = {slot: text for slot, text in self._texts.items() if text.life == table.life[slot]}
        widths: Ints = most.copy()
        for row in np.flatnonzero(widths > 1).tolist():
            if not self._propose(int(slots[row])):
                widths[row] = 1
        return widths

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        if not len(rows):
            return None
        texts = [self._texts[slot] for slot in batch.slots[rows].tolist()]
        runs = [text.run for text in texts if text.run is not None]
        return DraftColumns(
            rows=rows,
            runs=np.stack(runs),
            known=np.asarray([text.known for text in texts], dtype=np.int32),
        )

    def note_accepted(self, slots: Slots, accepted: Ints) -> None:
        """Does nothing: the drafts do not depend on earlier results."""

    def _propose(self, slot: int) -> bool:
        """True if there are drafts for the row."""
        table = self._table
        text = self._texts.get(slot)
        if text is None or text.life != table.life[slot]:
            text = self._texts[slot] = _Text(int(table.life[slot]))
        known = int(table.known[slot])
        if known != text.known:
            # The step in flight may give the row up to `tokens_per_step` tokens, and the drafts come behind those.
            text.known = known
            text.run = text.index.propose(table.tokens[slot, :known], 2 * table.tokens_per_step)
        return text.run is not None


class NgramIndex:
    """Finds what may come next in one growing text: what came next the last time that its end stood in it.

        … the cat sat on the mat . the cat sat      ends with "the cat sat", which was followed by "on the mat . …"

    Prompt lookup (Saxena 2023, vLLM's `ngram`): the text is a request's own prompt and answer. Texts of other requests
    are never looked up, so that the speed of an answer tells nothing about what other clients asked.
    """

    __slots__ = ("_ends", "_fed")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        """The last MATCH tokens -> where they ended the last time."""
        self._fed = MATCH - 1
        """Tokens before which all ends are known."""

    def propose(self, tokens: Ints, count: int) -> Ints | None:
        """Returns tokens that may follow: [count]; None if the end of the text has not occurred in it before.

        tokens: [N] the whole text. Where it was followed by fewer tokens than wanted, the text repeats itself.
        """
        known = len(tokens)
        self._feed(tokens)
        if known < MATCH:
            return None
        key = int(_keys(tokens[known - MATCH :])[0])
        at = self._ends.get(key)
        self._ends[key] = known
        self._fed = known
        if at is None:
            return None
        found: Ints = tokens[at + np.arange(count) % (known - at)]
        return found

    def _feed(self, tokens: Ints) -> None:
        """Adds the new tokens to the index of token runs, except the last run."""
        first, known = self._fed + 1, len(tokens)
        if known - first > _FEW:
            keys = _keys(tokens[first - MATCH : known - 1]).tolist()
            self._ends.update(zip(keys, range(first, known), strict=True))
        else:
            for end in range(first, known):
                self._ends[int(_keys(tokens[end - MATCH : end])[0])] = end
        self._fed = max(self._fed, known - 1)


def _keys(tokens: Ints) -> npt.NDArray[np.int64]:
    """Returns one number for each MATCH tokens in a row, [N - MATCH + 1]."""
    wide = tokens.astype(np.int64)
    last = len(wide) - MATCH + 1
    keys = wide[:last]
    for place in range(1, MATCH):
        keys = keys << _BITS | wide[place : place + last]
    return keys


class ForcedDrafts:
    """A Proposer around one that knows no grammars: tokens that a grammar forces are drafts, which are always right.

        forced from the known tokens on     f1    f2   f3   f4   f5
        in flight                           f1
        next step                           f1 -> f2   f3   f4   f5 -> x      newest token, four drafts, one free token

    Without drafts, a step in flight is dropped to jump over forced tokens (jump_forward.py). Here it is used: the mask
    of its token allows nothing but f1. The masks of the next step are made for each of its places (token_masks.py), so
    an answer is the one that its grammar and the model would give token by token.
    """

    def __init__(self, inner: Proposer, table: RequestTable) -> None:
        self._inner = inner
        self._table = table
        self._runs: dict[int, Ints] = {}
        """Slot -> what its grammar forces behind the known tokens, for the rows that were looked at last."""

    @classmethod
    def around(cls, make: MakeProposer) -> MakeProposer:
        """Returns a function that makes ForcedDrafts around the proposers that `make` makes."""
        return lambda table: cls(make(table), table)

    def widths(self, slots: Slots, most: Ints) -> Ints:
        widths = self._inner.widths(slots, most)
        table = self._table
        if not table.constrained.count:
            return widths
        self._runs = {}
        widths = widths.copy()
        for row in table.constrained.rows(slots).tolist():
            slot = int(slots[row])
            if table.widest_forced[slot] > 1:
                widths[row] = self._width(slot)
        return widths

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        table = self._table
        if not table.constrained.count:
            return self._inner.columns(batch, rows)
        forced = table.constrained.of(batch.slots[rows])
        mine, others = rows[forced], self._inner.columns(batch, rows[~forced])
        if not len(mine):
            return others
        slots = batch.slots[mine]
        own = DraftColumns(mine, np.stack([self._runs[slot] for slot in slots.tolist()]), table.known[slots])
        return own if others is None else both(own, others)

    def note_accepted(self, slots: Slots, accepted: Ints) -> None:
        free = ~self._table.constrained.of(slots)
        self._inner.note_accepted(slots[free], accepted[free])

    def _width(self, slot: int) -> int:
        """Returns how many tokens the row's next step computes."""
        table = self._table
        grammar = table.req(slot).grammar
        assert grammar is not None, "a row that may be forced has a grammar"
        forced = grammar.forced()
        # The steps in flight give the row as many tokens as they try: forced drafts are right.
        coming = int(table.high[slot]) + 1 - int(table.known[slot])
        drafts = min(len(forced) - coming, int(table.widest_forced[slot]) - 1)
        if drafts < 1:
            return 1
        run: Ints = np.full(2 * table.tokens_per_step, NO_DRAFT, dtype=np.int32)
        found = forced[: len(run)]
        run[: len(found)] = found
        self._runs[slot] = run
        return 1 + drafts


def both(one: DraftColumns, other: DraftColumns) -> DraftColumns:
    """Returns the drafts of two sets of rows together. Their runs have equal lengths."""
    rows = np.concatenate([one.rows, other.rows])
    order = np.argsort(rows)
    return DraftColumns(
        rows=rows[order],
        runs=np.concatenate([one.runs, other.runs])[order],
        known=np.concatenate([one.known, other.known])[order],
    )


NGRAM_MISSES, MODEL_MISSES = 2, 4
"""A text that does not repeat itself is seen at once; a draft model may be wrong a few times and right again."""
