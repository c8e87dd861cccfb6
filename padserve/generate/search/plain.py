"""Greedy search and sampling: every output goes its own way, one token a step, or as many as its draft foresaw."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from padserve.core import Emitted, FinishReason, Generated, TokenDetails, TokenLogprob
from padserve.generate.search.base import Rows, Rules, StopsText
from padserve.generate.sequence import Limits, Row

Choose = Callable[[Tensor], int]
"""From a row's scores ``[vocab]`` to a token."""


def details_of(logits: Tensor, token: int, count: int) -> TokenDetails:
    """Log probabilities by the model's own logits ``[vocab]``."""
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(count, len(logprobs)))
    top = tuple(TokenLogprob(int(i), float(v)) for i, v in zip(ids.tolist(), values.tolist(), strict=True))
    return TokenDetails(token, float(logprobs[token]), top)


class PlainSearch:
    """``chooses``: one for each output, None for the most likely token. ``logprobs``: how many, None for none."""

    def __init__(
        self,
        first: Row,
        limits: Limits,
        rules: Rules | None,
        chooses: Sequence[Choose | None],
        logprobs: int | None = None,
        stops_text: StopsText | None = None,
    ) -> None:
        self.rows = [first]
        self._limits, self._rules, self._logprobs, self._stops_text = limits, rules, logprobs, stops_text
        self._chooses = list(chooses)
        self._indices = [0]
        self._finished: list[Generated | None] = [None] * len(chooses)

    @property
    def done(self) -> bool:
        return not self.rows

    def outputs(self) -> list[Generated]:
        return [output for output in self._finished if output is not None]

    def consume(self, logits: Tensor, best: Sequence[int], rows: Rows) -> list[Emitted]:
        if len(self.rows) < len(self._chooses) and not self.rows[0].generated:
            self.rows += [rows.fork(self.rows[0]) for _ in self._chooses[1:]]
            self._indices = list(range(len(self._chooses)))
            logits, best = logits.expand(len(self.rows), -1), [best[0]] * len(self.rows)
        emitted: list[Emitted] = []
        kept, indices, first = [], [], 0
        for row, index in zip(self.rows, self._indices, strict=True):
            places = slice(first, first + 1 + len(row.draft))
            first = places.stop
            reason = self._go_on(row, index, logits[places], best[places], emitted, rows)
            if reason is None:
                kept.append(row)
                indices.append(index)
                continue
            counts = None if row.speculation is None else row.speculation.counts
            self._finished[index] = Generated(
                tuple(row.generated), reason, details=tuple(row.details), speculation=counts
            )
            rows.free(row)
        self.rows, self._indices = kept, indices
        return emitted

    def _go_on(
        self, row: Row, index: int, logits: Tensor, best: Sequence[int], emitted: list[Emitted], rows: Rows
    ) -> FinishReason | None:
        """Add tokens as long as they are those that the draft foresaw, and the one that is not. Why the row ends."""
        accepted = 0
        for place, foreseen in enumerate((*row.draft, None)):
            token = self._token(logits[place], best[place], row, index)
            emitted.append(self._add(row, index, token, logits[place]))
            accepted += token == foreseen
            reason = self._reason(row)
            if reason is not None or token != foreseen:
                break
        rows.settle(row, accepted)
        return reason

    def _add(self, row: Row, index: int, token: int, logits: Tensor) -> Emitted:
        row.tokens.append(token)
        if self._logprobs is None:
            return Emitted(index, token)
        row.details.append(details_of(logits, token, self._logprobs))
        return Emitted(index, token, row.details[-1])

    def _reason(self, row: Row) -> FinishReason | None:
        reason = self._limits.reason(row.generated)
        if reason != "stop" and self._stops_text is not None and self._stops_text(row):
            return "stop"
        return reason

    def _token(self, logits: Tensor, best: int, row: Row, index: int) -> int:
        choose = self._chooses[index]
        if self._rules is None and choose is None:
            return best
        scores = logits.clone()
        if self._rules is not None:
            scores = self._rules.apply(scores, row)
        return int(torch.argmax(scores)) if choose is None else choose(scores)
