"""Streaming text: whatever the split, the same text; stop strings never leak and hold back nothing else."""

import itertools
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import small_tokenizer
from mysglang.srt.utils import text as text_module
from mysglang.srt.utils.text import IncrementalDecoder, StoppableText, StopStringMatcher
from mysglang.srt.utils.tokenizer import Tokenizer

KINDS = sorted(small_tokenizer.KINDS)
TEXTS = [
    "The quick brown fox 🎉🎉 jumps",
    "你好，世界。完全没有空格",
    "\n\nnewline first",
    "e\u0301 combining, Zürich, \u202eRTL, 👩‍👩‍👧‍👦 family",
    " leading and trailing ",
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: Tokenizer.load(small_tokenizer.write(root / kind, kind)) for kind in KINDS}


def pieces(data: st.DataObject, whole: Sequence[int]) -> Iterator[Sequence[int]]:
    """`whole` cut at random places, empty pieces included."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    for start, end in itertools.pairwise([0, *cuts, len(whole)]):
        yield whole[start:end]


class TestIncrementalDecoder:
    @pytest.mark.promise(27)
    @pytest.mark.parametrize("kind", KINDS)
    @given(data=st.data(), skip=st.booleans())
    def test_random_streams_concatenate_to_the_decoded_whole(
        self, tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject, skip: bool
    ) -> None:
        tokenizer = tokenizers[kind]
        # Ids beyond the vocabulary occur too: a model's embedding may have more rows than the tokenizer has tokens.
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40))
        decoder = tokenizer.incremental_decoder(skip_special_tokens=skip, at_start=True)
        shown = [decoder.feed(piece) for piece in pieces(data, ids)] + [decoder.finish()]
        assert "".join(shown) == tokenizer.decode(ids, skip_special_tokens=skip)
        for piece in shown:
            piece.encode()  # raises if a frame held half a character

    @pytest.mark.parametrize("kind", KINDS)
    @given(data=st.data(), skip=st.booleans(), at_start=st.booleans())
    def test_one_token_is_fed_like_several(
        self, tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject, skip: bool, at_start: bool
    ) -> None:
        tokenizer = tokenizers[kind]
        ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size + 2), max_size=40))
        one, several = (tokenizer.incremental_decoder(skip_special_tokens=skip, at_start=at_start) for _ in range(2))
        assert [one.feed_one(token) for token in ids] == [several.feed([token]) for token in ids]
        assert one.finish() == several.finish()

    @pytest.mark.parametrize("kind", KINDS)
    @given(data=st.data())
    def test_the_feeder_shows_what_is_safe(
        self, tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
    ) -> None:
        tokenizer = tokenizers[kind]
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
        stops = data.draw(st.lists(st.text("ab \ufffd", min_size=1, max_size=3), max_size=2))
        one, several = (tokenizer.output_text(stops) for _ in range(2))
        assert [one.feeder(token) for token in ids] == [several.feed([token])[0] for token in ids]
        assert one.finish() == several.finish()

    @pytest.mark.parametrize("kind", KINDS)
    def test_thousands_of_streams_token_by_token(self, tokenizers: dict[str, Tokenizer], kind: str) -> None:
        tokenizer, random = tokenizers[kind], Random(kind)
        bytes_only = [i for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) == 1]
        for _ in range(5_000):
            tokens = bytes_only if random.random() < 0.5 else range(tokenizer.vocab_size)
            ids = random.choices(tokens, k=random.randrange(20))
            decoder = tokenizer.incremental_decoder(at_start=True)
            shown = "".join(decoder.feed((token,)) for token in ids) + decoder.finish()
            assert shown == tokenizer.decode(ids)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("text", TEXTS)
    def test_output_continues_the_prompt(self, tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
        tokenizer = tokenizers[kind]
        ids = tokenizer.encode("The prompt." + text)
        for cut in range(1, len(ids)):
            prompt = tokenizer.decode(ids[:cut])
            if not prompt or prompt.endswith("\ufffd"):
                continue  # nothing to continue yet, or the cut is inside a character
            decoder = tokenizer.incremental_decoder()
            shown = "".join(decoder.feed([token]) for token in ids[cut:]) + decoder.finish()
            assert prompt + shown == tokenizer.decode(ids) == "The prompt." + text

    @pytest.mark.parametrize("kind", ["byte_fallback", "metaspace"])
    def test_holds_back_only_an_incomplete_character(self, tokenizers: dict[str, Tokenizer], kind: str) -> None:
        decoder = tokenizers[kind].incremental_decoder()
        feed = [(decoder, byte) for byte in "a🎉b".encode()]
        shown = [one.feed([tokenizers[kind].id_of(f"<0x{byte:02X}>") or 0]) for one, byte in feed]
        assert shown == ["a", "", "", "", "🎉", "b"]

    def test_invalid_bytes_are_shown_at_once(self, tokenizers: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers["byte_fallback"]
        decoder = tokenizer.incremental_decoder()
        broken = [tokenizer.id_of(f"<0x{byte:02X}>") or 0 for byte in (0xFF, 0xE4, 0xB8, 0x41, 0xF0, 0x9F)]
        shown = [decoder.feed([token]) for token in broken]
        assert shown == ["\ufffd", "", "", "\ufffd\ufffdA", "", ""]
        assert decoder.finish() == "\ufffd\ufffd"
        assert decoder.finish() == ""

    def test_first_space_is_dropped_at_the_start_only(self, tokenizers: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers["metaspace"]
        ids = [tokenizer.id_of("▁") or 0, tokenizer.id_of("▁") or 0, tokenizer.id_of("T") or 0]
        starting = tokenizer.incremental_decoder(at_start=True)
        assert [starting.feed([token]) for token in ids] == ["", " ", "T"]
        continuing = tokenizer.incremental_decoder()
        assert [continuing.feed([token]) for token in ids] == [" ", " ", "T"]

    @pytest.mark.promise(27)
    @pytest.mark.parametrize("kind", KINDS)
    def test_work_is_linear(self, tokenizers: dict[str, Tokenizer], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Counted in bytes looked at, for the stream that makes others quadratic: U+FFFD without end."""
        looked_at = 0
        decode = text_module.utf_8_decode

        def counting(data: bytes, errors: str, final: bool) -> tuple[str, int]:
            nonlocal looked_at
            looked_at += len(data)
            return decode(data, errors, final)

        monkeypatch.setattr(text_module, "utf_8_decode", counting)
        tokenizer = tokenizers[kind]
        invalid = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"\xf0")
        work = []
        for length in (1_000, 2_000):
            looked_at = 0
            decoder = tokenizer.incremental_decoder()
            for _ in range(length):
                decoder.feed([invalid])
            work.append(looked_at)
        assert work[1] <= 2.01 * work[0]


