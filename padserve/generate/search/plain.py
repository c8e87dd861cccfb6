"""Greedy search and sampling: every output goes its own way, one token a step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from padserve.core import Emitted, Generated, TokenDetails, TokenLogprob
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
        emitted, kept, indices = [], [], []
        for place, (row, index) in enumerate(zip(self.rows, self._indices, strict=True)):
            token = self._token(logits[place], best[place], row, index)
            details = None if self._logprobs is None else details_of(logits[place], token, self._logprobs)
            row.tokens.append(token)
            if details is not None:
                row.details.append(details)
            emitted.append(Emitted(index, token, details))
            reason = self._limits.reason(row.generated)
            if reason != "stop" and self._stops_text is not None and self._stops_text(row):
                reason = "stop"
            if reason is None:
                kept.append(row)
                indices.append(index)
                continue
            self._finished[index] = Generated(tuple(row.generated), reason, details=tuple(row.details))
            rows.free(row)
        self.rows, self._indices = kept, indices
        return emitted

    def _token(self, logits: Tensor, best: int, row: Row, index: int) -> int:
        choose = self._chooses[index]
        if self._rules is None and choose is None:
            return best
        scores = logits.clone()
        if self._rules is not None:
            scores = self._rules.apply(scores, row)
        return int(torch.argmax(scores)) if choose is None else choose(scores)
