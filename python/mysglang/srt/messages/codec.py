"""msgspec encoders and decoders, one union per link: a decoder accepts only what may arrive there.

A link is named after its reader. Nothing that arrives can run code; a malformed message raises `msgspec.MsgspecError`
(validation or decode error) with the path of what is wrong.

The detokenizer loads this module: what only other processes need, such as numpy and the fields of requests, is in
`packing.py` and `requests.py`.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

import msgspec

from mysglang.srt.messages.control import (
    ControlReqOutput,
    DetokenizerBeat,
    FlushCacheReqOutput,
    FrontBeat,
    FrontOrder,
    GetInternalStateReqOutput,
    HeartBeat,
    PeerAbortReq,
)
from mysglang.srt.messages.outputs import BatchStrOutput, BatchTokenIDOutput

ToDetokenizer: TypeAlias = BatchTokenIDOutput
ToTokenizer: TypeAlias = (
    BatchStrOutput
    | FlushCacheReqOutput
    | GetInternalStateReqOutput
    | ControlReqOutput
    | HeartBeat
    | DetokenizerBeat
    | FrontBeat
    | PeerAbortReq
    | FrontOrder
)

Message = TypeVar("Message")


class Codec(Generic[Message]):
    """Encodes and decodes the messages of one link."""

    def __init__(self, union: object) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)

    def encode(self, message: Message) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> Message:
        """Raises msgspec.MsgspecError if `data` is not a message of this link."""
        try:
            return self._decoder.decode(data)
        except (RecursionError, UnicodeDecodeError) as error:
            raise msgspec.DecodeError(f"{error}") from None


def detokenizer_codec() -> Codec[ToDetokenizer]:
    """Returns the codec of messages from the schedulers to the detokenizer."""
    return Codec(ToDetokenizer)


def tokenizer_codec() -> Codec[ToTokenizer]:
    """Returns the codec of messages to a TokenizerManager, from detokenizers, schedulers and other fronts."""
    return Codec(ToTokenizer)


def list_ids(data: bytes) -> list[int]:
    """Returns the numbers that `packing.pack_ids` packed."""
    return memoryview(data).cast("i").tolist()
