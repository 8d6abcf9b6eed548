"""The request to each API, and the reading of its frames."""

from typing import Any

import msgspec
import orjson
import pytest

from mysglang.bench.backends import AskOptions, make_backend
from mysglang.bench.prompts import Prompt
from mysglang.bench.records import RequestRecord
from mysglang.bench.refused import Refused

TEXT, IDS = Prompt("Hi there", 2, 7), Prompt([5, 6], 2, 7)
PLAIN = AskOptions(model="m")


def read(name: str, *frames: dict[str, Any], **kind: bool) -> RequestRecord:
    """The frames, a second apart."""
    backend, record = make_backend(name, **kind), RequestRecord(0.0, 2)
    for second, frame in enumerate(frames, 1):
        backend.read(orjson.dumps(frame), float(second), record)
    return record


def native(text: str, completion_tokens: int, **meta: Any) -> dict[str, Any]:
    return {"text": text, "output_ids": [1], "meta_info": {"completion_tokens": completion_tokens, **meta}}


class TestNative:
    def test_body(self) -> None:
        body = make_backend("sglang").body(TEXT, PLAIN)
        sampling = {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": 7, "ignore_eos": True}
        assert body == {"text": "Hi there", "sampling_params": sampling, "stream": True}
        assert make_backend("sglang").body(IDS, PLAIN)["input_ids"] == [5, 6]

    def test_extra_fields_go_over_it(self) -> None:
        extra = {"sampling_params": {"temperature": 1.0, "min_p": 0.1}, "cache_salt": "a"}
        body = make_backend("sglang").body(TEXT, AskOptions(model="m", ignore_eos=False, extra=extra))
        assert body["cache_salt"] == "a"
        sampling = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 7, "ignore_eos": False, "min_p": 0.1}
        assert body["sampling_params"] == sampling

    def test_what_is_no_object_takes_the_place_of_one(self) -> None:
        """The server says what is wrong with it."""
        assert (
            make_backend("sglang").body(TEXT, AskOptions(model="m", extra={"sampling_params": 3}))["sampling_params"]
            == 3
        )

    def test_frames_hold_everything_so_far(self) -> None:
        record = read(
            "sglang",
            native("a", 1, prompt_tokens=3, cached_tokens=2, finish_reason=None),
            native("abc", 3, prompt_tokens=3, cached_tokens=2, finish_reason={"type": "length", "length": 3}),
            native("abc", 3),
        )
        assert record.arrivals == [(1.0, 1), (2.0, 2)]
        assert (record.text, record.output_tokens, record.prompt_tokens) == ("abc", 3, 3)
        assert record.ok

    def test_incremental_frames(self) -> None:
        assert read("sglang", native("a", 1), native("bc", 3), incremental=True).text == "abc"

    def test_failures(self) -> None:
        assert "broke" in read("sglang", {"error": {"message": "it broke"}}).error
        aborted = native("a", 1, finish_reason={"type": "abort", "message": "went away"})
        assert read("sglang", aborted).error == "went away"
        assert read("sglang", {"text": "a"}).error == "a frame without meta_info"
        assert read("sglang", native("a", 1) | {"error": None}).ok
        with pytest.raises(msgspec.DecodeError):
            make_backend("sglang").read(b"no json", 0.0, RequestRecord(0.0, 1))


class TestOpenAI:
    @pytest.mark.parametrize("name", ["vllm", "sglang-oai"])
    def test_completions(self, name: str) -> None:
        body = make_backend(name).body(IDS, PLAIN)
        assert (body["prompt"], body["max_tokens"], body["model"], body["ignore_eos"]) == ([5, 6], 7, "m", True)
        assert body["stream_options"] == {"include_usage": True}
        assert "stream_options" not in make_backend(name).body(IDS, AskOptions(model="m", stream=False))
        record = read(
            name,
            {"choices": [{"text": "a"}], "usage": None},
            {"choices": [{"text": ""}]},
            {"choices": [{"text": "bc", "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": None}},
        )
        assert record.arrivals == [(1.0, 1), (3.0, 1)]
        assert (record.text, record.output_tokens, record.prompt_tokens, record.cached_tokens) == ("abc", 3, 4, None)

    def test_chat(self) -> None:
        backend = make_backend("vllm-chat")
        assert backend.path == "/v1/chat/completions"
        body = backend.body(TEXT, PLAIN)
        assert body["messages"] == [{"role": "user", "content": "Hi there"}]
        assert body["max_completion_tokens"] == 7
        record = read(
            "sglang-oai-chat",
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"reasoning_content": "hm"}}]},
            {"choices": [{"delta": {"content": "Yes"}}]},
            {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}},
        )
        assert record.arrivals == [(2.0, 1), (3.0, 1)]
        assert (record.text, record.cached_tokens) == ("hmYes", 1)
        with pytest.raises(Refused, match="--tokenize-prompt"):
            backend.body(IDS, PLAIN)

    def test_whole_answers(self) -> None:
        usage = {"prompt_tokens": 4, "completion_tokens": 9}
        record = read("vllm-chat", {"choices": [{"message": {"content": "All of it"}}], "usage": usage})
        assert (record.text, record.output_tokens, record.tpot) == ("All of it", 9, None)

    def test_failures(self) -> None:
        assert "broke" in read("vllm", {"error": {"message": "it broke"}}).error
