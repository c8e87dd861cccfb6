"""Beam search with the semantics of transformers 5.24's, for one generation; groups as Vijayakumar et al. 2016.

Of all continuations of all beams the best ``keep`` are looked at: those that end go to the finished ones if they are
among the best ``num_beams``, the best of the others go on. Finished hypotheses are compared by their sum of log
probabilities over length ** length_penalty.

Beams that sample draw the ``keep`` continuations instead, without replacement, from all of all beams by their sums of
warped log probabilities, which are their scores too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from padserve.core import Emitted, FinishReason, Generated, TokenDetails
from padserve.generate.sample import Sampler, warp
from padserve.generate.search.base import Rows, Rules, StopsText
from padserve.generate.search.plain import details_of
from padserve.generate.sequence import Limits, Row

NEVER = -1.0e9


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """``early_stopping``: True, False or "never", as transformers has them. ``patience``: see API. ``groups``: the
    beams are split into so many, each of which avoids what earlier ones chose in the same step, by ``diversity``."""

    num_beams: int
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    patience: float = 1.0
    groups: int = 1
    diversity: float = 0.0


@dataclass(slots=True)
class _Hypothesis:
    score: float
    tokens: list[int]
    reason: FinishReason
    details: list[TokenDetails]


@dataclass(slots=True)
class _Group:
    """One group's beams: places in the search's rows, sums of log probabilities, and what has finished."""

    places: list[int]
    scores: list[float]
    finished: list[_Hypothesis] = field(default_factory=list)
    improvable: bool = True
    open: bool = True


class BeamSearch:
    def __init__(
        self,
        first: Row,
        limits: Limits,
        rules: Rules | None,
        options: BeamOptions,
        logprobs: int | None = None,
        stops_text: StopsText | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.rows = [first]
        self._limits, self._rules, self._options = limits, rules, options
        self._logprobs, self._stops_text, self._sampler = logprobs, stops_text, sampler
        self._width = options.num_beams // options.groups
        self._capacity = max(round(self._width * options.patience), 1)
        self._keep = max(2, 1 + len(limits.end_ids)) * self._width
        self._groups = [_Group([0], [0.0]) for _ in range(options.groups)]

    @property
    def done(self) -> bool:
        return not self.rows

    def outputs(self) -> list[Generated]:
        found = [hypothesis for group in self._groups for hypothesis in group.finished]
        found.sort(key=lambda hypothesis: -hypothesis.score)
        return [
            Generated(tuple(one.tokens), one.reason, one.score, tuple(one.details))
            for one in found[: self._options.num_return_sequences]
        ]

    def consume(self, logits: Tensor, best: Sequence[int], rows: Rows) -> list[Emitted]:
        logprobs = logits.log_softmax(-1)
        if self._rules is not None:
            processed = [self._rules.apply(logprobs[i].clone(), row) for i, row in enumerate(self.rows)]
            logprobs = torch.stack(processed)
        if self._sampler is not None:
            logprobs = torch.stack([warp(row, self._sampler.options) for row in logprobs.cpu()])
        chosen_before: list[int] = []
        continued: list[tuple[int, int]] = []  # (place of the parent, token), over all groups
        for group in self._groups:
            if not group.open:
                continue
            going_on, tokens = self._advance(group, logprobs, logits, chosen_before)
            group.places = list(range(len(continued), len(continued) + len(going_on)))
            continued += going_on
            chosen_before += tokens
        self._continue(continued, logits, rows)
        return []

    def _advance(
        self, group: _Group, logprobs: Tensor, logits: Tensor, chosen_before: list[int]
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """Choose a group's continuations and note what ends. Returns (place, token) of those that go on, and the tokens
        that later groups are to avoid: theirs, or those of the best when all end."""
        scores = logprobs[group.places]
        if chosen_before and self._options.diversity:
            counts = torch.bincount(torch.tensor(chosen_before), minlength=scores.shape[1])
            scores = scores - self._options.diversity * counts
        totals = (scores + torch.tensor(group.scores)[:, None]).flatten()
        values, flat = self._best(totals)
        vocab = scores.shape[1]
        candidates = [
            (value, group.places[index // vocab], index % vocab)
            for value, index in zip(values.tolist(), flat.tolist(), strict=True)
        ]
        length = len(self.rows[0].generated) + 1
        ending = [self._reason(place, token) for _, place, token in candidates]
        going_on = [candidate for candidate, reason in zip(candidates, ending, strict=True) if reason is None][
            : self._width
        ]
        self._finish(group, candidates, ending, length, logits)
        group.scores = [value for value, _, _ in going_on]
        self._decide(group, length, all(reason is not None for reason in ending))
        if not going_on:
            group.open = False
        tokens = [token for _, _, token in going_on or candidates[: self._width]]
        return [(place, token) for _, place, token in going_on] if group.open else [], tokens

    def _best(self, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The continuations that are looked at, best first: values and places."""
        drawn = None if self._sampler is None else self._sampler.several(totals, self._keep)
        if drawn is None or not len(drawn):
            return totals.topk(min(self._keep, len(totals)))
        values, order = totals[drawn].sort(descending=True, stable=True)
        return values, drawn[order]

    def _reason(self, place: int, token: int) -> FinishReason | None:
        row = self.rows[place]
        reason = self._limits.reason([*row.generated, token])
        if reason != "stop" and self._stops_text is not None and self._stops_text(row, token):
            return "stop"
        return reason

    def _finish(
        self,
        group: _Group,
        candidates: Sequence[tuple[float, int, int]],
        ending: Sequence[FinishReason | None],
        length: int,
        logits: Tensor,
    ) -> None:
        """Only the best ``width`` candidates may finish; the others stand in for those that do."""
        options = self._options
        full = len(group.finished) == self._capacity
        if not group.improvable or (full and options.early_stopping is True):
            return
        for (value, place, token), reason in list(zip(candidates, ending, strict=True))[: self._width]:
            if reason is None:
                continue
            row = self.rows[place]
            details = list(row.details)
            if self._logprobs is not None:
                details.append(details_of(logits[place], token, self._logprobs))
            score = value / length**options.length_penalty
            group.finished.append(_Hypothesis(score, [*row.generated, token], reason, details))
        group.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del group.finished[self._capacity :]

    def _decide(self, group: _Group, length: int, none_goes_on: bool) -> None:
        """Whether the group stops here."""
        options, full = self._options, len(group.finished) == self._capacity
        best_length = length
        if options.early_stopping == "never" and options.length_penalty > 0.0:
            best_length = self._limits.max_new_tokens
        best = max(group.scores, default=NEVER) / best_length**options.length_penalty
        worst = min(hypothesis.score for hypothesis in group.finished) if full else NEVER
        group.improvable = group.improvable and best > worst
        if not group.improvable or (full and options.early_stopping is True) or none_goes_on:
            group.open = False

    def _continue(self, continued: Sequence[tuple[int, int]], logits: Tensor, rows: Rows) -> None:
        """Give every continuation a row: the last one of a parent takes the parent's own."""
        uses = [0] * len(self.rows)
        for place, _ in continued:
            uses[place] += 1
        following = []
        for place, token in continued:
            parent = self.rows[place]
            uses[place] -= 1
            row = rows.fork(parent) if uses[place] else parent
            following.append((row, place, token))
        for row in self.rows:
            if not any(row is kept for kept, _, _ in following):
                rows.free(row)
        for row, place, token in following:
            if self._logprobs is not None:
                row.details.append(details_of(logits[place], token, self._logprobs))
            row.tokens.append(token)
        self.rows = [row for row, _, _ in following]
