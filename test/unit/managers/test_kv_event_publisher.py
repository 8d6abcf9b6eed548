"""Messages to a subscriber over ZMQ: numbered batches from which it can mirror the cache, and replays of missed
ones.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from fixtures.patience import PATIENCE_S, wait_until
from fixtures.ports import reserved_port
from fixtures.router_mirror import RouterMirror
from mysglang.srt.args.kv_events import KvEventsConfig
from mysglang.srt.distributed.ranks import RANKS_OF_ONE
from mysglang.srt.entrypoints.launcher import find_model, make_port_args
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.managers.kv_event_publisher import END_OF_REPLAY, EventSockets, Handover, NoPublisher, ZmqPublisher
from mysglang.srt.managers.scheduler_builder import Makers, NamedWorker, build_scheduler
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_events import KvEventLog
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.server_args import ServerArgs

PATIENCE_MS = int(1000 * PATIENCE_S)


class Desk:
    """A cache of 64 tokens, its publisher, and a subscriber."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.config = KvEventsConfig(
            publisher="zmq", endpoint=f"ipc://{folder}/pub", replay_endpoint=f"ipc://{folder}/replay", **options
        )
        log = KvEventLog(64, 1)
        self.publisher = ZmqPublisher(EventSockets(self.config), log)
        self.kv = KvManager([SpaceShape(64, 1)], 4, 64, prefix_cache("radix", listener=self.publisher.listener))
        self.subscriber = self._socket(zmq.SUB, self.config.endpoint)
        self.subscriber.subscribe(self.config.topic)
        self.mirror = RouterMirror()
        self._joined = False

    def _socket(self, kind: int, endpoint: str | None) -> zmq.Socket[bytes]:
        end: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        end.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        end.connect(str(endpoint))
        return end

    def ask(self, *ids: int) -> None:
        """A request comes and goes; its events are one batch."""
        prompt = np.array(ids, dtype=np.int32)
        slot = self.kv.open(self.kv.match(prompt, extra_key="", limit=len(ids)))
        assert self.kv.extend(slot, len(ids))
        self.kv.release(slot, prompt)
        self.publisher.flush()

    def join(self) -> None:
        """A subscription takes a moment to arrive: send until something comes back."""
        self.subscriber.setsockopt(zmq.RCVTIMEO, 20)
        tokens = itertools.count(1000)

        def heard() -> bool:
            self.ask(next(tokens))
            try:
                self.take()
            except zmq.Again:
                return False
            return True

        wait_until(heard, lambda: "the subscription never arrived")
        self.subscriber.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)

    def take(self) -> tuple[bytes, int, list[Any]]:
        topic, number, batch = self.subscriber.recv_multipart()
        return topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(batch)

    def replay(self, first: int) -> list[tuple[int, list[Any]]]:
        """Batches that are replayed from this number on."""
        socket = self._socket(zmq.DEALER, self.config.replay_endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            empty, number, batch = socket.recv_multipart()
            assert empty == b""
            if number == END_OF_REPLAY:
                assert batch == b""
                socket.close(linger=0)
                return batches
            batches.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(batch)))

    def kept(self, count: int) -> list[int]:
        """Numbers of what is given out again, as soon as it is so many."""
        numbers: list[int] = []

        def there() -> bool:
            numbers[:] = [number for number, _ in self.replay(0)]
            return len(numbers) >= count

        wait_until(there, lambda: f"{count} batches were expected, {numbers} are there")
        return numbers

    def close(self) -> None:
        self.publisher.close()
        self.subscriber.close(linger=0)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(**options: Any) -> Desk:
        desks.append(Desk(tmp_path, **options))
        return desks[-1]

    yield make
    for one in desks:
        one.close()


