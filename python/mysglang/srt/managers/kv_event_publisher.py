"""Publishes KV events over ZMQ, as vLLM and SGLang do, and sends batches again that a subscriber missed.

    PUB     [topic, sequence number, batch]            8 bytes, big-endian; msgpack
    ROUTER  [who, "", first number wanted]      ──▶    [who, "", number, batch] for each, then [who, "", -1, ""]

One thread owns the ZMQ sockets. The scheduler puts encoded batches into its queue and never waits. If the queue is
full, a batch is dropped together with its number, so that subscribers see the gap.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections import deque
from functools import partial
from typing import Protocol

import msgspec
import zmq

from mysglang.srt.args.kv_events import KvEventsConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.mem_cache.kv_events import KvEventBatch, KvEventLog, NoListener, PageListener
from mysglang.srt.utils.service_thread import ServiceThread

logger = logging.getLogger(__name__)

NUMBER_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
LARGEST_QUESTION = 64
"""Bytes that a replay may be asked for with."""


class EventPublisher(Protocol):
    """Collects page events and publishes them."""

    @property
    def listener(self) -> PageListener: ...

    def host_listener(self, num_pages: int) -> PageListener:
        """Returns the listener for the pages of a tier on the host."""
        ...

    def flush(self) -> None:
        """Publishes the events since the last call. Costs nothing if there were none."""
        ...


class NoPublisher:
    """A null object: no events are published."""

    listener: PageListener = NoListener()

    def host_listener(self, num_pages: int) -> PageListener:
        return NoListener()

    def flush(self) -> None:
        pass


class ZmqPublisher:
    """Numbers batches from 0 on and publishes them; keeps the last ones for replays."""

    def __init__(self, sockets: EventSockets, log: KvEventLog) -> None:
        self._log = log
        self._encoder = msgspec.msgpack.Encoder()
        self._number = 0
        self._dropping = False
        self._handover = Handover(sockets.max_queue_size)
        self._thread = ServiceThread("kv-events", partial(sockets.serve, self._handover))

    @property
    def listener(self) -> PageListener:
        return self._log

    def host_listener(self, num_pages: int) -> PageListener:
        return self._log.of_host(num_pages)

    def flush(self) -> None:
        events = self._log.take()
        if not events:
            return
        batch = self._encoder.encode(KvEventBatch(time.time(), events, 0))
        number, self._number = self._number, self._number + 1
        lost = not self._handover.offer((number.to_bytes(NUMBER_BYTES, "big"), batch))
        if lost and not self._dropping:
            logger.warning("The queue of KV events is full, so batches from number %d on are lost.", number)
        self._dropping = lost

    def close(self) -> None:
        """Publishes the remaining batches, and ends the thread."""
        self._handover.end()
        self._thread.join()
        self._handover.close()


class Handover:
    """A bounded queue of batches from the scheduler to the thread: never more than `size`, while ZMQ's own limit is
    only approximate.

    The thread polls `bell`. A ring that finds no space is not needed: an earlier one has not been received yet, and its
    receiver takes all batches that are there.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self.bell, self._rope = socket.socketpair()
        for end in (self.bell, self._rope):
            end.setblocking(False)

    def offer(self, batch: tuple[bytes, bytes]) -> bool:
        """Hands over a batch. Returns False if there is no space for it."""
        if len(self._waiting) >= self._size:
            return False
        self._waiting.append(batch)
        with contextlib.suppress(BlockingIOError):
            self._rope.send(b"!")
        return True

    def end(self) -> None:
        """Ends the handover: no batch follows."""
        self._rope.shutdown(socket.SHUT_WR)

    def take(self) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Returns the batches since the last call, and True if more may come. Never blocks: wait for `bell`."""
        # Rings first: what is handed over from here on rings again.
        more = self.bell.recv(4096) != b""
        return [self._waiting.popleft() for _ in range(len(self._waiting))], more

    def close(self) -> None:
        self.bell.close()
        self._rope.close()


class EventSockets:
    """The sockets, which only the publisher's thread uses. They are opened before there is anything to publish, so that
    an endpoint in use is known before the weights are loaded.
    """

    def __init__(self, config: KvEventsConfig) -> None:
        """Raises ConfigError if an endpoint cannot be opened."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.max_queue_size = config.max_queue_size
        self._topic = config.topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._public = context.socket(zmq.PUB)
        self._public.set_hwm(config.hwm)
        self._replays = context.socket(zmq.ROUTER)
        # The limit fits a whole replay; a subscriber that does not read cannot occupy more memory than that.
        self._replays.setsockopt(zmq.SNDHWM, config.buffer_steps + 1)
        self._replays.setsockopt(zmq.MAXMSGSIZE, LARGEST_QUESTION)
        try:
            (self._public.bind if config.binds else self._public.connect)(config.endpoint)
            if config.replay_endpoint is not None:
                self._replays.bind(config.replay_endpoint)
        except zmq.ZMQError as error:
            self._close()
            raise ConfigError(f"--kv-events-config: {config.endpoint}, {config.replay_endpoint}: {error}.") from error

    def serve(self, handover: Handover) -> None:
        """Sends what is handed over, until no more follows."""
        poller = zmq.Poller()
        poller.register(handover.bell, zmq.POLLIN)
        poller.register(self._replays, zmq.POLLIN)
        more = True
        while more:
            ready = dict(poller.poll())
            if handover.bell.fileno() in ready:
                batches, more = handover.take()
                for number, batch in batches:
                    self._kept.append((number, batch))
                    self._public.send_multipart([self._topic, number, batch])
            if self._replays in ready:
                self._replay(self._replays.recv_multipart())
        self._close()

    def _replay(self, question: list[bytes]) -> None:
        """Answers a request to repeat all batches from a number on; other messages are ignored."""
        if len(question) != 3 or question[1] or len(question[2]) != NUMBER_BYTES:
            return
        who, _, first = question
        # Big-endian numbers of one length are ordered as their bytes are.
        for number, batch in self._kept:
            if number >= first:
                self._replays.send_multipart([who, b"", number, batch])
        self._replays.send_multipart([who, b"", END_OF_REPLAY, b""])

    def _close(self) -> None:
        for end in (self._public, self._replays):
            end.close(linger=1000)
