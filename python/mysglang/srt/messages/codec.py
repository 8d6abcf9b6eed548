"""msgspec encoders and decoders, one union per link: a decoder accepts only what may arrive there.

A link is named after its reader. Nothing that arrives can run code; a malformed message raises `msgspec.MsgspecError`
(validation or decode error) with the path of what is wrong.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mysglang.srt.messages.control import (
    Command,
    ControlReqOutput,
    DetokenizerBeat,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    FrontBeat,
    FrontOrder,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    HeartBeat,
    PeerAbortReq,
)
from mysglang.srt.messages.outputs import BatchStrOutput, BatchTokenIDOutput
from mysglang.srt.messages.requests import AbortReq, TokenizedGenerateReqInput

ToScheduler: TypeAlias = TokenizedGenerateReqInput | AbortReq | FlushCacheReqInput | GetInternalStateReq | Command
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

ID_BYTES = 4
"""Bytes of a token id, and of every other number that travels as int32."""


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


def scheduler_codec() -> Codec[ToScheduler]:
    """Returns the codec of messages from the TokenizerManager to the schedulers."""
    return Codec(ToScheduler)


def detokenizer_codec() -> Codec[ToDetokenizer]:
    """Returns the codec of messages from the schedulers to the detokenizer."""
    return Codec(ToDetokenizer)


def tokenizer_codec() -> Codec[ToTokenizer]:
    """Returns the codec of messages to a TokenizerManager, from detokenizers, schedulers and other fronts."""
    return Codec(ToTokenizer)


def pack_ids(ids: list[int] | npt.NDArray[np.int32]) -> bytes:
    """Packs token ids, or other small numbers, as int32 bytes, which cross a socket instead of a list."""
    return np.asarray(ids, dtype=np.int32).tobytes()


def unpack_ids(data: bytes) -> npt.NDArray[np.int32]:
    """Returns the read-only array over `data`; no copy."""
    return np.frombuffer(data, dtype=np.int32)


def unpack_vectors(data: bytes, count: int) -> npt.NDArray[np.float32]:
    """Returns the read-only [count, size] array over float32 bytes, row by row; no copy."""
    return np.frombuffer(data, dtype=np.float32).reshape(count, -1)
