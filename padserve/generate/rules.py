"""What changes a row's scores before a token is chosen: transformers 5.24's processors, in its order, and the penalties
of OpenAI. Each looks at its own row only."""

from collections import Counter

import torch
from torch import Tensor

from padserve.core import GenerationOptions
from padserve.generate.sequence import Row

LOWEST = float("-inf")


class OptionRules:
    """The rules that a request's options ask for. See `padserve.generate.search.base.Rules`."""

    def __init__(self, options: GenerationOptions) -> None:
        self._options = options
        self._bias_ids = torch.tensor(list(options.logit_bias), dtype=torch.long)
        self._bias = torch.tensor(list(options.logit_bias.values()))
        self._end_ids = torch.tensor(sorted(options.end_ids | options.stop_ids), dtype=torch.long)
        self._suppressed = torch.tensor(options.suppress_tokens, dtype=torch.long)

    @classmethod
    def of(cls, options: GenerationOptions) -> "OptionRules | None":
        """None where nothing changes a score."""
        neutral = GenerationOptions(prompt=())
        names = (
            "min_new_tokens",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "no_repeat_ngram_size",
            "bad_words",
            "logit_bias",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "suppress_tokens",
        )
        return cls(options) if any(getattr(options, name) != getattr(neutral, name) for name in names) else None

    def apply(self, scores: Tensor, row: Row) -> Tensor:
        options, tokens = self._options, row.tokens
        if len(self._bias_ids):
            scores[self._bias_ids] += self._bias
        if options.repetition_penalty != 1.0:
            seen = torch.tensor(sorted(set(tokens)))
            values = scores[seen]
            scores[seen] = torch.where(
                values < 0, values * options.repetition_penalty, values / options.repetition_penalty
            )
        if options.presence_penalty or options.frequency_penalty:
            self._penalize(scores, row)
        if options.no_repeat_ngram_size:
            scores[_after_ngrams(tokens, options.no_repeat_ngram_size)] = LOWEST
        for word in options.bad_words:
            start = len(word) - 1
            if start <= len(tokens) and tuple(tokens[len(tokens) - start :]) == word[:-1]:
                scores[word[-1]] = LOWEST
        if len(row.generated) < options.min_new_tokens:
            scores[self._end_ids] = LOWEST
        if options.forced_bos_token_id is not None and len(tokens) == 1:
            return _only(scores, options.forced_bos_token_id)
        if options.forced_eos_token_id is not None and len(row.generated) == options.max_new_tokens - 1:
            return _only(scores, options.forced_eos_token_id)
        if len(self._suppressed):
            scores[self._suppressed] = LOWEST
        return scores

    def _penalize(self, scores: Tensor, row: Row) -> None:
        counts = Counter(row.generated)
        if not counts:
            return
        ids = torch.tensor(list(counts))
        times = torch.tensor(list(counts.values()), dtype=torch.float32)
        scores[ids] -= self._options.frequency_penalty * times + self._options.presence_penalty


def _only(scores: Tensor, token: int) -> Tensor:
    forced = torch.full_like(scores, LOWEST)
    forced[token] = 0.0
    return forced


def _after_ngrams(tokens: list[int], size: int) -> list[int]:
    """Tokens that would complete an n-gram that stands in the tokens already."""
    start = len(tokens) - size + 1
    if start < 0:
        return []
    tail = tokens[start:]
    return [
        tokens[place + size - 1] for place in range(len(tokens) - size + 1) if tokens[place : place + size - 1] == tail
    ]
