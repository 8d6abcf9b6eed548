"""Which errors say that the machine is short of something for the moment."""

from __future__ import annotations

import errno
import os

import pytest

from mysglang.srt.utils.shortage import shortage_in


@pytest.mark.promise(46)
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("libx.so: cannot open shared object file: Too many open files"),
    ],
    ids=repr,
)
def test_promise_46_what_is_short_is_named(error: Exception) -> None:
    assert shortage_in(error)
    try:
        raise ValueError("no store") from error
    except ValueError as outer:
        assert shortage_in(outer) == shortage_in(error)


@pytest.mark.parametrize("error", [None, OSError(errno.ENOENT, "no such file"), RuntimeError("bug"), ValueError("x")])
def test_other_errors_are_none(error: Exception | None) -> None:
    assert shortage_in(error) is None


def test_errors_that_caused_each_other_are_looked_at_once() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert shortage_in(first) is None
