"""RequestRecord: what is known of one request once it is over. Times are seconds of `time.perf_counter`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """Record of one request. The backend that reads the answer fills it in; `error` is empty if all went well."""

    start: float
    prompt_tokens: int
    """The workload's count of prompt tokens, until the server reports its own."""
    end: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(time, new tokens) of each chunk that brought tokens."""
    output_tokens: int = 0
    cached_tokens: int | None = None
    """None if the server does not tell."""
    text: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def latency(self) -> float:
        """Seconds from sending the request until the last byte."""
        return self.end - self.start

    @property
    def ttft(self) -> float:
        """Seconds until the first token; for an answer without tokens, until its end."""
        return (self.arrivals[0][0] if self.arrivals else self.end) - self.start

    @property
    def last_token(self) -> float:
        """Time of the last token; for an answer without tokens, of its end."""
        return (self.arrivals[-1][0] if self.arrivals else self.end) - self.start

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for an answer of one token or of one chunk."""
        if self.output_tokens < 2 or len(self.arrivals) < 2:
            return None
        return (self.last_token - self.ttft) / (self.output_tokens - 1)

    def itls(self) -> list[float]:
        """Returns the times between tokens in seconds. Tokens of one chunk share the gap before the chunk evenly."""
        gaps: list[float] = []
        for (before, _), (now, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            gaps += [(now - before) / count] * count
        return gaps
