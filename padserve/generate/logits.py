"""What changes a row's scores before a token is chosen: transformers 5.24's logits processors, in its order, and the
penalties and biases of OpenAI. A processor sees one row and that row's own tokens, never another row.

    LogitsOptions -> Pipeline -- start(prompt) --> RowState     append, fork, rollback
                        '------- apply(scores, state) --> scores

Token ids that have no score (an embedding may have more rows than the head) are passed over: they are never generated.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from padserve.errors import InvalidField

LOWEST = float("-inf")
Ngram = tuple[int, ...]


class _Prompt:
    """The tokens that a row was given: shared by all its forks, indexed once."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self._ngrams: dict[int, dict[Ngram, list[int]]] = {}

    @cached_property
    def ids(self) -> Tensor:
        return _tensor(dict.fromkeys(self.tokens))

    def ngrams(self, size: int) -> Mapping[Ngram, Sequence[int]]:
        """Which tokens came after each ``size - 1`` tokens."""
        if size not in self._ngrams:
            found = self._ngrams[size] = {}
            for end in range(size, len(self.tokens) + 1):
                found.setdefault(self.tokens[end - size : end - 1], []).append(self.tokens[end - 1])
        return self._ngrams[size]


@dataclass(slots=True, eq=False)
class RowState:
    """One row's tokens and what processors ask of them, indexed when first asked for and only by what has come since. A
    fork copies the index of the generated tokens and shares that of the prompt.

    ``uncounted``: how many of the first generated tokens are forced by a target prefix. They are no new tokens to
    minimum lengths and to the presence and frequency penalties.
    """

    _prompt: _Prompt
    generated: list[int]
    uncounted: int = 0
    _done: int = 0  # generated tokens that are indexed
    _size: int = 0  # of the n-grams that are indexed, 0 for none
    _counts: dict[int, int] = field(default_factory=dict)
    _after: dict[Ngram, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, history: Sequence[int] | Tensor, prompt_length: int, uncounted: int = 0) -> Self:
        tokens = history.tolist() if isinstance(history, Tensor) else list(history)
        return cls(_Prompt(tokens[:prompt_length]), tokens[prompt_length:], uncounted)

    def __len__(self) -> int:
        return self.prompt_length + len(self.generated)

    @property
    def prompt_length(self) -> int:
        return len(self._prompt.tokens)

    def append(self, token: int) -> None:
        self.generated.append(token)

    def fork(self) -> "RowState":
        index = self._done, self._size, self._counts.copy(), self._after.copy()
        return RowState(self._prompt, self.generated.copy(), self.uncounted, *index)

    def rollback(self, length: int) -> None:
        """Forget all but the first ``length`` tokens, prompt included. The prompt cannot be forgotten."""
        if not self.prompt_length <= length <= len(self):
            raise ValueError(f"a row of {len(self)} tokens, {self.prompt_length} of them given, cannot go to {length}")
        kept = length - self.prompt_length
        for place in reversed(range(kept, self._done)):
            self._change(place, adds=False)
        self._done = min(self._done, kept)
        del self.generated[kept:]

    def ending(self, end: int, size: int) -> Ngram:
        """The ``size`` tokens that stand before place ``end``; fewer where the row starts."""
        start, given = max(end - size, 0), self.prompt_length
        return (*self._prompt.tokens[start:end], *self.generated[max(start - given, 0) : max(end - given, 0)])

    def seen(self) -> Tensor:
        """Ids of all tokens, prompt included. An id may stand in it more than once."""
        return torch.cat((self._prompt.ids, _tensor([*self.generated[: self.uncounted], *self.counts()])))

    def counts(self) -> Mapping[int, int]:
        """How often each token was generated."""
        self._index(self._size)
        return self._counts

    def following(self, size: int) -> list[int]:
        """Tokens that would complete an n-gram of this size that stands in the row already. Another size than the last
        time means a new index."""
        self._index(size)
        tail = self.ending(len(self), size - 1)
        return [*self._prompt.ngrams(size).get(tail, ()), *self._after.get(tail, ())]

    def _index(self, size: int) -> None:
        if size != self._size:
            self._done, self._size, self._counts, self._after = 0, size, {}, {}
        for place in range(self._done, len(self.generated)):
            self._change(place, adds=True)
        self._done = len(self.generated)

    def _change(self, place: int, adds: bool) -> None:
        """Take one more token into the index, or the newest one out of it."""
        token, end = self.generated[place], self.prompt_length + place
        if place >= self.uncounted:
            times = self._counts.pop(token, 0) + (1 if adds else -1)
            if times:
                self._counts[token] = times
        if 0 < self._size <= end + 1:
            before = self.ending(end, self._size - 1)
            known = self._after.pop(before, ())
            known = (*known, token) if adds else known[:-1]
            if known:
                self._after[before] = known


