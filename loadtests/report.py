"""What a comparison found: a table in Markdown and a chart in SVG."""

import html
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Measured = Mapping[str, Any]
OURS = "padserve"


@dataclass(slots=True)
class Comparison:
    """``rates``: the rounds of each server at each number of clients. ``differing``: servers whose answers are not the
    model's, and how; ``failed``: servers that gave up, and why. ``streamed``: what counts are tokens."""

    about: str
    rates: dict[tuple[str, int], list[Measured]] = field(default_factory=dict)
    differing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    streamed: bool = False

    @property
    def key(self) -> str:
        return "tokens_per_s" if self.streamed else "requests_per_s"

    @property
    def unit(self) -> str:
        return "tokens/s" if self.streamed else "requests/s"

    def add(self, server: str, clients: int, measured: Measured) -> None:
        self.rates.setdefault((server, clients), []).append(measured)

    def groups(self) -> dict[int, list[str]]:
        """The servers measured at each number of clients."""
        found: dict[int, list[str]] = {}
        for server, clients in self.rates:
            found.setdefault(clients, []).append(server)
        return found

    def rate(self, server: str, clients: int) -> float:
        return median(self.rates[server, clients], self.key)


TIMES = {"p50 ms": "p50_ms", "p99 ms": "p99_ms"}
STREAMED_TIMES = {"first token p50 ms": "first_p50_ms", "first token p99 ms": "first_p99_ms", "ms a token": "token_ms"}


def table(found: Comparison) -> str:
    """``least-most`` are the rates of single rounds: medians closer than those ranges do not tell servers apart."""
    times = STREAMED_TIMES if found.streamed else TIMES
    columns = ["server", "clients", found.unit, "least-most", *times, "padserve / it"]
    lines = [
        found.about,
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for clients, servers in found.groups().items():
        ours = found.rate(OURS, clients)
        for server in servers:
            own, rate = found.rates[server, clients], found.rate(server, clients)
            star = "\\*" if server in found.differing else ""
            taken = " | ".join(f"{median(own, key):.1f}" for key in times.values())
            lines.append(
                f"| {server}{star} | {clients} | {rate:.1f} | {spread(own, found.key)} | {taken} | {ours / rate:.2f} |"
            )
    lines += [f"\n\\* {server} does not give the model's answers: {how}." for server, how in found.differing.items()]
    lines += [f"\n{server} failed: {why}" for server, why in found.failed.items()]
    return "\n".join([*lines, note(one for measured in found.rates.values() for one in measured)])


def note(measured: Iterable[Measured]) -> str:
    """For below a table."""
    flags = [one["disturbed"] for one in measured]
    return f"\nDisturbed by other processes: {sum(flags)} of {len(flags)} measurements."


def spread(measured: Sequence[Measured], key: str = "requests_per_s") -> str:
    seen = [one[key] for one in measured]
    return f"{min(seen):.0f}-{max(seen):.0f}"


def median(measured: Sequence[Measured], key: str) -> float:
    middle: float = statistics.median(one[key] for one in measured)
    return middle


LABELS, BARS, VALUES, ROW, BAR = 230, 420, 110, 26, 16  # pixels
LINE = 105  # characters
COLOURS = {True: "#1b6ca8", False: "#9aa5b1"}


def chart(found: Comparison) -> str:
    """Requests or tokens a second, a bar for the median and a line from the least to the most of single rounds."""
    most = max(one[found.key] for measured in found.rates.values() for one in measured)
    lines = textwrap.wrap(found.about, LINE)
    parts = [words(8, 20 + 18 * at, line) for at, line in enumerate(lines)]
    top = 34 + 18 * len(lines)
    for clients, servers in found.groups().items():
        parts.append(words(8, top, f"{clients} clients, {found.unit}", "font-weight='bold'"))
        top += 10
        for server in sorted(servers, key=lambda server: -found.rate(server, clients)):
            star = "*" if server in found.differing else ""
            seen = [one[found.key] for one in found.rates[server, clients]]
            parts += row(top, server + star, seen, BARS / most, server == OURS)
            top += ROW
        top += 28
    width, height = LABELS + BARS + VALUES, top
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    paper = f"<rect width='{width}' height='{height}' fill='white'/>"
    body = "\n".join([paper, *parts])
    return f"{head} font-family='sans-serif' font-size='13'>\n{body}\n</svg>\n"


def row(top: int, label: str, seen: Sequence[float], scale: float, ours: bool) -> list[str]:
    """``scale``: pixels for one a second."""
    middle = statistics.median(seen)
    left, right, line = LABELS + min(seen) * scale, LABELS + max(seen) * scale, top + BAR / 2
    return [
        words(LABELS - 8, top + 13, label, "text-anchor='end'"),
        f"<rect x='{LABELS}' y='{top}' width='{middle * scale:.1f}' height='{BAR}' fill='{COLOURS[ours]}'/>",
        f"<path d='M{left:.1f} {line}H{right:.1f}' stroke='black'/>",
        words(round(right) + 8, top + 13, f"{middle:.1f}"),
    ]


def words(x: int, y: int, text: str, attributes: str = "") -> str:
    return f"<text x='{x}' y='{y}' {attributes}>{html.escape(text)}</text>"
