"""An example of every JSON body, which /docs shows and can send. Those for models that generate run as they are.

What a request must first have got from the server or from a trainer, such as the id of a file, is a placeholder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Body = Mapping[str, Any]

_QUESTION = "What is the capital of France?"
_CHAT = [{"role": "user", "content": _QUESTION}]
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": _CITY}}
_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
_CITIES = ["Paris is the capital of France.", "Berlin is the capital of Germany."]

EXAMPLES: Mapping[str, Body] = {
    # generation
    "GenerateReqInput": {
        "text": "The capital of France is",
        "sampling_params": {"temperature": 0, "max_new_tokens": 8},
    },
    "ChatCompletionRequest": {"model": "default", "messages": _CHAT, "max_tokens": 64},
    "CompletionRequest": {"model": "default", "prompt": "The capital of France is", "max_tokens": 8},
    "ResponsesRequest": {"model": "default", "input": _QUESTION, "max_output_tokens": 64},
    "MessagesRequest": {"model": "default", "messages": _CHAT, "max_tokens": 64},
    "OllamaChatRequest": {"model": "default", "messages": _CHAT, "stream": False},
    "OllamaGenerateRequest": {"model": "default", "prompt": _QUESTION, "stream": False},
    "VertexGenerateReqInput": {
        "instances": [{"text": "The capital of France is"}],
        "parameters": {"sampling_params": {"max_new_tokens": 8}},
    },
    # what surrounds it
    "CountResponseTokensRequest": {"model": "default", "input": _QUESTION},
    "CountTokensRequest": {"model": "default", "messages": _CHAT},
    "TokenizeRequest": {"prompt": _QUESTION},
    "DetokenizeRequest": {"tokens": [72, 105]},
    "ParseFunctionCallReq": {"text": _CALL, "tools": [_WEATHER], "tool_call_parser": "qwen25"},
    "SeparateReasoningReqInput": {"text": "<think>3 + 4 is 7.</think>7", "reasoning_parser": "qwen3"},
    "OllamaShowRequest": {"model": "default"},
    "OpenSessionReqInput": {"capacity_of_str_len": 0, "timeout": 60},
    "CloseSessionReqInput": {"session_id": "SESSION"},
    "CreateBatchRequest": {
        "input_file_id": "file-ID",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    # vectors and scores
    "EmbeddingReqInput": {"text": _QUESTION},
    "EmbeddingRequest": {"model": "default", "input": _CITIES},
    "ClassifyRequest": {"model": "default", "input": _CITIES},
    "RerankRequest": {"query": _QUESTION, "documents": _CITIES},
    "CohereRerankRequest": {"query": _QUESTION, "documents": _CITIES},
    "ScoringRequest": {"query": f"{_QUESTION} ", "items": ["Paris", "Berlin"], "label_token_ids": [72, 105]},
    "OllamaEmbedRequest": {"model": "default", "input": _CITIES},
    "OllamaEmbeddingsRequest": {"model": "default", "prompt": _QUESTION},
    # operation
    "AbortRequest": {"rid": "REQUEST"},
    "PauseGenerationReqInput": {"mode": "in_place"},
    "ContinueGenerationReqInput": {},
    "ConfigureLoggingReq": {"log_requests": True},
    "SetInternalStateReqInput": {"server_args": {"schedule_conservativeness": 1.0}},
    "SlowDownReqInput": {"forward_sleep_time": 0.1},
    "ProfileReqInput": {"num_steps": 5},
    # weights and memory
    "UpdateWeightFromDiskReqInput": {"model_path": "/models/newer"},
    "UpdateWeightsFromTensorReqInput": {"serialized_named_tensors": ["BASE64"]},
    "UpdateWeightsFromDistributedReqInput": {
        "names": ["model.norm.weight"],
        "dtypes": ["bfloat16"],
        "shapes": [[4096]],
    },
    "InitWeightsUpdateGroupReqInput": {
        "master_address": "127.0.0.1",
        "master_port": 29500,
        "rank_offset": 1,
        "world_size": 2,
    },
    "DestroyWeightsUpdateGroupReqInput": {},
    "UpdateWeightVersionReqInput": {"new_version": "step-100"},
    "GetWeightsByNameReqInput": {"name": "model.norm.weight", "truncate_size": 4},
    "CheckWeightsReqInput": {"action": "checksum"},
    "ReleaseMemoryOccupationReqInput": {"tags": ["kv_cache"]},
    "ResumeMemoryOccupationReqInput": {"tags": ["kv_cache"]},
}
"""Name of a body's schema -> a body."""
