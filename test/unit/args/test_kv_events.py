import pytest

from mysglang.srt.args.kv_events import complaint_about, read_kv_events


def test_defaults_are_sglangs() -> None:
    config = read_kv_events("{}")
    assert (config.publisher, config.endpoint, config.buffer_steps, config.hwm) == (
        "null",
        "tcp://*:5557",
        10_000,
        100_000,
    )
    assert complaint_about(None) is None


@pytest.mark.parametrize(
    ("text", "binds"),
    [
        ('{"endpoint": "tcp://*:1"}', True),
        ('{"endpoint": "tcp://[::]:1"}', True),
        ('{"endpoint": "tcp://router:1"}', False),
        ('{"endpoint": "tcp://127.0.0.1:1", "bind": true}', True),
        ('{"endpoint": "ipc:///tmp/x"}', True),
    ],
)
def test_whose_endpoint_it_is(text: str, binds: bool) -> None:
    assert read_kv_events(text).binds is binds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("zmq", "it is no JSON: "),
        ('{"publisher": "kafka"}', "publisher cannot be 'kafka'"),
        ('{"enpoint": "tcp://*:1"}', "there is no key enpoint"),
        ('{"hwm": "many"}', "hwm must be a whole number, not a text"),
        ('{"endpoint": "http://x"}', "http://x"),
        ('{"buffer_steps": 0}', "at least 1"),
        ('{"endpoint": "tcp://*:65536"}', "a port from 1 to 65535, got 'tcp://*:65536'"),
        ('{"replay_endpoint": "tcp://localhost"}', "a port from 1 to 65535"),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    assert complaint in str(complaint_about(text))
