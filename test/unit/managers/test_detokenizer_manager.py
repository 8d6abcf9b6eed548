"""The detokenizer on in-process links: texts grow rightly, states go, and everything else passes untouched."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import small_tokenizer
from fixtures.in_process_channels import InProcess
from fixtures.small_tokenizer import EOS
from mysglang.srt.managers.detokenizer_manager import DetokenizerManager
from mysglang.srt.messages.codec import ToDetokenizer, ToTokenizer, detokenizer_codec, tokenizer_codec
from mysglang.srt.messages.outputs import (
    NO_STOP_TRIM,
    SKIP_SPECIAL_TOKENS,
    Abort,
    BatchStrOutput,
    BatchTokenIDOutput,
    Counters,
    FinishReason,
    Length,
    RowLogprobs,
    Stop,
)
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.utils.tokenizer import Tokenizer

SKIP = SKIP_SPECIAL_TOKENS


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(small_tokenizer.write(tmp_path_factory.mktemp("tokenizer"), "byte_fallback"))


@dataclass
class Row:
    rid: str
    ids: Sequence[int] = ()
    finish: FinishReason | None = None
    stops: Sequence[str] = ()
    flags: int = SKIP
    logprobs: RowLogprobs | None = None
    min_new: int = 0


class Bench:
    """A detokenizer between two in-process links."""

    def __init__(self, tokenizer: Tokenizer | None, max_live: int = 100) -> None:
        self.tokenizer = tokenizer
        self._in: InProcess[ToDetokenizer] = InProcess(detokenizer_codec())
        self._out: InProcess[ToTokenizer] = InProcess(tokenizer_codec())
        self.manager = DetokenizerManager(self._in, self._out, tokenizer, max_live=max_live)

    def __call__(self, *rows: Row) -> list[str]:
        """The texts that one message about `rows` gives."""
        sent = message(*rows)
        self._in.send(sent)
        self.manager.handle_messages()
        [received] = self._out.drain()
        assert isinstance(received, BatchStrOutput)
        same = ("rids", "token_ids", "token_counts", "counters", "finished", "logprobs")
        assert [getattr(received, name) for name in same] == [getattr(sent, name) for name in same]
        return received.texts

    def ids(self, text: str) -> list[int]:
        assert self.tokenizer is not None
        return self.tokenizer.encode(text)


def message(*rows: Row) -> BatchTokenIDOutput:
    numbers = np.arange(len(rows), dtype=np.int32).tobytes()
    return BatchTokenIDOutput(
        rids=[row.rid for row in rows],
        token_ids=b"".join(pack_ids(list(row.ids)) for row in rows),
        token_counts=np.asarray([len(row.ids) for row in rows], dtype=np.int32).tobytes(),
        decode_flags=bytes(row.flags for row in rows),
        counters=Counters(numbers, numbers, numbers, numbers),
        finished={i: row.finish for i, row in enumerate(rows) if row.finish is not None},
        logprobs={i: row.logprobs for i, row in enumerate(rows) if row.logprobs is not None},
        stops={i: list(row.stops) for i, row in enumerate(rows) if row.stops},
        min_new_tokens={i: row.min_new for i, row in enumerate(rows) if row.min_new},
    )


@pytest.fixture
def bench(tokenizer: Tokenizer) -> Bench:
    return Bench(tokenizer)


def test_interleaved_requests(bench: Bench) -> None:
    texts = {"a": "The quick brown 🎉 fox", "b": "你好，世界。Numbers: 1, 2, 3", "c": ""}
    ids = {rid: bench.ids(text) for rid, text in texts.items()}
    shown = dict.fromkeys(texts, "")
    for step in range(max(map(len, ids.values()))):
        rows = [Row(rid, ids[rid][step : step + 1]) for rid in texts]
        for row, text in zip(rows, bench(*rows), strict=True):
            shown[row.rid] += text
    for rid, text in zip(texts, bench(*(Row(rid, finish=Length(9)) for rid in texts)), strict=True):
        shown[rid] += text
    assert shown == texts
    assert not bench.manager.decode_status


def test_everything_else_passes_untouched(bench: Bench) -> None:
    logprobs = RowLogprobs(output_vals=b"1234", output_ids=b"5678", input_vals=b"abcd")
    # The bench compares every field but the texts.
    assert bench(Row("a", bench.ids("The"), logprobs=logprobs), Row("b", [0], Stop(0))) == ["The", ""]


class TestEnds:
    @pytest.mark.promise(28)
    def test_held_text_is_flushed(self, bench: Bench) -> None:
        half = bench.ids("🎉")[:2]
        assert bench(Row("a", [*bench.ids("fox"), *half])) == ["fox"]
        assert bench(Row("a", finish=Length(3))) == ["\ufffd\ufffd"]
        assert bench(Row("b", bench.ids("one st"), stops=["stop"])) == ["one "]
        assert bench(Row("b", finish=Abort("gone"))) == ["st"]

    @pytest.mark.promise(28)
    def test_a_stop_string_is_cut(self, bench: Bench) -> None:
        ids = bench.ids("one stop two")
        shown = bench(Row("a", ids[:-3], stops=["stop"]))[0]
        shown += bench(Row("a", ids[-3:], finish=Stop("stop")))[0]
        assert shown == "one "

    def test_a_stop_string_is_kept_if_asked(self, bench: Bench) -> None:
        row = Row("a", bench.ids("one stop"), Stop("stop"), stops=["stop"], flags=SKIP | NO_STOP_TRIM)
        assert bench(row) == ["one stop"]

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [(SKIP, "fox"), (0, "fox"), (NO_STOP_TRIM, f"fox{EOS}"), (SKIP | NO_STOP_TRIM, "fox")],
    )
    def test_eos(self, bench: Bench, tokenizer: Tokenizer, flags: int, expected: str) -> None:
        eos = tokenizer.eos_token_id or 0
        assert bench(Row("a", [*bench.ids("fox"), eos], Stop(eos), flags=flags)) == [expected]

    @pytest.mark.parametrize(("flags", "expected"), [(SKIP, "fox "), (SKIP | NO_STOP_TRIM, "fox .")])
    def test_a_stop_token_id(self, bench: Bench, flags: int, expected: str) -> None:
        dot = bench.ids(".")[0]
        assert bench(Row("a", [*bench.ids("fox "), dot], Stop(dot), flags=flags)) == [expected]

    def test_only_the_matched_token_is_dropped(self, bench: Bench) -> None:
        dot = bench.ids(".")[0]
        assert bench(Row("a", [dot, dot], Stop(dot))) == ["."]
        assert bench(Row("b", [dot], Length(1))) == ["."]

    def test_special_tokens_are_shown_if_asked(self, bench: Bench, tokenizer: Tokenizer) -> None:
        eos = tokenizer.eos_token_id or 0
        assert bench(Row("a", [eos], flags=0), Row("b", [eos], flags=SKIP)) == [EOS, ""]


class TestStates:
    def test_one_that_it_never_heard_of(self, bench: Bench) -> None:
        assert bench(Row("a", finish=Abort("in the queue"))) == [""]
        assert bench(Row("a", finish=Abort("twice"))) == [""]
        assert not bench.manager.decode_status

    def test_a_name_used_again_starts_anew(self, bench: Bench) -> None:
        bench(Row("a", bench.ids("one st"), stops=["stop"]))
        bench(Row("a", finish=Length(1)))
        assert bench(Row("a", bench.ids("st"))) == ["st"]

    def test_the_table_has_a_bound(self, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench(tokenizer, max_live=3)
        for number in range(10):
            bench(Row(str(number), bench.ids("fox")))
        assert list(bench.manager.decode_status) == ["7", "8", "9"]
        assert "forgot the text of 6" in caplog.text
        # A forgotten request goes on as if new.
        assert bench(Row("0", bench.ids(" dog"), finish=Length(2))) == [" dog"]

    def test_without_a_tokenizer_texts_are_empty(self) -> None:
        bench = Bench(None)
        assert bench(Row("a", [1, 2])) == [""]
        assert bench(Row("a", [3], Stop(3))) == [""]
        assert not bench.manager.decode_status


class TestAgreesWithTheScheduler:
    """Text is cut where the scheduler finds the stop while it feeds token by token, however tokens are batched."""

    @given(data=st.data())
    def test_whatever_the_tokens_and_the_batching(self, tokenizer: Tokenizer, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=20))
        skip = data.draw(st.booleans())
        whole = tokenizer.incremental_decoder(skip_special_tokens=skip).feed(ids)
        cuts = data.draw(st.lists(st.tuples(st.integers(0, len(whole)), st.integers(1, 5)), max_size=3))
        stops = [stop for start, length in cuts if (stop := whole[start : start + length])]
        min_new = data.draw(st.integers(0, 10))
        text = tokenizer.output_text(stops, skip_special_tokens=skip, min_new=min_new)
        generated, finish, expected = [], None, ""
        for token in ids:
            generated.append(token)
            shown, matched = text.feed([token])
            expected += shown
            if matched is not None:
                finish = Stop(matched)
                break
        expected += text.finish()
        bench, shown, start = Bench(tokenizer), "", 0
        ends = sorted({*data.draw(st.lists(st.integers(0, len(generated)), max_size=3)), len(generated)})
        for end in ends:
            last = end == len(generated)
            flags = SKIP if skip else 0
            row = Row(
                "a",
                generated[start:end],
                (finish or Length(len(generated))) if last else None,
                stops,
                flags,
                None,
                min_new,
            )
            shown += bench(row)[0]
            start = end
        assert shown == expected


def test_the_process_loads_neither_arrays_nor_requests() -> None:
    """They would take six megabytes and a third of the time that this process needs to start."""
    program = "import sys, mysglang.srt.managers.detokenizer_manager; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = set(run.stdout.split())
    assert "mysglang.srt.messages.codec" in loaded
    assert not loaded & {
        "numpy",
        "mysglang.srt.messages.requests",
        "mysglang.srt.sampling.sampling_params",
        "mysglang.srt.utils.gguf.model",
    }
