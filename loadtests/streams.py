"""Event streams of a known number of tokens: when the first came, how far apart they were, how many within a time."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

EVENT = b"data: {"
FAULTS = (b"event: error", b'data: {"error"')


@dataclass(slots=True)
class Stream:
    """A reply as it arrives. ``within``: its events in the measured time."""

    first: float | None = None
    events: int = 0
    within: int = 0

    def feed(self, data: bytes, now: float, measured: bool) -> None:
        found = data.count(EVENT)
        if found and self.first is None:
            self.first = now
        self.events += found
        self.within += found if measured else 0


@dataclass(slots=True)
class Streams:
    """Replies of ``tokens`` each. Times in seconds.

    Some servers send two tokens in one event, and all an event for the end, so a reply's tokens are shared out among
    its events. Those of a reply that is only partly in the measured time count in part.
    """

    tokens: int
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    sent: float = 0.0

    def add(self, stream: Stream, started: float, ended: float, measured: bool) -> None:
        """``measured``: whether its end is in the measured time."""
        assert stream.first is not None
        self.sent += self.tokens * stream.within / stream.events
        if measured:
            self.firsts.append(stream.first - started)
            self.gaps.append((ended - stream.first) / max(self.tokens - 1, 1))

    def figures(self, seconds: float) -> dict[str, float]:
        """Tokens a second, and milliseconds: to the first token, and from one to the next."""
        return {
            "tokens_per_s": round(self.sent / seconds, 2),
            "first_p50_ms": millis(self.firsts, 50),
            "first_p99_ms": millis(self.firsts, 99),
            "token_ms": millis(self.gaps, 50),
        }


def fault(body: bytes, stream: Stream) -> str | None:
    """What is wrong with a stream that ended."""
    if any(one in body for one in FAULTS):
        return f"an error in the stream: {body[-200:].decode(errors='replace')}"
    return None if stream.events else f"not a stream of events: {body[:200].decode(errors='replace')}"


def millis(seconds: Sequence[float], percent: int) -> float:
    """A percentile in milliseconds; NaN of nothing."""
    if not seconds:
        return math.nan
    ranks = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else list(seconds) * 99
    return round(1000 * ranks[percent - 1], 3)
