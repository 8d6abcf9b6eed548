"""Messages between the scheduler and the process that compiles grammars: frames on two pipes.

frame = length (4 bytes, little-endian) + msgpack of one struct
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

import msgspec

from mysglang.srt.constrained.backend import JsonStyle
from mysglang.srt.sampling.grammar_spec import GrammarKind

LENGTH_BYTES = 4

Message = TypeVar("Message")


class CompilerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """First message to the compiler process: what all grammars have in common."""

    backend: str
    tokenizer_path: str
    vocab_size: int
    eos_ids: tuple[int, ...]
    style: JsonStyle = JsonStyle()
    timeout_s: float = 5.0
    memory_bytes: int = 1 << 30
    """Memory that compiling one grammar may take, in addition to what the process holds already."""
    at_once: int = 2
    """Grammars that are compiled at the same time, as long as no other tenant waits (`compile_turns.py`)."""
    threads: int = 1
    """Threads that compile one grammar."""


class Job(msgspec.Struct, frozen=True, tag="job"):
    """Message to the compiler process: compile this grammar at once."""

    number: int
    kind: GrammarKind
    text: str


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Message to the compiler process: no request waits for this job any more, so stop it and do not answer."""

    number: int


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Message from the compiler process: it is ready to compile."""


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """Message from the compiler process: a job is done. `data` is for the backend's `load`."""

    number: int
    data: memoryview
    """A view of what came, since it can be 40 MB, and while that is copied nothing else of the process can run."""
    seconds: float = 0.0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Message from the compiler process: a job cannot be done. `lasting`: because of what the grammar is, not because
    the machine was busy.
    """

    number: int
    reason: str
    lasting: bool
    status: int = 400
    """The HTTP status of the answer."""


ToProcess: TypeAlias = Job | Drop
ToParent: TypeAlias = Started | Compiled | Refused


class Frames(Generic[Message]):
    """Turns bytes, as they arrive, into messages of one type."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Returns the messages that are complete now. Raises msgspec.MsgspecError for an invalid message."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "little")
            if len(self._buffer) < end:
                break
            # A message may go on looking at the buffer that it came in.
            whole, self._buffer = self._buffer, self._buffer[end:]
            messages.append(self._decoder.decode(memoryview(whole)[LENGTH_BYTES:end]))
        return messages


def frame(message: msgspec.Struct) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data
