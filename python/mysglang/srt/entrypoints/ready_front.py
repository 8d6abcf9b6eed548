"""ReadyFront: the parts that serve requests in one process, assembled once the scheduler has sent its facts.

The same in the main process and in each further front. Knows no HTTP and no children.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from mysglang.srt.entrypoints.crash_records import CrashRecords, crash_records
from mysglang.srt.entrypoints.front import Manager, RequestLogSettings
from mysglang.srt.entrypoints.request_log import LoggedManager
from mysglang.srt.managers.fronts import Board, Fronts, NoOthers, SharedNames
from mysglang.srt.managers.input_tokenizer import FrontLimits, InputTokenizer
from mysglang.srt.managers.places import precedence_of
from mysglang.srt.managers.request_metrics import RequestMetrics
from mysglang.srt.managers.shares import EqualShares, OneForAll
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.managers.tokenizer_files import load_tokenizer
from mysglang.srt.managers.tokenizer_manager import TokenizerManager
from mysglang.srt.messages.channels import AsyncPull, AsyncPush, Push
from mysglang.srt.messages.codec import ToTokenizer, tokenizer_codec
from mysglang.srt.messages.control import FrontBeat
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.messages.requests import ToScheduler, scheduler_codec
from mysglang.srt.parser.template_manager import TemplateManager
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

BEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class ReadyFront:
    """A front whose scheduler is ready (an `entrypoints.front.Front`)."""

    tokenizer_manager: Manager
    tokenizer: Tokenizer | None
    template_manager: TemplateManager | None
    text_pool: TextPool
    facts: SchedulerFacts
    request_log: RequestLogSettings
    crash_records: CrashRecords
    metrics: RequestMetrics


@dataclass(frozen=True, slots=True)
class FrontText:
    """Tokenizer and templates; both None for a server that takes token ids only."""

    tokenizer: Tokenizer | None
    templates: TemplateManager | None

    @classmethod
    def load(cls, args: ServerArgs) -> FrontText:
        """Loads the tokenizer and chat template, which takes seconds. Raises ConfigError."""
        tokenizer = load_tokenizer(args.model)
        if tokenizer is None:
            return cls(None, None)
        return cls(tokenizer, TemplateManager(tokenizer.config, tokenizer.special_tokens, args.serving.chat_template))

    def warn_of_other_vocabulary(self, vocab_size: int) -> None:
        """Logs a warning if the tokenizer has ids that a model with so many tokens does not know."""
        if self.tokenizer is not None and (largest := self.tokenizer.largest_id) >= vocab_size:
            logger.warning(
                "The tokenizer has token ids up to %d, and the model knows those below %d (vocab_size), so a prompt "
                "with one of the others is refused. Check whether --tokenizer-path belongs to this model.",
                largest,
                vocab_size,
            )


class FrontLinks:
    """The ends of one front's links to the other processes. Made early, so that a writer need not wait; closed at the
    end.
    """

    def __init__(self, ports: PortArgs, index: int, metrics: RequestMetrics) -> None:
        """`metrics`: receives the counts of this front's requests; closed with the links."""
        names = ports.tokenizer_ipc_names
        self.to_scheduler: AsyncPush[ToScheduler] = AsyncPush(ports.scheduler_input_ipc_name, scheduler_codec())
        self.from_workers: AsyncPull[ToTokenizer] = AsyncPull(names[index], tokenizer_codec())
        self._to_others: list[Push[ToTokenizer]] = [
            Push(name, tokenizer_codec()) for other, name in enumerate(names) if other != index
        ]
        board, count = Path(ports.board), len(names)
        self.fronts = Fronts(
            index,
            count,
            self._to_others,
            Board.at(board, count, index),
            SharedNames.at(board.with_suffix(".names"), count, index) if count > 1 else NoOthers(),
            metrics,
        )

    async def beat(self) -> None:
        """Reports to the other fronts that this one is alive, in an endless loop."""
        while True:
            self.fronts.notify(FrontBeat(front=self.fronts.index))
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        self.fronts.metrics.close()
        self.to_scheduler.close()
        self.from_workers.close()
        for other in self._to_others:
            other.close()


def make_front(
    args: ServerArgs, facts: SchedulerFacts, text: FrontText, links: FrontLinks, pool: TextPool
) -> tuple[ReadyFront, TokenizerManager]:
    """Makes the front and its manager; the front's process needs more of the manager than the routes do."""
    limits = FrontLimits.from_facts(facts)
    seed, share_by = args.model.random_seed, args.schedule.shares_by
    manager = TokenizerManager(
        # Fronts that draw the same seeds would give requests that differ in nothing the same answers.
        InputTokenizer(
            text.tokenizer,
            limits,
            pool,
            seed=None if seed is None else seed + links.fronts.index,
            keeps_keys_apart=args.serving.keeps_keys_apart,
            strict_max_tokens=args.serving.strict_max_tokens,
        ),
        limits,
        links.to_scheduler,
        links.from_workers,
        max_queued_requests=args.schedule.max_queued_requests,
        fronts=links.fronts,
        num_detokenizers=args.serving.detokenizer_worker_num,
        shares=OneForAll() if share_by is None else EqualShares(share_by, limits.max_running_requests),
        precedence=precedence_of(args.schedule.priorities),
        num_keys=len(args.serving.keys()),
        num_ranks=1 + len(facts.ranks),
    )
    settings = RequestLogSettings(log_requests=args.observability.log_requests)
    records = crash_records(args.observability)
    served = LoggedManager(manager, settings, records)
    metrics = links.fronts.metrics
    return ReadyFront(served, text.tokenizer, text.templates, pool, facts, settings, records, metrics), manager
