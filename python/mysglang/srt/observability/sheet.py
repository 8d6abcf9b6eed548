"""Sheet: counters and histograms as numbers in memory, which several processes may share.

Each writer has a row and writes to no other. A reader adds the rows up, so each process can report on all of them. It
knows neither what is counted nor the format of the report. `prometheus_client` in its multiprocess mode does the same 4
to 8 times slower, and 60 times for a chunk of tokens: docs/performance.md has the figures.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from mysglang.srt.utils.disk import map_shared

NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A number that only grows."""

    name: str
    help: str
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def width(self) -> int:
        return 1


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The present amount of something, summed over all writers."""

    name: str
    help: str
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def width(self) -> int:
        return 1


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """How often values fell between `bounds`, and their sum. A bound belongs to the bucket below it."""

    name: str
    help: str
    bounds: tuple[float, ...]
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def width(self) -> int:
        return len(self.bounds) + 2


Instrument = Counter | Level | Histogram


@dataclass(frozen=True, slots=True)
class Layout:
    """Offset of each instrument's numbers in a row."""

    instruments: tuple[Instrument, ...]
    starts: dict[Instrument, int] = field(init=False)
    width: int = field(init=False)
    """Numbers in a row."""

    def __post_init__(self) -> None:
        ends = list(accumulate(instrument.width for instrument in self.instruments))
        object.__setattr__(self, "starts", dict(zip(self.instruments, [0, *ends], strict=False)))
        object.__setattr__(self, "width", ends[-1])

    def part(self, row: Sequence[float], instrument: Instrument) -> list[float]:
        """Returns the part of a row that has the numbers of `instrument`."""
        start = self.starts[instrument]
        return list(row[start : start + instrument.width])


class Sheet:
    """Counters in memory that processes share, as one writer sees them: it writes its own row and reads all. Numbers
    are float64, so counts are exact to 2^53.
    """

    def __init__(self, layout: Layout, memory: mmap.mmap | bytearray, row: int) -> None:
        self._layout = layout
        self._numbers = memoryview(memory).cast("d")
        self._first = row * layout.width

    @classmethod
    def alone(cls, layout: Layout) -> Sheet:
        """Returns a sheet with a single writer."""
        return cls(layout, bytearray(layout.width * NUMBER_BYTES), 0)

    @classmethod
    def at(cls, path: Path, layout: Layout, num_rows: int, row: int) -> Sheet:
        """Returns the sheet in the file `path`, which is created if it does not exist. The file may be removed
        afterwards. Raises ConfigError if there is no room for it.
        """
        return cls(layout, map_shared(path, num_rows * layout.width * NUMBER_BYTES), row)

    def add(self, counter: Counter | Level, amount: float = 1.0) -> None:
        """Adds `amount` to a counter or level; of a level it may be negative."""
        self._numbers[self._first + self._layout.starts[counter]] += amount

    def observe(self, histogram: Histogram, value: float, times: int = 1) -> None:
        """Counts that `value` was observed so many times."""
        start = self._first + self._layout.starts[histogram]
        self._numbers[start + bisect_left(histogram.bounds, value)] += times
        self._numbers[start + histogram.width - 1] += value * times

    def total(self, counter: Counter | Level) -> float:
        """Returns the sum of one counter over all rows."""
        return sum(self._numbers[self._layout.starts[counter] :: self._layout.width])

    def total_row(self) -> list[float]:
        """Returns the sum of all rows. A counter has one number. A histogram has one for each bucket, the last of which
        has no bound, and the sum of its values.
        """
        width = self._layout.width
        return [sum(self._numbers[column::width]) for column in range(width)]


def cumulative(histogram: Histogram, numbers: Sequence[float]) -> list[tuple[str, float]]:
    """Converts a histogram's numbers to (upper bound, how many were not above it), as Prometheus wants them."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(numbers[:-1]), strict=True))
