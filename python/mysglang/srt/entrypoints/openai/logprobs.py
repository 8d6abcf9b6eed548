"""Log-probabilities in the shapes of OpenAI's API: chat's list of tokens, and the four columns of plain completions.

A token is told as text and, in chat, as its bytes: of half a character the text is U+FFFD, but the bytes are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mysglang.srt.managers.request_state import TokenLogprobs
from mysglang.srt.managers.response_dict import as_json
from mysglang.srt.utils.text import IncrementalDecoder
from mysglang.srt.utils.tokenizer import Tokenizer


class TokenLogprob(NamedTuple):
    """One position: its token and the likeliest ones. `logprob` is None where nothing stood before the token."""

    token_id: int
    logprob: float | None
    top: Sequence[tuple[int, float]]


class Echo(NamedTuple):
    """An echoed prompt."""

    text: str
    starts: Sequence[int] | None = None
    """The character with which each token begins, of a prompt that came as text; None: the text is that of its tokens.
    """


def positions(found: TokenLogprobs) -> list[TokenLogprob]:
    """Converts the columns of a chunk to a list of positions."""
    columns = (found.ids.tolist(), found.vals.tolist(), found.top_ids.tolist(), found.top_vals.tolist())
    return [
        TokenLogprob(token_id, as_json(logprob), _there(top_ids, top_vals))
        for token_id, logprob, top_ids, top_vals in zip(*columns, strict=True)
    ]


def _there(ids: list[int], logprobs: list[float]) -> list[tuple[int, float]]:
    """Returns the pairs that have a log-probability."""
    pairs = ((token_id, as_json(logprob)) for token_id, logprob in zip(ids, logprobs, strict=True))
    return [(token_id, logprob) for token_id, logprob in pairs if logprob is not None]


def chat_tokens(tokenizer: Tokenizer, positions: Iterable[TokenLogprob]) -> list[dict[str, object]]:
    """Returns `choices[].logprobs.content` of a chat answer, or of one frame of it."""
    return [
        {
            **_chat_token(tokenizer, token_id, logprob),
            "top_logprobs": [_chat_token(tokenizer, top_id, top_logprob) for top_id, top_logprob in top],
        }
        for token_id, logprob, top in positions
    ]


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, object]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}


class CompletionLogprobs:
    """`choices[].logprobs` of one plain completion, which may come in several frames.

    Offsets count characters from the start of the choice's text: 0 is where an echoed prompt starts, and without echo
    the answer. A token in the midst of a character has that character's offset, and a token that is not in the text
    the offset of what comes next.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, top_num: int) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._top_num = top_num
        self._offset = 0
        self._decoder = self._new_decoder(at_start=False)

    def columns(self, positions: Sequence[TokenLogprob]) -> dict[str, list[object]]:
        """Returns the columns for the next tokens of the answer."""
        return {
            "text_offset": [self._advance(position.token_id) for position in positions],
            "token_logprobs": [position.logprob for position in positions],
            "tokens": [self._word(position.token_id) for position in positions],
            "top_logprobs": [self._likeliest(position) for position in positions],
        }

    def prompt_columns(self, positions: Sequence[TokenLogprob], echo: Echo) -> dict[str, list[object]]:
        """Returns the columns for the echoed prompt. Call it once, before the answer."""
        self._decoder = self._new_decoder(at_start=True)
        found = self.columns(positions)
        self._decoder = self._new_decoder(at_start=False)
        self._offset = len(echo.text)
        return found if echo.starts is None else {**found, "text_offset": [*echo.starts]}

    def _new_decoder(self, *, at_start: bool) -> IncrementalDecoder:
        return self._tokenizer.incremental_decoder(skip_special_tokens=self._skip_special, at_start=at_start)

    def _advance(self, token_id: int) -> int:
        place, text = self._decoder.feed_at(token_id)
        offset = self._offset + place
        self._offset += len(text)
        return offset

    def _word(self, token_id: int) -> str:
        """Returns the token as text; as `bytes:\\xe4\\xbd` where it is a part of a character, so that words stay
        distinct.
        """
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _likeliest(self, position: TokenLogprob) -> dict[str, float] | None:
        """Returns the `top_num` likeliest tokens, and the token itself where it is not among them."""
        if position.logprob is None or not self._top_num:
            return None
        words: dict[str, float] = {}
        for token_id, logprob in position.top:
            # Some vocabularies have two tokens with one text, of which the likelier one stays.
            words.setdefault(self._word(token_id), logprob)
        return words | {self._word(position.token_id): position.logprob}
