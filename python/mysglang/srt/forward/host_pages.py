"""HostPages: KV pages in the memory of the host, beside those of the device, and the copies between the two.

What the scheduler knows of them: page numbers. Which tokens a page holds is its own business (mem_cache/host_tier.py);
where the bytes are is the worker's (model_executor/page_mover.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import Ints


@dataclass(frozen=True, slots=True)
class PagePairs:
    """Pages on both sides: device[i] and host[i] belong together. Both [N]; numbers begin with 1, as everywhere."""

    device: Ints
    host: Ints

    def __len__(self) -> int:
        return len(self.host)


NO_PAIRS = PagePairs(np.zeros(0, np.int32), np.zeros(0, np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCopies:
    """What is to be copied before the next step. No device page is both written out and loaded but in this order."""

    write: PagePairs = NO_PAIRS
    """From the device to the host."""
    urgent: bool = False
    """Whether the next step, and the loads, may overwrite what is written out, and must therefore wait for that."""
    load: PagePairs = NO_PAIRS
    """From the host to the device."""


class HostPages(Protocol):
    """A worker's pages on the host."""

    num_pages: int
    """Pages 1 … num_pages; 0 where there is no such memory."""

    def copy(self, copies: PageCopies) -> None:
        """Queue copies and return, if the device can work alone.

        They see what the steps launched before wrote, and the steps launched later see what is loaded. Writes never
        overtake loads of earlier calls. Loads read what was written by calls that are `done`, or by this one if it
        is urgent.
        """
        ...

    def done(self) -> int:
        """How many calls of `copy` have written out all that they were to write, from the first on; asks, no wait."""
        ...

    def wait(self) -> None:
        """Until all of them have."""
        ...

    # The bytes themselves: for threads beside that of the scheduler.

    page_bytes: int
    identity: str
    """A hash of what these bytes depend on beside the tokens: where it is equal, pages may stand for each other."""

    def read(self, pages: Ints) -> bytes | None:
        """What stands in these pages, one after another; None if there are numbers in it that are not finite."""
        ...

    def put(self, pages: Ints, data: bytes) -> None:
        """Write it there, once the loads that were asked for before are done; the pages are nobody's yet."""
        ...


class NoHostPages:
    """The null object: the host holds no pages."""

    num_pages = 0
    page_bytes = 0
    identity = ""

    def copy(self, copies: PageCopies) -> None:
        raise AssertionError("there are no pages on the host")

    def done(self) -> int:
        return 0

    def wait(self) -> None:
        pass

    def read(self, pages: Ints) -> bytes | None:
        return None

    def put(self, pages: Ints, data: bytes) -> None:
        raise AssertionError("there are no pages on the host")
