"""Text of one request as it grows: bytes to characters, and the watch for stop strings.

The scheduler (does this token complete a stop string?) and the detokenizer (which text may be shown?) must agree to the
character, so both ask the same `StoppableText`. Knows neither requests nor messages.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Sequence

from mysglang.srt.utils.stop_regex import RegexWatch
from mysglang.srt.utils.token_bytes import ContinuedText, StartingText, TokenBytes


class IncrementalDecoder:
    """Decodes tokens to text incrementally; each call costs what its own tokens cost.

    Only bytes that may still become a character are held back. What can no longer become valid UTF-8 is shown as U+FFFD
    at once. A text `at_start` follows the decoder's rules for the start of a text (a SentencePiece model's first space
    is dropped); otherwise it continues a prompt, and decode(prompt + output) == decode(prompt) + text.
    """

    __slots__ = ("_on_invalid", "_pending", "_pieces", "_texts")

    def __init__(self, tokens: TokenBytes, *, skip_special_tokens: bool = True, at_start: bool = False) -> None:
        table = tokens.table(skip_special_tokens=skip_special_tokens)
        self._pieces = StartingText(table, tokens.rules) if at_start else ContinuedText(table)
        self._texts = None if at_start else tokens.texts(skip_special_tokens=skip_special_tokens)
        self._on_invalid = tokens.rules.on_invalid
        self._pending = b""

    def feed(self, ids: Sequence[int]) -> str:
        """Returns the text that `ids` complete."""
        data = self._pending + self._pieces.join(ids)
        text, used = utf_8_decode(data, self._on_invalid, False)
        self._pending = data[used:]
        return text

    def feed_at(self, token_id: int) -> tuple[int, str]:
        """Adds one token. Returns at which character of the new text the token begins, and the new text.

        A token that does not complete a character that others began begins behind the U+FFFD that stand for these.
        """
        held, piece = self._pending, self._pieces.join((token_id,))
        text, used = utf_8_decode(held + piece, self._on_invalid, False)
        self._pending = (held + piece)[used:]
        return (0 if _goes_on(held, piece) else len(utf_8_decode(held, self._on_invalid, True)[0])), text

    def feed_one(self, token_id: int) -> str:
        """Adds one token, as they arrive in a stream: most are whole characters."""
        if not self._pending and self._texts is not None:
            text = self._texts[token_id]
            if text is not None:
                return text
        return self.feed((token_id,))

    def finish(self) -> str:
        """Returns the bytes that were held back, as U+FFFD; the text has ended."""
        text, _ = utf_8_decode(self._pending, self._on_invalid, True)
        self._pending = b""
        return text


def _goes_on(held: bytes, piece: bytes) -> bool:
    """True if `piece` goes on with the character that `held` begins."""
    try:
        utf_8_decode(held + piece[:1], "strict", False)
    except UnicodeDecodeError:
        return False
    return True


class _Watch:
    """Looks for one stop string (Knuth, Morris and Pratt): `matched` leading characters of it end the text so far."""

    __slots__ = ("_borders", "length", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = len(stop)
        self.matched = 0
        # _borders[k]: the longest proper prefix of stop[:k] that also ends it. Grown as far as the text ever matched.
        self._borders = [0, 0]

    def advance(self, text: str, start: int = 0) -> int:
        """Reads on, from `start`. Returns the end of the first match as an index into `text`, or -1."""
        stop, matched, position = self.stop, self.matched, start
        while position < len(text):
            if matched == 0:
                position = text.find(stop[0], position)
                if position < 0:
                    break
            if text[position] == stop[matched]:
                matched += 1
                position += 1
                if matched == len(stop):
                    return position
            else:
                matched = self._border(matched)
        self.matched = matched
        return -1

    def go_on(self) -> None:
        """Called after a match that does not count: the next one may overlap it."""
        self.matched = self._border(self.length)

    def _border(self, length: int) -> int:
        borders, stop = self._borders, self.stop
        while len(borders) <= length:
            last = stop[len(borders) - 1]
            border = borders[-1]
            while border and stop[border] != last:
                border = borders[border]
            borders.append(border + (stop[border] == last))
        return borders[length]


class StopStringMatcher:
    """Passes text on until a stop string. Only an end that may become a stop string is held back.

    The match that is complete first counts, and of two that are complete at the same character the longer; so the
    outcome does not depend on how the text was cut into pieces.
    """

    __slots__ = ("_held", "_watches", "matched")

    def __init__(self, stops: Sequence[str], regexes: Sequence[str] = ()) -> None:
        self._watches: list[_Watch | RegexWatch] = [*map(_Watch, stops), *map(RegexWatch, regexes)]
        self._held = ""
        self.matched: str | None = None
        """The stop string or pattern that was met; from then on nothing is shown."""

    @property
    def watches(self) -> bool:
        """True if there is a stop string to look for."""
        return bool(self._watches)

    def push(self, text: str) -> str:
        """Adds `text`. Returns the text that may be shown now."""
        if self.matched is not None:
            return ""
        if not self._watches:
            return text
        ends = [(end, -watch.length, watch.stop) for watch in self._watches if (end := watch.advance(text)) >= 0]
        if ends:
            end, minus_length, self.matched = min(ends)
            start = len(self._held) + end + minus_length
            shown, self._held = (self._held + text)[:start], ""
            return shown
        return self._hold(text)

    def pass_by(self, text: str) -> str:
        """Adds `text` in which no stop string may end yet; one that ends later may begin in it. Returns the text that
        may be shown now.
        """
        for watch in self._watches:
            end = 0
            while (end := watch.advance(text, end)) >= 0:
                watch.go_on()
        return self._hold(text) if self._watches else text

    def _hold(self, text: str) -> str:
        """Adds `text` and returns what cannot become a part of a stop string any more."""
        known = self._held + text
        safe = len(known) - max(watch.matched for watch in self._watches)
        self._held = known[safe:]
        return known[:safe]

    def flush(self) -> str:
        """Returns the text that was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