class Processor(ABC):
    """Changes one row's scores ``[vocab]``, float32: logits, or log probabilities in a beam search."""

    __slots__ = ()

    @abstractmethod
    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        """May change ``scores`` in place; what is returned counts."""

    def process(self, scores: Tensor, history: Sequence[int] | Tensor, prompt_length: int) -> Tensor:
        """The same for a row that is kept as its tokens. Leaves ``scores`` as they are."""
        return self.apply(scores.clone(), RowState.of(history, prompt_length))


def _tensor(ids: Iterable[int]) -> Tensor:
    return torch.tensor([*ids], dtype=torch.long)


def _ids(ids: Sequence[int] | Tensor, scores: Tensor) -> Tensor:
    """Those that have a score, on its device."""
    tensor = ids if isinstance(ids, Tensor) else _tensor(ids)
    return tensor[(tensor >= 0) & (tensor < len(scores))].to(scores.device)


def _ban(scores: Tensor, ids: Sequence[int] | Tensor) -> Tensor:
    return scores.index_fill_(0, _ids(ids, scores), LOWEST)


def _only(scores: Tensor, tokens: Sequence[int]) -> Tensor:
    return torch.full_like(scores, LOWEST).index_fill_(0, _tensor(tokens).to(scores.device), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class LogitBias(Processor):
    ids: Tensor  # [biased]
    values: Tensor  # [biased]

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        values = self.values[self.ids < len(scores)].to(scores.device)
        return scores.index_add_(0, _ids(self.ids, scores), values)


@dataclass(frozen=True, slots=True)
class RepetitionPenalty(Processor):
    """Keskar et al. 2019. Counts the decoder's prompt: a decoder's whole input, an encoder-decoder's start tokens."""

    penalty: float

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        ids = _ids(state.seen(), scores)
        values = scores[ids]
        scores[ids] = torch.where(values < 0, values * self.penalty, values / self.penalty)
        return scores


@dataclass(frozen=True, slots=True)
class OccurrencePenalties(Processor):
    """OpenAI's: ``frequency`` each time that a token was generated, ``presence`` once. The prompt is not counted."""

    frequency: float
    presence: float

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        vocab = len(scores)
        counts = {token: times for token, times in state.counts().items() if token < vocab}
        ids = _ids(list(counts), scores)
        times = torch.tensor(list(counts.values()), dtype=torch.float32, device=scores.device)
        scores[ids] = scores[ids] - self.frequency * times - self.presence
        return scores


@dataclass(frozen=True, slots=True)
class NoRepeatNgram(Processor):
    size: int

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        return _ban(scores, state.following(self.size))


@dataclass(frozen=True, slots=True, eq=False)
class BadWords(Processor):
    """``single``: words of one token. ``longer``: the others by their token before the last."""

    single: Tensor
    longer: Mapping[int, Sequence[Ngram]]

    @classmethod
    def of(cls, words: Sequence[Sequence[int]], eos_token_ids: Sequence[int] = ()) -> Self | None:
        """None where no word is left: the end token alone cannot be banned, as in transformers."""
        distinct = dict.fromkeys(tuple(word) for word in words if word)
        kept = [word for word in distinct if len(word) > 1 or word[0] not in eos_token_ids]
        longer: dict[int, list[Ngram]] = {}
        for word in kept:
            if len(word) > 1:
                longer.setdefault(word[-2], []).append(word)
        single = _tensor(word[0] for word in kept if len(word) == 1)
        return cls(single, longer) if kept else None

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        newest = state.ending(len(state), 1)
        words = self.longer.get(newest[0], ()) if newest else ()
        completed = [word[-1] for word in words if state.ending(len(state), len(word) - 1) == word[:-1]]
        return _ban(_ban(scores, self.single), completed)


@dataclass(frozen=True, slots=True)
class MinLength(Processor):
    """No end before the row has ``length`` tokens, prompt included, and ``new_tokens`` new ones."""

    length: int
    new_tokens: int
    end_ids: tuple[int, ...]

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        short = len(state) < self.length or len(state.generated) - state.uncounted < self.new_tokens
        return _ban(scores, self.end_ids) if short else scores


@dataclass(frozen=True, slots=True)
class Forced(Processor):
    """One of these tokens where the row has ``length`` tokens, prompt and target prefix included."""

    tokens: tuple[int, ...]
    length: int

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        return _only(scores, self.tokens) if len(state) == self.length else scores


@dataclass(frozen=True, slots=True, eq=False)
class Suppress(Processor):
    """``at_start``: only for the first token that is free, behind the prompt, a forced first token or target prefix."""

    ids: Tensor
    at_start: bool = False
    after_bos: bool = False

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        forced = max(state.uncounted, int(self.after_bos and state.prompt_length <= 1))
        return scores if self.at_start and len(state.generated) != forced else _ban(scores, self.ids)


@dataclass(frozen=True, slots=True)
class TargetPrefix(Processor):
    """The first tokens, whatever else holds for them; behind a forced first token, where there is one."""

    tokens: tuple[int, ...]
    after_bos: bool = False

    def end(self, prompt_length: int) -> int:
        """How many generated tokens there are when it has been said; 0 where there is none to say."""
        return len(self.tokens) + (self.after_bos and prompt_length == 1) if self.tokens else 0

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        left = self.end(state.prompt_length) - len(state.generated)
        return _only(scores, [self.tokens[-left]]) if 0 < left <= len(self.tokens) else scores


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsOptions:
    """What a request and its checkpoint ask for; nothing, by default. Errors: `InvalidField`.

    ``eos_token_ids``, and ``stop_token_ids`` that a request adds, are what minimum lengths rule out. ``max_length``, of
    the row with its prompt, is needed by ``forced_eos_token_id`` only.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words: Sequence[Sequence[int]] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_new_tokens: int = 0
    min_length: int = 0
    max_length: int | None = None
    eos_token_ids: Sequence[int] = ()
    stop_token_ids: Sequence[int] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = None
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    target_prefix: Sequence[int] = ()

    def __post_init__(self) -> None:
        bias = all(token >= 0 and value < math.inf for token, value in self.logit_bias.items())
        for name, right, expected in (
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "a number over 0"),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "0 or more"),
            ("logit_bias", bias, "values below infinity by token id"),
            ("max_length", self.forced_eos_token_id is None or self.max_length is not None, "the forced end's place"),
        ):
            if not right:
                raise InvalidField(f"{name} is {getattr(self, name)}, expected {expected}", field=name)


class Pipeline:
    """The processors that a request needs, in transformers' order: none for neutral options, which need no state."""

    def __init__(self, options: LogitsOptions) -> None:
        has_bos = options.forced_bos_token_id is not None
        self._prefix = TargetPrefix(tuple(options.target_prefix), has_bos)
        prefixes = (self._prefix,) if options.target_prefix else ()
        self.processors: tuple[Processor, ...] = (*_penalties(options), *_ends(options), *prefixes)

    def start(self, prompt: Sequence[int], generated: Sequence[int] = ()) -> RowState:
        return RowState.of([*prompt, *generated], len(prompt), self._prefix.end(len(prompt)))

    def apply(self, scores: Tensor, state: RowState) -> Tensor:
        """``scores``: ``[vocab]`` float32, left as they are; a neutral pipeline gives back the very same tensor."""
        changed = scores.clone() if self.processors else scores
        for processor in self.processors:
            changed = processor.apply(changed, state)
        return changed


def _penalties(options: LogitsOptions) -> Iterator[Processor]:
    if any(options.logit_bias.values()):
        yield LogitBias(_tensor(options.logit_bias), torch.tensor([*options.logit_bias.values()], dtype=torch.float32))
    if options.repetition_penalty != 1.0:
        yield RepetitionPenalty(options.repetition_penalty)
    if options.frequency_penalty or options.presence_penalty:
        yield OccurrencePenalties(options.frequency_penalty, options.presence_penalty)
    if options.no_repeat_ngram_size:
        yield NoRepeatNgram(options.no_repeat_ngram_size)
    if bad_words := BadWords.of(options.bad_words, options.eos_token_ids):
        yield bad_words


def _ends(options: LogitsOptions) -> Iterator[Processor]:
    """What holds at the beginning and at the end."""
    bos, eos = options.forced_bos_token_id, options.forced_eos_token_id
    end_ids = (*options.eos_token_ids, *options.stop_token_ids)
    if end_ids and (options.min_length or options.min_new_tokens):
        yield MinLength(options.min_length, options.min_new_tokens, end_ids)
    if bos is not None:
        yield Forced((bos,), 1)
    if eos is not None and options.max_length is not None:
        yield Forced((eos,) if isinstance(eos, int) else tuple(eos), options.max_length - 1)
    if options.suppress_tokens:
        yield Suppress(_tensor(options.suppress_tokens))
    if options.begin_suppress_tokens:
        yield Suppress(_tensor(options.begin_suppress_tokens), at_start=True, after_bos=bos is not None)
