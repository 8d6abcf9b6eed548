"""Native responses in SGLang's shapes."""

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from fixtures import small_tokenizer
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk, LogprobChunk, TokenLogprobs
from mysglang.srt.managers.response_dict import LOWEST, ResponseDicts, finish_reason_dict
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import Abort, Length, Stop
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.tokenizer import Tokenizer


def ints(*values: int) -> Any:
    return np.asarray(values, dtype=np.int32)


def chunk(text: str, ids: list[int], index: int = 0, **fields: Any) -> GenerationChunk:
    defaults = {
        "finish_reason": None,
        "prompt_tokens": 4,
        "completion_tokens": len(ids),
        "cached_tokens": 2,
        "retractions": 1,
    }
    return GenerationChunk(index=index, rid=f"r{index}", text=text, token_bytes=pack_ids(ids), **{**defaults, **fields})


def logprobs(values: list[float], ids: list[int], top: list[list[float]], asked: list[list[float]]) -> TokenLogprobs:
    top_vals = np.asarray(top, dtype=np.float32).reshape(len(ids), -1)
    return TokenLogprobs(
        vals=np.asarray(values, dtype=np.float32),
        ids=ints(*ids),
        top_vals=top_vals,
        top_ids=np.tile(np.arange(top_vals.shape[1], dtype=np.int32), (len(ids), 1)),
        token_ids_vals=np.asarray(asked, dtype=np.float32).reshape(len(ids), -1),
    )


def test_a_whole_answer() -> None:
    responses = ResponseDicts(GenerateReqInput(text="a"), None)
    response = responses.add(chunk("hi", [5, 6], finish_reason=Length(2)))
    assert responses.answer() is response
    meta_info = response.pop("meta_info")
    assert response == {"text": "hi", "output_ids": [5, 6]}
    assert meta_info.pop("e2e_latency") >= 0
    assert meta_info.pop("response_sent_to_client_ts") > 1e9
    assert meta_info == {
        "id": "r0",
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "cached_tokens": 2,
        "reasoning_tokens": 0,
        "num_retractions": 1,
        "weight_version": "default",
        "dp_rank": None,
    }


def test_a_stream_is_cumulative() -> None:
    responses = ResponseDicts(GenerateReqInput(text="a", stream=True), None)
    first = responses.add(chunk("a", [1]))
    last = responses.add(chunk("b", [2], finish_reason=Stop(2)))
    assert (first["text"], first["output_ids"]) == ("a", [1])
    assert (last["text"], last["output_ids"]) == ("ab", [1, 2])
    assert "e2e_latency" not in first["meta_info"]
    assert first["meta_info"]["finish_reason"] is None
    assert "index" not in last


def test_or_incremental() -> None:
    responses = ResponseDicts(GenerateReqInput(text="a", stream=True), None, incremental=True)
    assert [responses.add(chunk(text, [1]))["text"] for text in "abc"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "fields",
    [
        {"text": ["a"]},
        {"input_ids": [[1]]},
        {"text": "a", "sampling_params": SamplingParams(n=2)},
        {"text": ["a"], "sampling_params": [SamplingParams()]},
    ],
)
def test_several_answers_are_a_list_and_streams_tell_the_index(fields: dict[str, Any]) -> None:
    whole = ResponseDicts(GenerateReqInput(**fields), None)
    for index in (1, 0):
        assert "index" not in whole.add(chunk(str(index), [1], index))
    assert [response["text"] for response in whole.answer()] == ["0", "1"]  # type: ignore[index]
    stream = ResponseDicts(GenerateReqInput(stream=True, **fields), None)
    assert [stream.add(chunk("x", [1], index))["index"] for index in (1, 0, 1)] == [1, 0, 1]
    assert [response["text"] for response in stream.answer()] == ["x", "xx"]  # type: ignore[index]


def test_logprobs() -> None:
    obj = GenerateReqInput(text="a", stream=True, return_logprob=True, top_logprobs_num=2)
    prompt = logprobs([np.nan, -1], [3, 4], [[np.nan, np.nan], [-1, -2]], [[np.nan], [-7]])
    first = LogprobChunk(logprobs([-0.5], [5], [[-0.5, -np.inf]], [[-8]]), prompt, ints(9))
    second = LogprobChunk(logprobs([-0.25], [6], [[-0.25, -4]], [[-9]]), None, ints(9))
    for incremental in (False, True):
        responses = ResponseDicts(obj, None, incremental=incremental)
        found = [responses.add(chunk("a", [5], logprobs=part))["meta_info"] for part in (first, second)]
        assert found[0]["input_token_logprobs"] == [(None, 3, None), (-1, 4, None)]
        assert found[0]["input_top_logprobs"] == [None, [(-1, 0, None), (-2, 1, None)]]
        assert found[0]["input_token_ids_logprobs"] == [None, [(-7, 9, None)]]
        assert found[0]["output_top_logprobs"] == [[(-0.5, 0, None), (LOWEST, 1, None)]]
        outputs = [(-0.5, 5, None), (-0.25, 6, None)]
        assert found[1]["output_token_logprobs"] == (outputs[1:] if incremental else outputs)
        assert found[1]["output_token_logprobs_length"] == (1 if incremental else 2)
        assert len(found[1]["input_token_logprobs"]) == (0 if incremental else 2)
        assert b"null" in orjson.dumps(found)


