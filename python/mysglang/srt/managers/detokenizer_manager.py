"""DetokenizerManager: token ids -> text, for all requests of all schedulers; runs in its own process.

For each request it keeps the text that is not shown yet, and nothing longer than the request lives. Everything but the
text is passed on as it came. Knows neither prompts nor clients; imports no torch.

`run_detokenizer_process` is the whole process: it sets up, reports ready, loops, and reports its death.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import msgspec

from mysglang.srt.managers.child import DetokenizerLaunch, detokenizer_title, report_to_parent, run_child
from mysglang.srt.managers.tokenizer_files import load_tokenizer
from mysglang.srt.messages.channels import Pull, Receiver, Sender
from mysglang.srt.messages.codec import ToDetokenizer, ToTokenizer, detokenizer_codec, list_ids
from mysglang.srt.messages.control import DetokenizerBeat
from mysglang.srt.messages.launch import Ready
from mysglang.srt.messages.outputs import (
    NO_STOP_TRIM,
    SKIP_SPECIAL_TOKENS,
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    Stop,
)
from mysglang.srt.messages.senders import to_fronts
from mysglang.srt.utils.logging import configure_logging
from mysglang.srt.utils.process import ParentLink, freeze_heap, keep_heap_small, set_title
from mysglang.srt.utils.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_LIVE_REQUESTS = 1 << 16
"""More than any scheduler runs at once: only a scheduler that never ends its requests could exceed it."""

POLL_MS = 1000

BEAT_S = 1.0


class Status(Protocol):
    """The state of one unfinished request."""

    @property
    def advance_one(self) -> Callable[[int], str]:
        """A faster `advance` for a single token that is not the last one."""
        ...

    def advance(self, ids: list[int], finish_reason: FinishReason | None) -> str:
        """Returns the text that `ids` add. With a finish reason they are the last ones, and no text is held back."""
        ...


class NoText:
    """Replaces the tokenizer of a server that has none."""

    def advance_one(self, token_id: int) -> str:
        return ""

    def advance(self, ids: list[int], finish_reason: FinishReason | None) -> str:
        return ""


class DecodeStatus:
    """Turns the tokens of one unfinished request into text."""

    __slots__ = ("_text", "_trims", "advance_one")

    def __init__(
        self, tokenizer: Tokenizer, flags: int, stops: Sequence[str], regexes: Sequence[str] = (), min_new: int = 0
    ) -> None:
        self._trims = not flags & NO_STOP_TRIM
        if not self._trims:
            # Text that will not be trimmed need not be held back.
            stops = regexes = ()
        skips = bool(flags & SKIP_SPECIAL_TOKENS)
        self._text = tokenizer.output_text(stops, regexes, skip_special_tokens=skips, min_new=min_new)
        self.advance_one = self._text.feeder

    def advance(self, ids: list[int], finish_reason: FinishReason | None) -> str:
        match finish_reason:
            case None:
                return self._text.feed(ids)[0]
            case Stop(matched=int(token)) if self._trims and ids and ids[-1] == token:
                ids = ids[:-1]
        shown, _ = self._text.feed(ids)
        return shown + self._text.finish()


class DetokenizerManager:
    """Receives token ids from schedulers and sends text to the fronts. The process runs `event_loop` until it ends."""

    def __init__(
        self,
        receiver: Receiver[ToDetokenizer],
        sender: Sender[ToTokenizer],
        tokenizer: Tokenizer | None,
        *,
        max_live: int = MAX_LIVE_REQUESTS,
        index: int = 0,
    ) -> None:
        self._receiver = receiver
        self._sender = sender
        self._tokenizer = tokenizer
        self._max_live = max_live
        self._index = index
        self._beat_at = -BEAT_S
        self.decode_status: OrderedDict[str, Status] = OrderedDict()
        """The requests that are not finished, oldest first."""

    def event_loop(self) -> NoReturn:
        """Answers every message, in an endless loop."""
        while True:
            self.beat()
            self._receiver.poll(POLL_MS)
            self.handle_messages()

    def beat(self) -> None:
        """Sends a heartbeat, unless the last one is recent."""
        if (now := time.monotonic()) - self._beat_at >= BEAT_S:
            self._beat_at = now
            self._sender.send(DetokenizerBeat(detokenizer=self._index, open_texts=len(self.decode_status)))

    def handle_messages(self) -> None:
        """Handles the messages that have arrived."""
        for message in self._receiver.drain():
            self._sender.send(self.handle_batch_token_id_out(message))

    def handle_batch_token_id_out(self, message: BatchTokenIDOutput) -> BatchStrOutput:
        """Returns the texts that `message` adds to its requests."""
        ids = list_ids(message.token_ids)
        counts = list_ids(message.token_counts)
        texts: list[str] = []
        status_of, finished = self.decode_status.get, message.finished
        start = 0
        for row, (rid, count) in enumerate(zip(message.rids, counts, strict=True)):
            finish_reason = finished.get(row)
            status = status_of(rid)
            if status is not None and finish_reason is None and count == 1:
                # Almost every row of almost every message.
                texts.append(status.advance_one(ids[start]))
                start += 1
                continue
            if status is None:
                status = self._new_status(message, row)
                if finish_reason is None:
                    self._keep(rid, status)
            elif finish_reason is not None:
                del self.decode_status[rid]
            texts.append(status.advance(ids[start : start + count], finish_reason))
            start += count
        return BatchStrOutput(
            rids=message.rids,
            texts=texts,
            token_ids=message.token_ids,
            token_counts=message.token_counts,
            counters=message.counters,
            weight_version=message.weight_version,
            finished=message.finished,
            logprobs=message.logprobs,
            vectors=message.vectors,
            hidden_states=message.hidden_states,
            times=message.times,
            drafts=message.drafts,
        )

    def _new_status(self, message: BatchTokenIDOutput, row: int) -> Status:
        if self._tokenizer is None:
            return NoText()
        stops, regexes = message.stops.get(row, ()), message.stop_regexes.get(row, ())
        min_new = message.min_new_tokens.get(row, 0)
        return DecodeStatus(self._tokenizer, message.decode_flags[row], stops, regexes, min_new)

    def _keep(self, rid: str, status: Status) -> None:
        self.decode_status[rid] = status
        if len(self.decode_status) > self._max_live:
            oldest, _ = self.decode_status.popitem(last=False)
            logger.error(
                "More than %d requests are open, so the detokenizer forgot the text of %s.", self._max_live, oldest
            )


def run_detokenizer_process(link: ParentLink) -> None:
    """Serves until the process is ended. Raises the error that stops it."""
    launch = msgspec.json.decode(link.spec, type=DetokenizerLaunch)
    args, ports = launch.server_args, launch.port_args
    set_title(detokenizer_title(launch.index))
    keep_heap_small()
    configure_logging(args.observability.log_level, "DETOK")
    from_scheduler: Pull[ToDetokenizer] = Pull(ports.detokenizer_ipc_names[launch.index], detokenizer_codec())
    to_tokenizer = to_fronts(ports.tokenizer_ipc_names)
    manager = DetokenizerManager(from_scheduler, to_tokenizer, load_tokenizer(args.model), index=launch.index)
    freeze_heap()
    report_to_parent(link, Ready())
    manager.event_loop()


if __name__ == "__main__":
    run_child(run_detokenizer_process)
