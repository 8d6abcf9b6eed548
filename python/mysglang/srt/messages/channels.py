"""Channels: one-way, typed pipes between the processes, over ZMQ PUSH/PULL on ipc sockets.

The reader binds, writers connect, so a writer may start first. Socket files live in a private directory (0700) that
`utils/network.py` makes. A message that does not decode is logged and dropped: garbage on a socket has no effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
import zmq

from mysglang.srt.messages.codec import Codec

logger = logging.getLogger(__name__)

READABLE = int(zmq.POLLIN)

COPIED_BYTES = 1 << 16
"""Up to which a message is copied when it is sent: to share its memory takes longer than to copy so little."""

Out = TypeVar("Out", contravariant=True)
Message = TypeVar("Message")
Incoming = TypeVar("Incoming", covariant=True)


class Sender(Protocol[Out]):
    """Sending end of one link."""

    def send(self, message: Out) -> None: ...


class Receiver(Protocol[Message]):
    """Receiving end of one link. Messages of each sender arrive in order."""

    def poll(self, timeout_ms: int) -> bool:
        """Returns True if a message is there. Waits up to `timeout_ms` for one."""
        ...

    def drain(self) -> list[Message]:
        """Returns all messages that are there now; never waits."""
        ...


class AsyncReceiver(Protocol[Incoming]):
    """Receiving end of one link in a process with an event loop."""

    async def receive(self) -> Sequence[Incoming]:
        """Returns the messages that are there, at least one; waits for it."""
        ...


class Push(Generic[Message]):
    """The sending end. `send` never blocks: the queue is unbounded, and bounded by admission at the front."""

    def __init__(self, endpoint: str, codec: Codec[Message], *, await_reader: bool = False) -> None:
        """`await_reader`: True if the constructor returns only when the reader is there and the two are connected.

        A writer that comes first tries again every tenth of a second. If the file of the socket is removed before the
        next attempt, no attempt succeeds, and nothing that the writer sends ever arrives.
        """
        self._codec = codec
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.set(zmq.SNDHWM, 0)
        # A dead reader must not keep this process from ending.
        self._socket.set(zmq.LINGER, 0)
        if not await_reader:
            self._socket.connect(endpoint)
            return
        handshake: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(endpoint)
        handshake.poll()
        self._socket.disable_monitor()
        handshake.close()

    def send(self, message: Message) -> None:
        data = self._codec.encode(message)
        self._socket.send(data, 0, len(data) <= COPIED_BYTES)

    def close(self) -> None:
        """Closes the socket. Messages that could not be delivered within a second are dropped."""
        self._socket.close(linger=1000)


class AsyncPush(Push[Message]):
    """The sending end in a process with an event loop. Messages that are sent in one turn of the loop leave together at
    its end.

    Each message that leaves wakes a thread of ZMQ in both processes, and the reader, which together take several times
    as long as the message itself.
    """

    def __init__(self, endpoint: str, codec: Codec[Message]) -> None:
        super().__init__(endpoint, codec)
        self._waiting: list[bytes] = []

    def send(self, message: Message) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(self._codec.encode(message))

    def close(self) -> None:
        self._flush()
        super().close()

    def _flush(self) -> None:
        # Parts of one ZMQ message: its reader takes them one by one, as if each had come alone.
        parts, self._waiting = self._waiting, []
        if parts:
            self._socket.send_multipart(parts, copy=sum(map(len, parts)) <= COPIED_BYTES)


class Pull(Generic[Message]):
    """The receiving end of a process that polls."""

    def __init__(self, endpoint: str, codec: Codec[Message]) -> None:
        self._codec = codec
        self._socket = _bound(endpoint)

    def poll(self, timeout_ms: int) -> bool:
        return bool(self._socket.poll(timeout_ms))

    def drain(self) -> list[Message]:
        return _drain(self._socket, self._codec)

    def close(self) -> None:
        self._socket.close(linger=0)


class AsyncPull(Generic[Message]):
    """The receiving end in a process with an event loop; one task reads it.

    The loop watches ZMQ's own descriptor, which reports changes, not messages: so it is read until nothing is left.
    """

    def __init__(self, endpoint: str, codec: Codec[Message]) -> None:
        self._codec = codec
        self._socket = _bound(endpoint)
        self._descriptor = int(self._socket.get(zmq.FD))
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that watches."""

    async def receive(self) -> list[Message]:
        """Returns the messages that are there, at least one that decodes. Others may run between two calls."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._descriptor, self._news.set)
        else:
            await asyncio.sleep(0)
        while not (messages := _drain(self._socket, self._codec)):
            self._news.clear()
            await self._news.wait()
        return messages

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=0)


def _bound(endpoint: str) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 0)
    socket.bind(endpoint)
    return socket


def _drain(socket: zmq.Socket[bytes], codec: Codec[Message]) -> list[Message]:
    """Returns the messages that are there now and can be decoded."""
    messages: list[Message] = []
    # Asking first is cheaper than an exception in each of the many turns in which nothing came.
    while int(socket.get(zmq.EVENTS)) & READABLE:
        data = socket.recv(zmq.NOBLOCK)
        try:
            messages.append(codec.decode(data))
        except msgspec.MsgspecError as error:
            logger.error("A message of %d bytes was dropped, because it cannot be decoded: %s", len(data), error)
    return messages