@pytest.mark.parametrize("in_base64", [False, True])
@pytest.mark.parametrize("incremental", [False, True])
def test_the_likeliest_as_arrays(in_base64: bool, incremental: bool) -> None:
    """The same numbers as the tuples', chunk by chunk; tuples of these there are none then."""
    ask: dict[str, Any] = {"text": "a", "stream": True, "return_logprob": True}
    wishes = {f"return_flat_raw{side}_top_logprobs": True for side in ("", "_output")}
    flat = ResponseDicts(
        GenerateReqInput(**ask, **wishes, return_flat_raw_top_logprobs_b64=in_base64), None, incremental=incremental
    )
    tuples = ResponseDicts(GenerateReqInput(**ask), None, incremental=incremental)
    prompt = logprobs([np.nan, -1, -2], [1, 2, 3], [[np.nan, np.nan], [-1, -3], [-2, -np.inf]], [[]] * 3)
    outputs = [logprobs([-0.5], [4], [[-0.5, -0.75]], [[]]), logprobs([-5], [5], [[-0.25, -5]], [[]])]
    for output, found in zip(outputs, (prompt, None), strict=True):
        piece = chunk("x", [4], logprobs=LogprobChunk(output, found, ints()))
        arrays, rows = flat.add(piece)["meta_info"], tuples.add(piece)["meta_info"]
        for side in ("input", "output"):
            name = f"{side}_top_logprobs"
            assert name not in arrays
            if not rows[name]:
                assert f"{name}_shape" not in arrays
                continue
            nulls, shape = arrays[f"{name}_null_prefix"], arrays[f"{name}_shape"]
            assert [row is None for row in rows[name]] == [at < nulls for at in range(len(rows[name]))]
            entries = [entry for row in rows[name] if row is not None for entry in row]
            assert shape == [len(rows[name]) - nulls, 2]
            if in_base64:
                assert (arrays[f"{name}_val_flat_b64_dtype"], arrays[f"{name}_idx_flat_b64_dtype"]) == (
                    "float32",
                    "int32",
                )
                vals = np.frombuffer(base64.b64decode(arrays[f"{name}_val_flat_b64"]), dtype="<f4").tolist()
                ids = np.frombuffer(base64.b64decode(arrays[f"{name}_idx_flat_b64"]), dtype="<i4").tolist()
            else:
                vals, ids = arrays[f"{name}_val_flat"], arrays[f"{name}_idx_flat"]
            assert list(zip(vals, ids, strict=True)) == [(value, token) for value, token, _ in entries]


def test_a_form_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="return_flat_raw_top_logprobs_b64"):
        ResponseDicts(GenerateReqInput(text="a", return_flat_raw_top_logprobs_b64=True), None)


def test_columns_that_nobody_asked_for_are_absent() -> None:
    part = LogprobChunk(logprobs([-0.5], [5], [[]], [[]]), None, ints())
    meta_info = ResponseDicts(GenerateReqInput(text="a"), None).add(chunk("a", [5], logprobs=part))["meta_info"]
    assert {name for name in meta_info if "logprobs" in name} == {
        "input_token_logprobs",
        "output_token_logprobs",
        "output_token_logprobs_length",
    }


def test_token_texts(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = Tokenizer.load(small_tokenizer.write(tmp_path_factory.mktemp("tokenizer"), "metaspace"))
    token = tokenizer.encode("fox")[-1]
    obj = GenerateReqInput(text="a", return_logprob=True, return_text_in_logprobs=True)
    part = LogprobChunk(logprobs([-0.5], [token], [[]], [[]]), None, ints())
    found = ResponseDicts(obj, tokenizer).add(chunk("a", [token], logprobs=part))["meta_info"]
    assert found["output_token_logprobs"] == [(-0.5, token, tokenizer.token_text(token))]
    with pytest.raises(InvalidRequest, match="return_text_in_logprobs"):
        ResponseDicts(obj, None)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (None, None),
        (Stop("x"), {"type": "stop", "matched": "x"}),
        (Stop(5), {"type": "stop", "matched": 5}),
        (Length(3), {"type": "length", "length": 3}),
        (
            Abort("why", status=500, kind="InternalServerError"),
            {"type": "abort", "message": "why", "status_code": 500, "err_type": "InternalServerError"},
        ),
    ],
)
def test_finish_reasons(reason: Any, expected: Any) -> None:
    assert finish_reason_dict(reason) == expected