def test_a_subscriber_that_missed_the_beginning_asks_for_it_and_mirrors_the_cache(desk: Callable[..., Desk]) -> None:
    d = desk(topic="kv")
    d.ask(1, 2, 3)
    d.ask(1, 2, 4)
    d.join()
    for i in range(30):
        d.ask(1, 2, 5 + i, 6, 7)
    live = {}
    last = d.publisher._number - 1
    while last not in live:
        topic, number, batch = d.take()
        assert topic == b"kv"
        live[number] = batch
    missed = dict(d.replay(0))
    assert list(missed) == list(range(last + 1))
    assert all(missed[number] == batch for number, batch in live.items())
    for number in range(last + 1):
        ts, events, rank = missed[number]
        assert ts > 1.6e9 and rank == 0
        for event in events:
            d.mirror.apply(event)
    assert len(d.mirror.prefixes) == d.kv.state().evictable == 64, "the cache is full, so much was evicted"
    for _, tokens in d.mirror.prefixes:
        ids = np.array(tokens, dtype=np.int32)
        assert d.kv.match(ids, extra_key="", limit=len(ids)).num_tokens == len(ids)
    assert [number for number, _ in d.replay(last - 1)] == [last - 1, last]
    assert d.replay(last + 1) == []


def test_only_the_last_batches_are_kept(desk: Callable[..., Desk]) -> None:
    d = desk(buffer_steps=3)
    for i in range(10):
        d.ask(i)
    for _ in range(200):
        if (kept := d.kept(3))[-1] == 9:
            break
    assert kept == [7, 8, 9]


def test_what_is_no_question_is_passed_over(desk: Callable[..., Desk]) -> None:
    d = desk()
    d.ask(1)
    stranger = d._socket(zmq.DEALER, d.config.replay_endpoint)
    for frames in ([b"x"], [b"", b"short"], [b"not empty", bytes(8)], [b"", bytes(8), b"more"], [b"", bytes(60)]):
        stranger.send_multipart(frames)
    stranger.close(linger=100)
    assert d.kept(1) == [0]


def test_nothing_is_sent_while_nothing_happens(desk: Callable[..., Desk]) -> None:
    d = desk()
    for _ in range(5):
        d.publisher.flush()
    d.ask(1)
    assert d.kept(1) == [0]


def test_the_scheduler_never_waits_and_a_loss_shows_as_a_gap(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = threading.Event()
    serve = EventSockets.serve

    def late(sockets: EventSockets, handover: Handover) -> None:
        held.wait(PATIENCE_S)
        serve(sockets, handover)

    monkeypatch.setattr(EventSockets, "serve", late)
    d = desk(max_queue_size=2)
    for i in range(9):
        d.ask(i)
    held.set()
    assert len([record for record in caplog.records if "are lost" in record.message]) == 1
    d.kept(2)
    d.ask(50)
    assert d.kept(3) == [0, 1, 9]


@pytest.mark.promise(6)
def test_a_port_in_use_ends_the_launch_before_weights_are_loaded(tmp_path: Path) -> None:
    def load(*_: object) -> NamedWorker:
        raise AssertionError("weights are loaded")

    with reserved_port() as port, socket.create_server(("127.0.0.1", port)):
        config = {"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}", "bind": True}
        flags = ("--device", "cpu", "--grammar-backend", "none", "--kv-events-config", json.dumps(config))
        args, _ = find_model(ServerArgs.from_cli(flags))
        ports = make_port_args(tmp_path)
        with pytest.raises(ConfigError, match=r"--kv-events-config: tcp.*in use"):
            build_scheduler(args, ports, RANKS_OF_ONE, Makers(worker=load))


def test_an_endpoint_that_cannot_be_opened_ends_the_launch() -> None:
    with pytest.raises(ConfigError, match="--kv-events-config: ipc:///no/such"):
        EventSockets(KvEventsConfig(publisher="zmq", endpoint="ipc:///no/such/folder/pub"))


def test_nobody_is_told_unless_asked() -> None:
    publisher = NoPublisher()
    kv = KvManager([SpaceShape(8, 1)], 2, 8, prefix_cache("radix", listener=publisher.listener))
    ids = np.array([1, 2], dtype=np.int32)
    slot = kv.open(kv.match(ids, extra_key="", limit=1))
    assert kv.extend(slot, 2)
    kv.release(slot, ids)
    publisher.flush()
    assert kv.flush()