def first_match(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The definition, by brute force: the shown text and the stop string of the match that is complete first."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


def to_hold(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper prefix of a stop string."""
    return max(length for length in range(len(text) + 1) if any(_begins(stop, text, length) for stop in stops))


def _begins(stop: str, text: str, length: int) -> bool:
    return length < len(stop) and stop.startswith(text[len(text) - length :])


def check_split(split: Sequence[str], stops: Sequence[str]) -> None:
    text = "".join(split)
    expected, met = first_match(text, stops)
    matcher = StopStringMatcher(stops)
    shown, read = "", ""
    for piece in split:
        shown += matcher.push(piece)
        read += piece
        assert expected.startswith(shown)
        if matcher.matched is None:
            assert shown == read[: len(read) - to_hold(read, stops)]
    assert matcher.matched == met
    shown += "" if met else matcher.flush()
    assert shown == expected


class TestStopStringMatcher:
    CASES = (
        ("one STOP two", ["STOP"]),
        ("\n\nx\n\n\ny", ["\n\n\n", "\ny"]),
        ("aabaabaaab", ["aabaaab"]),
        ("a🎉🎊b🎉🎉", ["🎉🎉", "🎊c"]),
        ("xabcdz", ["abcde", "bcd", "cd"]),
        ("ababab", ["abac", "bab"]),
        ("</thin</think>", ["</think>", "</s>"]),
        ("no match at al", ["all", "l l"]),
    )

    @pytest.mark.promise(28)
    @pytest.mark.parametrize(("text", "stops"), CASES)
    def test_every_split(self, text: str, stops: list[str]) -> None:
        gaps = range(1, len(text))
        # All splits of a short text; of a longer one all with up to three cuts, and the one into characters.
        most = len(gaps) if len(text) <= 10 else 3
        for count in range(most + 1):
            for cuts in itertools.combinations(gaps, count):
                check_split([text[i:j] for i, j in itertools.pairwise([0, *cuts, len(text)])], stops)
        check_split(list(text), stops)

    @pytest.mark.promise(28)
    @given(
        split=st.lists(st.text(alphabet="ab\n🎉", max_size=4), max_size=12),
        stops=st.lists(st.text(alphabet="ab\n🎉", min_size=1, max_size=5), min_size=1, max_size=4),
    )
    def test_random_splits(self, split: list[str], stops: list[str]) -> None:
        check_split(split, stops)

    def test_without_stops_nothing_is_held(self) -> None:
        matcher = StopStringMatcher([])
        assert (matcher.push("text"), matcher.matched, matcher.flush()) == ("text", None, "")

    def test_nothing_is_shown_after_the_match(self) -> None:
        matcher = StopStringMatcher(["b"])
        assert matcher.push("abc") == "a"
        assert matcher.push("more") == ""
        assert matcher.flush() == ""

    @pytest.mark.promise(28)
    def test_work_is_linear(self) -> None:
        """Counted in characters of the stop string compared, on a text made to repeat half of it for ever."""
        compared = 0

        class Counting(str):
            def __getitem__(self, index: object) -> str:
                nonlocal compared
                compared += 1
                return super().__getitem__(index)  # type: ignore[index]

        work = []
        for length in (2_000, 4_000):
            matcher = StopStringMatcher([Counting("ab" * 400 + "c")])
            compared = 0
            for _ in range(length):
                matcher.push("abab")
            work.append(compared)
        assert 0 < work[1] <= 2.05 * work[0]


class TestStoppableText:
    @pytest.mark.promise(28)
    @pytest.mark.parametrize("kind", KINDS)
    @given(data=st.data())
    def test_any_split_gives_the_same_text_and_the_same_stop(
        self, tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
    ) -> None:
        tokenizer = tokenizers[kind]
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=25))
        whole = "".join(map(tokenizer.incremental_decoder().feed, [ids]))
        starts = st.integers(0, max(len(whole) - 1, 0))
        spans = data.draw(st.lists(st.tuples(starts, st.integers(1, 4)), max_size=3))
        stops = [stop for start, length in spans if (stop := whole[start : start + length])] + ["never there"]
        text = StoppableText(tokenizer.incremental_decoder(), stops)
        shown, matched = "", None
        for piece in pieces(data, ids):
            delta, matched = text.feed(piece)
            shown += delta
        expected, met = first_match(whole, stops)
        assert matched == met
        rest = IncrementalDecoder.finish(self.fed(tokenizer, ids)) if met is None else ""
        assert shown + text.finish() == expected + rest

    @pytest.mark.promise(28)
    @pytest.mark.parametrize("kind", KINDS)
    @given(data=st.data())
    def test_no_stop_string_counts_that_is_complete_too_early(
        self, tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
    ) -> None:
        tokenizer = tokenizers[kind]
        ids = data.draw(st.lists(st.sampled_from(tokenizer.encode("abab baa\n")), max_size=25))
        stops = data.draw(st.lists(st.text(alphabet="ab \n", min_size=1, max_size=4), min_size=1, max_size=3))
        min_new = data.draw(st.integers(0, 12))
        text, shown, matched = tokenizer.output_text(stops, min_new=min_new), "", None
        for piece in pieces(data, ids):
            delta, matched = text.feed(piece)
            shown += delta
        one, feed = "", tokenizer.output_text(stops, min_new=min_new).feeder
        for token_id in ids:
            one += feed(token_id)
        assert one == shown
        decoder = tokenizer.incremental_decoder()
        early, whole = decoder.feed(ids[: max(min_new - 1, 0)]), tokenizer.incremental_decoder().feed(ids)
        ends = [
            (end, -len(stop), stop)
            for stop in stops
            for end in range(len(early) + 1, len(whole) + 1)
            if whole[:end].endswith(stop)
        ]
        if ends:
            end, minus_length, stop = min(ends)
            assert (shown + text.finish(), matched) == (whole[: end + minus_length], stop)
        else:
            assert (shown + text.finish(), matched) == (whole + self.fed(tokenizer, ids).finish(), None)

    def test_a_pattern_counts_again_after_a_match_that_was_too_early(self, tokenizers: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers["byte_level"]
        ids = tokenizer.encode("1a22b333")
        for min_new, expected in ((0, ""), (2, "1a"), (len(ids), "1a22b33")):
            text = tokenizer.output_text(regexes=[r"\d"], min_new=min_new)
            shown, matched = "", None
            for token_id in ids:
                delta, matched = text.feed([token_id])
                shown += delta
                if matched is not None:
                    break
            assert (shown, matched) == (expected, r"\d"), min_new

    @staticmethod
    def fed(tokenizer: Tokenizer, ids: Sequence[int]) -> IncrementalDecoder:
        decoder = tokenizer.incremental_decoder()
        decoder.feed(ids)
        return decoder

    @pytest.mark.promise(28)
    def test_a_stop_string_split_over_tokens_and_inside_a_token(self, tokenizers: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers["byte_level"]
        text = tokenizer.output_text(["🎉 done"])
        shown = [text.feed([token]) for token in tokenizer.encode("fox 🎉🎉 done and more")]
        assert "".join(delta for delta, _ in shown) == "fox 🎉"
        assert shown[-1] == ("", "🎉 done")
        assert text.finish() == ""

    def test_held_text_comes_out_at_the_end(self, tokenizers: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers["byte_fallback"]
        text = tokenizer.output_text(["stop it"])
        ids = [*tokenizer.encode("please sto"), tokenizer.id_of("<0xF0>") or 0]
        shown = "".join(text.feed([token])[0] for token in ids)
        assert shown == "please "
        assert text.finish() == "sto\ufffd"


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_patterns_end_a_text_beside_strings(size: int) -> None:
    def cut(text: str) -> tuple[str, str | None]:
        matcher = StopStringMatcher(["stop"], [r"\d+ km", "ends?\\."])
        shown = "".join(matcher.push(text[at : at + size]) for at in range(0, len(text), size))
        return shown + ("" if matcher.matched else matcher.flush()), matcher.matched

    assert cut("It is 12 k, no: 340 km away.") == ("It is 12 k, no: ", r"\d+ km")
    assert cut("It stops here. It ends.") == ("It ", "stop")
    assert cut("It end. It ends.") == ("It ", "ends?\\.")
    assert cut("It is 12 k") == ("It is 12 k", None)
