"""The engine of one generating model: requests join and leave its running batch at every step.

    submit -> waiting -> running -> [schedule -> step of the model -> search] ... -> reports

A step runs the new tokens of every running row: one each where tokens are generated, a part of the prompt where a
request has just come, so many in all that a step stays short. When the cache is full the newest request is put back and
computed again later. One thread at a time calls `step`; the others are safe from any thread.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from padserve.core import Emitted, Generated
from padserve.errors import DeadlineExceeded, InternalError, NonfiniteOutput, PadserveError
from padserve.generate.blocks import BlockPool, OutOfBlocks
from padserve.generate.parts import Part, make_step, sound_places
from padserve.generate.search.base import Search, free_all
from padserve.generate.sequence import Row
from padserve.models.generators.base import Generator, Scores

logger = logging.getLogger(__name__)
NO_LIMIT = 1_000_000_000


@dataclass(slots=True, eq=False)
class Generation:
    """One request's input on its way. ``prompt``: the decoder's first tokens. ``source``: what an encoder reads.

    ``make_search(first)``: the strategy, started with the first row. ``on_tokens`` and ``on_end`` are called in the
    thread that steps: with tokens as they become certain, and once with the outputs or the error.
    """

    prompt: Sequence[int]
    make_search: Callable[[Row], Search]
    on_tokens: Callable[[list[Emitted]], None]
    on_end: Callable[[list[Generated] | PadserveError], None]
    source: Sequence[int] | None = None
    deadline: float = float("inf")
    aborted: bool = False
    search: Search | None = None
    encoded: Any = None
    arrived: float = field(default_factory=time.perf_counter)
    started: float | None = None


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """``step_tokens``: new tokens of a step, so that a long prompt does not stall what runs. ``rows``: at once."""

    step_tokens: int = 256
    rows: int = 64


class GenerationEngine:
    """``on_speculated(method, drafted, accepted)``: called for every row with a speculation that got tokens."""

    def __init__(
        self,
        generator: Generator,
        pool: BlockPool,
        limits: EngineLimits | None = None,
        on_speculated: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._generator, self.pool, self._limits = generator, pool, limits or EngineLimits()
        self._on_speculated = on_speculated
        self._store = generator.new_store(pool.num_blocks, pool.block_size)
        self._lock = threading.Lock()
        self._inbox: deque[Generation] = deque()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._aborts = False

    def submit(self, generation: Generation) -> None:
        with self._lock:
            self._inbox.append(generation)

    def abort(self, generation: Generation) -> None:
        """Its cache is free after the next step."""
        generation.aborted = True
        self._aborts = True

    @property
    def ready(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._inbox or self._waiting or self._running)

    @property
    def running(self) -> int:
        """Sequences in the running batch."""
        return sum(len(one.search.rows) for one in list(self._running) if one.search is not None)

    @property
    def waiting(self) -> int:
        return len(self._inbox) + len(self._waiting)

    def step(self) -> int:
        """Do one step. Returns the new tokens that ran."""
        self._receive()
        self._drop_dead()
        self._admit()
        parts = self._schedule()
        if not parts:
            return 0
        try:
            scores = self._run(parts)
        except Exception as error:
            self._fail(parts, error)
            return 0
        self._advance(parts, scores)
        return sum(part.count for _, part in parts)

    def drain(self, error: PadserveError) -> None:
        """End everything with an error. Not while a step runs."""
        self._receive()
        for generation in [*self._running, *self._waiting]:
            self._end(generation, error)
        self._running, self._waiting = [], deque()

    def fork(self, row: Row) -> Row:
        return row.fork(self.pool.fork(row.table))

    def free(self, row: Row) -> None:
        self.pool.free(row.table)

    def settle(self, row: Row, accepted: int) -> None:
        if row.speculation is None:
            return
        drafted, row.draft = len(row.draft), []
        self.pool.roll_back(row.table, len(row.tokens) - 1)
        row.speculation.learn(drafted, accepted)
        if self._on_speculated is not None:
            self._on_speculated(row.speculation.counts.method, drafted, accepted)

    def _receive(self) -> None:
        with self._lock:
            self._waiting.extend(self._inbox)
            self._inbox.clear()

    def _drop_dead(self) -> None:
        now = time.perf_counter()
        for generation in [*self._running, *self._waiting]:
            if not generation.aborted and now < generation.deadline:
                continue
            if generation in self._waiting:
                self._waiting.remove(generation)
            else:
                self._running.remove(generation)
            self._end(generation, DeadlineExceeded("the deadline passed while the text was generated"))

    def _end(self, generation: Generation, outcome: list[Generated] | PadserveError) -> None:
        if generation.search is not None:
            free_all(generation.search, self)
        generation.encoded = None
        if not generation.aborted:
            generation.on_end(outcome)

    def _admit(self) -> None:
        """Start what waits, oldest first, while there is room; sources that start together are encoded together."""
        starting: list[Generation] = []
        rows = self.running
        while self._waiting and rows + len(starting) < self._limits.rows:
            generation = self._waiting[0]
            needed = self.pool.blocks_for(len(generation.prompt) + 1)
            if needed > self.pool.available and (self._running or starting):
                break
            self._waiting.popleft()
            if needed > self.pool.num_blocks - 1:
                self._end(generation, InternalError("the prompt is larger than the cache"))
                continue
            self._start(generation)
            starting.append(generation)
        self._encode([one for one in starting if one.source is not None and one.encoded is None])
        self._running += [one for one in starting if one.search is not None]

    def _start(self, generation: Generation) -> None:
        generation.started = generation.started or time.perf_counter()
        if generation.search is not None:  # it was put back: all rows are computed again
            return
        prefix = self.pool.find_prefix(generation.prompt) if generation.source is None else None
        row = Row(list(generation.prompt), len(generation.prompt))
        if prefix is not None:
            row.table = prefix
        generation.search = generation.make_search(row)

    def _encode(self, starting: list[Generation]) -> None:
        if not starting:
            return
        try:
            encoded = self._generator.encode([one.source or () for one in starting])
        except Exception as error:
            if len(starting) > 1:
                for one in starting:
                    self._encode([one])
                return
            logger.error("a source could not be encoded", exc_info=error)
            self._end(starting[0], InternalError(f"the model failed on this input ({type(error).__name__})"))
            starting[0].search = None
            return
        for one, source in zip(starting, encoded, strict=True):
            one.encoded = source

    def _schedule(self) -> list[tuple[Generation, Part]]:
        """Rows that run now and how many of their tokens, rows of one generation side by side."""
        budget = self._limits.step_tokens
        parts: list[tuple[Generation, Part]] = []
        for generation in list(self._running):
            if generation not in self._running:
                continue  # put back for the sake of an older one
            assert generation.search is not None
            rows = generation.search.rows
            # rows that were put back catch up but for their last tokens, which all of them run in one step
            catching_up = len(rows) > 1 and any(len(row.pending) > 1 for row in rows)
            for row in rows:
                pending = len(row.tokens) - row.table.computed - catching_up
                count = pending if pending == 1 and not catching_up else min(pending, budget)
                if count <= 0:
                    continue
                if not self._make_room(generation, row, row.table.computed + count):
                    break
                budget -= count
                parts.append((generation, Part(row, count, generation.encoded)))
        parts = [both for both in parts if both[0] in self._running]
        self._draft([part for _, part in parts], budget)
        return parts

    def _draft(self, parts: Sequence[Part], budget: int) -> None:
        """Guess on where a row's last token runs, with what room the others leave in the step and in the cache."""
        for part in parts:
            row = part.row
            if row.speculation is None or not part.is_last:
                continue
            room = min(budget, (self._generator.window or NO_LIMIT) - len(row.tokens))
            draft = row.speculation.propose(row.tokens, room)
            if draft and self._has_room(row, len(row.tokens) + len(draft)):
                row.draft = draft
                budget -= len(draft)

    def _has_room(self, row: Row, tokens: int) -> bool:
        """Take blocks for a row if there are any, at nobody's expense."""
        try:
            self._store.copy_blocks(self.pool.extend(row.table, tokens))
        except OutOfBlocks:
            return False
        return True

    def _make_room(self, generation: Generation, row: Row, tokens: int) -> bool:
        """Blocks for a row, at the expense of newer generations if need be. False when its own was put back."""
        while not self._has_room(row, tokens):
            newest = self._running[-1]
            if newest is generation and len(self._running) == 1:
                self._running.remove(generation)
                self._end(generation, InternalError("the cache is too small for this request; see models.cache"))
                return False
            self._put_back(newest)
            if newest is generation:
                return False
        return True

    def _put_back(self, generation: Generation) -> None:
        """Give its cache up; its tokens are kept and computed again."""
        assert generation.search is not None
        for row in generation.search.rows:
            self.pool.free(row.table)
        self._running.remove(generation)
        self._waiting.appendleft(generation)

    def _run(self, parts: Sequence[tuple[Generation, Part]]) -> Scores:
        """Of the rows whose last token ran: behind it and behind each token of the draft."""
        step = make_step([part for _, part in parts], self._store, self.pool.block_size)
        return self._generator.step(step)

    def _advance(self, parts: Sequence[tuple[Generation, Part]], scores: Scores) -> None:
        ready: dict[int, range] = {}  # row -> its places in the logits
        first = 0
        for _, part in parts:
            places = range(first, first + part.places)
            first, row = places.stop, part.row
            row.table.computed += part.count
            if places:
                ready[id(row)] = sound_places(row, places, scores.sound)
        for generation in list(dict.fromkeys(generation for generation, _ in parts)):
            search = generation.search
            assert search is not None
            if generation.source is None:
                for row in search.rows:
                    self.pool.publish(row.table, row.tokens[: row.prompt])
            if any(id(row) not in ready for row in search.rows):
                continue  # a prompt, or some rows of it, are still being computed
            chosen = [place for row in search.rows for place in ready[id(row)]]
            if not all(scores.sound[place] for place in chosen):
                self._running.remove(generation)
                self._end(generation, NonfiniteOutput("the model returned NaN or infinity for this input"))
                continue
            emitted = search.consume(scores.logits[chosen], [scores.best[place] for place in chosen], self)
            if emitted and not generation.aborted:
                generation.on_tokens(emitted)
            if search.done:
                self._running.remove(generation)
                self._end(generation, search.outputs())

    def _fail(self, parts: Sequence[tuple[Generation, Part]], error: Exception) -> None:
        """A step that raises ends the generations that were in it."""
        logger.error("a step of %d rows failed", len(parts), exc_info=error)
        for generation in dict.fromkeys(generation for generation, _ in parts):
            self._running.remove(generation)
            self._end(generation, InternalError(f"the model failed on this input ({type(error).__name__})"))
