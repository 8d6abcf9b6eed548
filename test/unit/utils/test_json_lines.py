"""JSON in lines is the same for readers that end a line only at a line feed, and for those that do as Unicode says."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.utils.json_lines import unbroken

TEXTS = st.text(
    st.sampled_from('a"\\\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\u0105\u2027\u202a\u2128é“🙂'), max_size=12
)


@given(st.dictionaries(TEXTS, TEXTS))
def test_no_line_ends_within_a_value(value: dict[str, str]) -> None:
    line = unbroken(orjson.dumps(value))
    assert orjson.loads(line) == value
    assert line.decode().splitlines() == [line.decode()]


def test_what_ends_no_line_is_kept() -> None:
    kept = orjson.dumps("“é” 日本 \u2027 \u0105 🙂")
    assert unbroken(kept) == kept