class StoppableText:
    """A request's text, cut at the start of the first stop string that ends it."""

    __slots__ = ("_decoder", "_matcher", "_quiet")

    def __init__(
        self, decoder: IncrementalDecoder, stops: Sequence[str] = (), regexes: Sequence[str] = (), *, min_new: int = 0
    ) -> None:
        """`min_new`: tokens that the text has at least. A stop string that is complete before has no effect."""
        self._decoder = decoder
        self._matcher = StopStringMatcher(stops, regexes)
        self._quiet = max(min_new - 1, 0)
        """Number of the next tokens with which no stop string ends the text."""

    def feed(self, ids: Sequence[int]) -> tuple[str, str | None]:
        """Adds tokens, each once and in order. Returns the text that is safe to show, and the stop string that was
        found, if any.
        """
        shown = ""
        if self._quiet:
            quiet, ids = ids[: self._quiet], ids[self._quiet :]
            self._quiet -= len(quiet)
            shown = self._matcher.pass_by(self._decoder.feed(quiet))
        shown += self._matcher.push(self._decoder.feed(ids))
        return shown, self._matcher.matched

    @property
    def feeder(self) -> Callable[[int], str]:
        """Adds one token and returns the text that is safe to show, for a reader that does not ask what was met."""
        return self._feed_one if self._matcher.watches else self._decoder.feed_one

    def _feed_one(self, token_id: int) -> str:
        if self._quiet:
            self._quiet -= 1
            return self._matcher.pass_by(self._decoder.feed_one(token_id))
        return self._matcher.push(self._decoder.feed_one(token_id))

    def finish(self) -> str:
        """Returns the text held back until now, unless a stop string was met; nothing more will come."""
        if self._matcher.matched is not None:
            return ""
        return self._matcher.flush() + self._decoder.finish()
