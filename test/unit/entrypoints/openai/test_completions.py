"""/v1/completions over a scripted engine: prompts of every kind, echo, the columns of logprobs, frames to the byte."""

import re
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from fixtures.dialects import COMPLETIONS
from fixtures.scripted_engine import CONTEXT_LEN, Length, Step, Stop, events, logprob_row, serve, small
from mysglang.srt.entrypoints.openai.logprobs import CompletionLogprobs, TokenLogprob
from mysglang.srt.messages.outputs import Abort, RowLogprobs
from mysglang.srt.messages.packing import unpack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.parser import completion_template
from mysglang.srt.parser.completion_template import CompletionTemplate

PATH, asked = COMPLETIONS.path, COMPLETIONS.asked


async def test_a_whole_answer() -> None:
    async with serve() as served:
        answer = (await served.post(PATH, asked(rid="r"))).json()
    del answer["created"]
    prompt = len(small("byte_level").encode("Hi"))
    assert answer == {
        "id": "r",
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop", "matched_stop": 2},
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 4,
            "total_tokens": prompt + 4,
            "prompt_tokens_details": None,
        },
        "metadata": {"weight_version": "default"},
    }


async def test_a_stream_to_the_byte() -> None:
    async with serve() as served:
        response = await served.post(
            PATH, asked(rid="r", stream=True, echo=True, stream_options={"include_usage": True})
        )
    head = b'{"id":"r","object":"text_completion","created":0,"model":"tiny","choices":['
    prompt = len(small("byte_level").encode("Hi"))
    usage = b'{"prompt_tokens":%d,"completion_tokens":4,"total_tokens":%d,"prompt_tokens_details":null}'
    assert events(re.sub(rb'"created":\d+', b'"created":0', response.content)) == [
        head + b'{"index":0,"text":"HiHello","logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}',
        head + b'{"index":0,"text":" world","logprobs":null,"finish_reason":"stop","matched_stop":2}],"usage":null}',
        head + b'],"usage":' + usage % (prompt, prompt + 4) + b"}",
        b"[DONE]",
    ]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ["Hi"]),
        (["Hi", "Ho"], ["Hi", "Ho"]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_prompts_of_every_kind(prompt: object, prompts: Sequence[str | list[int]], n: int) -> None:
    encode = small("byte_level").encode
    expected = [encode(one) if isinstance(one, str) else one for one in prompts]
    async with serve() as served:
        answer = (await served.post(PATH, asked(prompt=prompt, n=n))).json()
        sent = [unpack_ids(request.input_ids).tolist() for request in served.engine.requests]
        assert sent == [ids for ids in expected for _ in range(n)]
        # Every choice, whole and streamed, in the order prompt by prompt.
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(prompts) * n))
        assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))
        assert answer["usage"]["completion_tokens"] == 4 * len(prompts) * n
        streamed = await served.post(PATH, asked(prompt=prompt, n=n, stream=True, echo=True))
    texts: dict[int, str] = {}
    for frame in events(streamed.content)[:-1]:
        choice = orjson.loads(frame)["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    decode = small("byte_level").decode
    echoes = [one if isinstance(one, str) else decode(one) for one in prompts]
    assert texts == {i: echoes[i // n] + "Hello world" for i in range(len(prompts) * n)}


@pytest.mark.parametrize(
    ("reason", "told"),
    [(Stop("END"), ("stop", "END")), (Length(3), ("length", None)), (Abort("By the client."), ("abort", None))],
)
async def test_the_reason_rides_on_the_last_frame(reason: Any, told: tuple[str, object]) -> None:
    async with serve(lambda _: [Step("a"), Step("b", [3], reason)]) as served:
        response = await served.post(PATH, asked(stream=True))
    choices = [orjson.loads(frame)["choices"][0] for frame in events(response.content)[:-1]]
    assert [choice["text"] for choice in choices] == ["a", "b"]
    assert [choice["finish_reason"] for choice in choices] == [None, told[0]]
    assert choices[-1]["matched_stop"] == told[1]


async def test_an_engine_that_gives_up_one_of_two_prompts() -> None:
    def script(request: TokenizedGenerateReqInput) -> list[Step]:
        bad = "_1@" in request.rid
        return [Step("a"), Step("", [], Abort("lost", status=500) if bad else Length(1))]

    async with serve(script) as served:
        response = await served.post(PATH, asked(prompt=["a", "b"], stream=True))
        found = events(response.content)
    assert b"[DONE]" not in found
    assert orjson.loads(found[-1])["error"]["message"] == "lost"


async def test_length_when_nothing_is_said() -> None:
    async with serve() as served:
        await served.post(PATH, asked())
        await served.post(PATH, asked(max_tokens=None))
        # Sixteen is only our default: near the end of the context it gives way.
        await served.post(PATH, asked(prompt=[5] * (CONTEXT_LEN - 3)))
        await served.post(PATH, asked(max_tokens=0, echo=True))
        lengths = [request.sampling_params.max_new_tokens for request in served.engine.requests]
    assert lengths == [16, 16, 3, 0]


def scored(request: TokenizedGenerateReqInput) -> list[Step]:
    """Logprobs of the whole prompt, if asked for, and of two tokens: half a character, and its end with one more."""
    ids = unpack_ids(request.input_ids).tolist()
    answer = small("byte_level").encode("é!")
    prompt: dict[str, bytes] = {}
    if request.logprobs is not None and request.logprobs.prompt_start == 0:
        row = logprob_row(
            ids, [float("nan"), *[-2.0] * (len(ids) - 1)], [[(5, float("nan"))], *[[(5, -0.1)]] * (len(ids) - 1)]
        )
        prompt = {name.replace("output", "input"): column for name, column in row.items()}
    top = request.logprobs.top_num if request.logprobs else 0
    first = logprob_row(answer[:1], [-0.5], [[(answer[0], -0.5)][:top]])
    rest = logprob_row(answer[1:], [-1.5] * (len(answer) - 1), [[(6, -0.2)][:top]] * (len(answer) - 1))
    return [
        Step("", answer[:1], None, RowLogprobs(**first, **prompt)),
        Step("é!", answer[1:], Length(3), RowLogprobs(**rest)),
    ]


async def test_columns_of_logprobs() -> None:
    tokenizer = small("byte_level")
    answer = tokenizer.encode("é!")
    async with serve(scored) as served:
        found = (await served.post(PATH, asked(logprobs=1))).json()["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [-0.5] + [-1.5] * (len(answer) - 1)
    # Both halves of the é are where it stands.
    assert found["text_offset"] == [0, 0, 1]
    assert found["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert found["top_logprobs"][0] == {"bytes:\\xc3": -0.5}
    # The token itself, and the likeliest.
    assert found["top_logprobs"][2] == {tokenizer.token_text(6): pytest.approx(-0.2), "!": -1.5}


def test_of_two_tokens_with_one_text_the_likelier_one_is_shown() -> None:
    """In vocabularies with bytes, an ASCII character is a token twice."""
    tokenizer = small("metaspace")
    twice = [token_id for token_id in range(300) if tokenizer.token_bytes(token_id) == b"!"]
    assert len(twice) == 2
    other = tokenizer.encode("a")[-1]
    for first, second in (twice, reversed(twice)):
        columns = CompletionLogprobs(tokenizer, skip_special_tokens=True, top_num=2)
        found = columns.columns([TokenLogprob(other, -9.0, [(first, -0.1), (second, -5.0)])])["top_logprobs"]
        assert found == [{"!": -0.1, tokenizer.token_text(other): -9.0}]


async def test_logprobs_without_alternatives() -> None:
    async with serve(scored) as served:
        found = (await served.post(PATH, asked(logprobs=0))).json()["choices"][0]["logprobs"]
    assert found["top_logprobs"] == [None] * 3
    assert None not in found["token_logprobs"]


@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
async def test_the_echoed_prompt_has_logprobs_and_offsets(kind: str) -> None:
    """With metaspace the prompt starts with a BOS that is no part of its text, and a space that is dropped."""
    tokenizer = small(kind)
    text = "The quick brown fox"
    ids = tokenizer.encode(text)
    async with serve(scored, kind=kind) as served:
        response = await served.post(PATH, asked(prompt=text, logprobs=1, echo=True))
        streamed = await served.post(PATH, asked(prompt=text, logprobs=1, echo=True, stream=True))
    choice = response.json()["choices"][0]
    found = choice["logprobs"]
    assert choice["text"] == text + "é!"
    assert found["token_logprobs"][: len(ids)] == [None] + [-2.0] * (len(ids) - 1)
    assert found["top_logprobs"][0] is None
    starts = [len(tokenizer.decode(ids[:place])) for place in range(len(ids))]
    assert found["text_offset"][: len(ids)] == starts
    assert found["text_offset"][len(ids)] == len(text)
    columns: dict[str, list[object]] = {name: [] for name in found}
    for frame in events(streamed.content)[:-1]:
        for name, column in (orjson.loads(frame)["choices"][0]["logprobs"] or {}).items():
            columns[name] += column
    assert columns == found


@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
@pytest.mark.parametrize("as_ids", [False, True])
async def test_offsets_count_in_an_echo_with_special_tokens(kind: str, as_ids: bool) -> None:
    """A text is echoed as it came, with the special tokens that are written in it; ids without them."""
    tokenizer = small(kind)
    text = "<s>The quick<|turn|>brown"
    ids = tokenizer.encode(text)
    prompt: object = ids if as_ids else text
    async with serve(scored, kind=kind) as served:
        choice = (await served.post(PATH, asked(prompt=prompt, logprobs=1, echo=True))).json()["choices"][0]
    offsets, words = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert choice["text"] == ("The quickbrown" if as_ids else text) + "é!"
    said = list(zip(offsets, words, strict=True))[: len(ids)]
    shown = [(place, word) for place, word in said if word.isalpha()]
    assert [choice["text"][place:].startswith(word) for place, word in shown] == [True] * len(shown)
    assert offsets[len(ids)] == len(choice["text"]) - 2 and offsets == sorted(offsets)
    if not as_ids:
        assert [place for place, word in said if word == "<|turn|>"] == [text.index("<|turn|>")]


@pytest.mark.parametrize(
    ("pieces", "offsets"),
    [
        ([b"\xc3", b"!"], [0, 1]),
        ([b"a", b"\xe4", b"\xbd", b"!", b"b"], [0, 1, 1, 2, 3]),
        ([b"\xe4", b"\xbd", b"\xa0", b"!"], [0, 0, 0, 1]),
        ([b"\xc3", b"\xc3", b"\xa9", b"!"], [0, 1, 1, 2]),
    ],
)
def test_offsets_after_half_a_character(pieces: list[bytes], offsets: list[int]) -> None:
    """Its bytes are one character of the text, and the next token begins behind that."""
    tokenizer = small("byte_level")
    ids = [next(i for i in range(300) if tokenizer.token_bytes(i) == piece) for piece in pieces]
    columns = CompletionLogprobs(tokenizer, skip_special_tokens=True, top_num=0)
    assert columns.columns([TokenLogprob(i, -1.0, []) for i in ids])["text_offset"] == offsets
    for place, (token, offset) in enumerate(zip(ids, offsets, strict=True)):
        if pieces[place] in (b"!", b"b"):
            assert tokenizer.decode(ids)[offset:].startswith(tokenizer.token_text(token))


async def test_best_of_all_that_are_returned() -> None:
    async with serve() as served:
        answer = (await served.post(PATH, asked(n=2, best_of=2))).json()
    assert len(answer["choices"]) == 2


async def test_the_best_of_several_are_returned_the_best_first() -> None:
    worth = {"a": [-3.0, -1.0, -2.0], "b": [-1.0, -3.0, -0.5]}
    asked_for: list[str] = []

    def script(request: TokenizedGenerateReqInput) -> list[Step]:
        prompt, number = "ab"[len(asked_for) // 3], len(asked_for) % 3
        asked_for.append(prompt)
        assert request.logprobs is not None
        row = RowLogprobs(**logprob_row([7], [worth[prompt][number]]))
        return [Step(f"{prompt}{number}", [7], Length(1), row)]

    async with serve(script) as served:
        answer = (await served.post(PATH, asked(prompt=["a", "b"], n=2, best_of=3, echo=True))).json()
    assert [choice["text"] for choice in answer["choices"]] == ["aa1", "aa2", "bb2", "bb0"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_of_prompt_and_answer(stream: bool) -> None:
    async with serve() as served:
        response = await served.post(PATH, asked(prompt=[5, 6], return_token_ids=True, stream=stream))
    frames = [orjson.loads(frame) for frame in events(response.content)[:-1]] if stream else [response.json()]
    choices = [frame["choices"][0] for frame in frames]
    assert [token for choice in choices for token in choice["token_ids"]] == [7, 8, 9, 2]
    assert choices[0]["prompt_token_ids"] == [5, 6]
    assert all("prompt_token_ids" not in choice for choice in choices[1:])


async def test_a_server_without_a_tokenizer_takes_ids() -> None:
    async with serve(lambda _: [Step("", [7], Length(1))], with_tokenizer=False) as served:
        answer = await served.post(PATH, asked(prompt=[5, 6]))
        refused = [
            await served.post(PATH, asked(prompt="Hi")),
            await served.post(PATH, asked(prompt=[5], echo=True)),
            await served.post(PATH, asked(prompt=[5], logprobs=1)),
        ]
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    for response in refused:
        assert response.status_code == 400
        assert "tokenizer" in response.json()["error"]["message"]
    assert [response.json()["error"]["param"] for response in refused] == ["prompt", "echo", "logprobs"]


async def test_a_refused_value_is_not_sent_back_whole() -> None:
    async with serve() as served:
        response = await served.post(PATH, asked(logit_bias={str(i): 1.0 for i in range(100_000)}))
    assert response.status_code == 400
    assert len(response.content) < 2000


@pytest.fixture
def fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family whose marks the small tokenizer has."""
    template = CompletionTemplate("<s>{prompt}<|turn|>{suffix}<think>", ("<s>", "<|turn|>", "<think>"))
    monkeypatch.setattr(completion_template, "COMPLETION_TEMPLATES", {"ours": template})


@pytest.mark.usefixtures("fills_in")
@pytest.mark.parametrize("stream", [False, True])
async def test_what_comes_before_a_suffix(stream: bool) -> None:
    async with serve() as served:
        response = await served.post(PATH, asked(prompt=["def f(", "b"], suffix="): pass", stream=stream))
        assert response.status_code == 200
        ids = [unpack_ids(request.input_ids).tolist() for request in served.engine.requests]
    tokenizer = small("byte_level")
    assert ids == [tokenizer.encode(f"<s>{prompt}<|turn|>): pass<think>") for prompt in ("def f(", "b")]


@pytest.mark.usefixtures("fills_in")
async def test_an_empty_suffix_is_none() -> None:
    async with serve() as served:
        assert (await served.post(PATH, asked(suffix=""))).status_code == 200
        [request] = served.engine.requests
    assert unpack_ids(request.input_ids).tolist() == small("byte_level").encode("Hi")


@pytest.mark.usefixtures("fills_in")
@pytest.mark.parametrize(("field", "value", "param"), [("prompt", [5, 6], "suffix"), ("echo", True, "echo")])
async def test_what_cannot_have_a_suffix(field: str, value: Any, param: str) -> None:
    async with serve() as served:
        response = await served.post(PATH, asked(suffix="b", **{field: value}))
    assert response.status_code == 400 and response.json()["error"]["param"] == param
