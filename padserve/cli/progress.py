"""How far a run is, on standard error: a bar on a terminal, else a line now and then."""

import contextlib
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

LINE_EVERY_S = 10.0
BAR = "{desc} {percentage:3.0f}% |{bar}| {elapsed}<{remaining}"
NO_END = "{desc} {elapsed}"


class Progress:
    """``total``: the end of ``position`` in the file, None when it is not known; ``rows``: done in earlier runs."""

    def __init__(self, total: int | None, rows: int, errors: int) -> None:
        self.rows, self.errors, self.tokens = rows, errors, 0
        self._total, self._first = total, rows
        self._position: int | None = None
        self._start = 0
        self._began = self._told = time.monotonic()
        self._bar: tqdm[None] | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show it until the end of the block."""
        self._began = self._told = time.monotonic()
        if not sys.stderr.isatty():
            yield
            return
        form = NO_END if self._total is None else BAR
        with tqdm(total=self._total, bar_format=form, file=sys.stderr) as self._bar, logging_redirect_tqdm():
            yield

    def advance(self, rows: int, errors: int, tokens: int, position: int) -> None:
        self.rows += rows
        self.errors += errors
        self.tokens += tokens
        if self._position is None:
            self._start = position if self._first else 0
            if self._bar is not None:
                self._bar.initial = self._start
        self._position = position
        if self._bar is not None:
            self._bar.set_description_str(self._speed(), refresh=False)
            self._bar.update(position - self._bar.n)
        elif time.monotonic() - self._told >= LINE_EVERY_S:
            self._told = time.monotonic()
            print(f"padserve: {self._speed()}{self._left()}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        seconds = time.monotonic() - self._began
        earlier = f", {self._first:,} of them earlier" if self._first else ""
        return f"{self._rows()}{earlier}; {self.tokens:,} tokens in {seconds:.1f} s"

    def _rows(self) -> str:
        bad = f", {self.errors:,} with an error" if self.errors else ""
        return f"{self.rows:,} rows{bad}"

    def _speed(self) -> str:
        return f"{self._rows()}, {self.tokens / max(time.monotonic() - self._began, 1e-3):,.0f} tokens/s"

    def _left(self) -> str:
        """Percent, and time left at the speed so far."""
        position = self._position or 0
        if not self._total or position <= self._start:
            return ""
        left_s = (time.monotonic() - self._began) * (self._total - position) / (position - self._start)
        return f", {100 * position / self._total:.0f} %, {tqdm.format_interval(left_s)} left"
