"""SGLang's path to what crosses between the processes; it all lives in `messages/`."""

from mysglang.srt.messages.control import (
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    HeartBeat,
)
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import BatchStrOutput, BatchTokenIDOutput
from mysglang.srt.messages.requests import AbortReq, TokenizedGenerateReqInput

__all__ = [
    "AbortReq",
    "BatchStrOutput",
    "BatchTokenIDOutput",
    "FlushCacheReqInput",
    "FlushCacheReqOutput",
    "GenerateReqInput",
    "GetInternalStateReq",
    "GetInternalStateReqOutput",
    "HeartBeat",
    "TokenizedGenerateReqInput",
]
