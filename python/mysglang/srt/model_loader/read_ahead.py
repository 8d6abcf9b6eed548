"""Reading ahead of what copies a checkpoint's tensors: bytes come from the disk before they are used.

    disk ──▶ page cache ──▶ views of the mapped files ──▶ parameters
          PageAhead         tensors_ahead

A copy out of a mapped file waits for the disk at every stretch of pages that is not there, and the kernel reads little
ahead of a mapping where its readahead is small (128 KiB on most machines). PageAhead asks for the next pages in good
time and copies nothing. Blocks of GGUF are expanded by a few threads while earlier tensors are being copied.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

WINDOW = 1 << 30
"""Bytes that are read ahead of the copying: seconds of a fast disk, and little compared with the model."""
REQUEST = 1 << 25
"""Bytes of one request to the kernel."""
WORKERS = 4
"""Tensors that are read at a time."""

Result = TypeVar("Result")

Ask = Callable[[int, int, int], None]
"""(file descriptor, first byte, number of bytes): have these read into the page cache, without waiting for them."""


def ask_kernel(descriptor: int, begin: int, count: int) -> None:
    """Asks the kernel to read ahead. A system without the call reads when a page is used."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, begin, count, os.POSIX_FADV_WILLNEED)


class PageAhead:
    """Reads the files into the page cache, in order, `WINDOW` bytes ahead of the copying."""

    def __init__(self, paths: Sequence[Path], ask: Ask = ask_kernel) -> None:
        """Starts reading at once. Read errors are left to the copy that follows, which reports them."""
        self._paths = paths
        self._ask = ask
        self._turn = threading.Condition()
        self._copied = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        self._thread.start()

    def note_copied(self, num_bytes: int) -> None:
        """Reports that this many more bytes are being copied."""
        with self._turn:
            self._copied += num_bytes
            self._turn.notify()

    def close(self) -> None:
        """Stops reading. Returns when the files are closed."""
        with self._turn:
            self._closed = True
            self._turn.notify()
        self._thread.join()

    def _run(self) -> None:
        asked = 0
        for path in self._paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                size = os.fstat(descriptor).st_size
                for begin in range(0, size, REQUEST):
                    if not self._wait_until_copied(asked - WINDOW):
                        return
                    self._ask(descriptor, begin, min(REQUEST, size - begin))
                    asked += min(REQUEST, size - begin)
            except OSError:
                continue
            finally:
                os.close(descriptor)

    def _wait_until_copied(self, num_bytes: int) -> bool:
        """Waits until that many bytes were copied. Returns False if it was closed."""
        with self._turn:
            self._turn.wait_for(lambda: self._closed or self._copied >= num_bytes)
            return not self._closed


def in_order_ahead(work: Iterable[Callable[[], Result]], workers: int = WORKERS) -> Generator[Result, None, None]:
    """Yields the results of the calls, in their order; a few of the next calls run at the same time. An exception is
    raised in its turn.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="read-weights")
    begun: deque[Future[Result]] = deque()
    try:
        for call in work:
            begun.append(pool.submit(call))
            if len(begun) > workers:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
