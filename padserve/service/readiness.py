"""Health that tells the truth."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Readiness:
    """``started``: every model has loaded once. ``ready``: requests are served now. ``reasons``: why not."""

    ready: bool
    started: bool
    reasons: list[str] = field(default_factory=list)
