"""HostPages: KV pages in the host's memory, beside those of the device, and the copies between the two.

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
    """Copies that must be made before the next step. If a device page is both written out and loaded, it is in this
    order.
    """

    write: PagePairs = NO_PAIRS
    """Copies from the device to the host."""
    urgent: bool = False
    """True if the next step, or the loads, may overwrite pages that are being written out, and must therefore wait."""
    load: PagePairs = NO_PAIRS
    """Copies from the host to the device."""


class HostPages(Protocol):
    """A worker's pages on the host."""

    num_pages: int
    """Pages 1 … num_pages; 0 where there is no such memory."""

    def copy(self, copies: PageCopies) -> None:
        """Queues copies, and returns at once if the device can copy without the host.

        The copies run after the steps that were launched before, and before the steps that are launched later.
        Writes never overtake loads of earlier calls. Loads read what was written by calls that are `done`, or by
        this one if it is urgent.
        """
        ...

    def done(self) -> int:
        """Returns how many calls of `copy` have completed their writes, counted from the first on. Does not wait."""
        ...

    def wait(self) -> None:
        """Waits until all copies are complete."""
        ...

    # Access to the bytes, for threads other than the scheduler's.

    page_bytes: int
    identity: str
    """A hash of everything that these bytes depend on, except the tokens: pages with the same identity are
    interchangeable.
    """

    def read(self, pages: Ints) -> bytes | None:
        """Returns the content of these pages, one after another; None if it has numbers that are not finite."""
        ...

    def put(self, pages: Ints, data: bytes) -> None:
        """Write `data` to the pages, after the loads that were requested before. No request uses the pages yet."""
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
