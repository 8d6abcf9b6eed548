"""Bytes on a socket between the processes: data that is no message of the link is dropped, and the next message is
read.
"""

import random
import tempfile
from pathlib import Path

import msgspec
import pytest

from fixtures.patience import PATIENCE_S
from mysglang.srt.messages.channels import Pull, Push
from mysglang.srt.messages.codec import Codec, detokenizer_codec, tokenizer_codec
from mysglang.srt.messages.requests import AbortReq, scheduler_codec

CODECS = {"scheduler": scheduler_codec(), "detokenizer": detokenizer_codec(), "tokenizer": tokenizer_codec()}
A_PICKLE = b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
NESTED = 100_000


def garbage(seed: int) -> list[bytes]:
    """Bytes of any kind: drawn ones, messages that are damaged or cut off, other types, nests that are very deep."""
    draw = random.Random(seed)
    sound = scheduler_codec().encode(AbortReq(rid="a request"))
    found = [b"", A_PICKLE, b"\x91" * NESTED, b"\x81\xa1a" * NESTED, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
    found += [draw.randbytes(draw.randrange(1, 200)) for _ in range(300)]
    found += [sound[:cut] for cut in range(len(sound))]
    for value in (None, 5, "text", [1, 2], {"type": "AbortReq"}, {"type": 3}, {"type": "posix.system", "rid": "true"}):
        found.append(msgspec.msgpack.encode(value))
    for _ in range(300):
        damaged = bytearray(sound)
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        found.append(bytes(damaged))
    return found


@pytest.mark.promise(37)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_it_decodes_or_is_refused(codec: Codec[object]) -> None:
    refused = 0
    for data in garbage(37):
        try:
            message = codec.decode(data)
        except msgspec.MsgspecError:
            refused += 1
        else:
            assert type(message).__module__.startswith("mysglang.srt.messages.")
    assert refused > 400


@pytest.mark.promise(37)
def test_a_message_after_garbage_is_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{Path(folder) / 'link'}"
        pull, push = Pull(endpoint, scheduler_codec()), Push(endpoint, Raw())
        for data in garbage(38):
            if not is_message(data):
                push.send(data)
        push.send(scheduler_codec().encode(AbortReq(rid="the last")))
        read: list[object] = []
        while not read:
            assert pull.poll(int(1000 * PATIENCE_S))
            read = [*pull.drain()]
        push.close()
        pull.close()
    assert read == [AbortReq(rid="the last")]


def is_message(data: bytes) -> bool:
    try:
        scheduler_codec().decode(data)
    except msgspec.MsgspecError:
        return False
    return True


class Raw(Codec[bytes]):
    """Sends bytes as they are."""

    def __init__(self) -> None:
        pass

    def encode(self, message: bytes) -> bytes:
        return message
