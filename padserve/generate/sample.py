"""The choice of a token from one row's scores: transformers 5.24's warpers in its order, then a draw.

Draw n of output i of a request with seed s is a function of (s, i, n) alone (Salmon et al. 2011, Philox): neither the
rows beside it nor drafts that were refused change it.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from padserve.core import TokenDetails, TokenLogprob
from padserve.errors import InvalidField

LOWEST = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Greedy by default; every warper neutral. Errors: `InvalidField`.

    ``min_tokens_to_keep``: however small a mass is asked for. One, but for beams the number of end tokens and one more.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    min_tokens_to_keep: int = 1

    def __post_init__(self) -> None:
        for name, right, expected in (
            ("temperature", 0 <= self.temperature < math.inf, "0 or more"),
            ("top_k", self.top_k >= 0, "0, for all, or more"),
            ("top_p", 0 <= self.top_p <= 1, "a number from 0 to 1"),
            ("min_p", 0 <= self.min_p <= 1, "a number from 0 to 1"),
            ("typical_p", 0 < self.typical_p <= 1, "a number over 0, at most 1"),
            ("min_tokens_to_keep", self.min_tokens_to_keep >= 1, "1 or more"),
        ):
            if not right:
                raise InvalidField(f"{name} is {getattr(self, name)}, expected {expected}", field=name)

    @property
    def greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0


def warp(scores: Tensor, options: SamplingOptions) -> Tensor:
    """``scores``: ``[vocab]`` float32 on the CPU, left as they are. Returns -inf for what is left out."""
    keep = options.min_tokens_to_keep
    if options.temperature != 1.0:
        scores = scores / options.temperature
    if options.top_k:
        scores = top_k(scores, options.top_k, keep)
    if options.top_p < 1.0:
        scores = top_p(scores, options.top_p, keep)
    if options.min_p:
        scores = min_p(scores, options.min_p, keep)
    if options.typical_p < 1.0:
        scores = typical_p(scores, options.typical_p, keep)
    return scores


def top_k(scores: Tensor, count: int, keep: int = 1) -> Tensor:
    """The most likely tokens, and all that are as likely as the last of them."""
    lowest = scores.topk(min(max(count, keep), len(scores))).values[-1]
    return scores.masked_fill(scores < lowest, LOWEST)


def top_p(scores: Tensor, mass: float, keep: int = 1) -> Tensor:
    """Holtzman et al. 2020: the most likely tokens that together have at least this probability.

    Of equally likely tokens at the edge those stay that `torch.sort` puts last, as in transformers. Else the values are
    enough, and NumPy sorts them three times faster.
    """
    ordered = torch.from_numpy(np.sort(scores.numpy()))
    left_out = int((ordered.softmax(-1).cumsum(-1) <= 1 - mass).sum())
    left_out = min(left_out, len(scores) - keep)
    if left_out <= 0:
        return scores
    if ordered[left_out - 1] < ordered[left_out]:
        return scores.masked_fill(scores < ordered[left_out], LOWEST)
    return scores.index_fill(0, scores.sort().indices[:left_out], LOWEST)


def min_p(scores: Tensor, share: float, keep: int = 1) -> Tensor:
    """Nguyen et al. 2024: the tokens with at least this share of the highest probability."""
    likely = scores.softmax(-1)
    left_out = likely < share * likely.amax(-1)
    left_out[likely.topk(min(keep, len(likely))).indices] = False
    return scores.masked_fill(left_out, LOWEST)


def typical_p(scores: Tensor, mass: float, keep: int = 1) -> Tensor:
    """Meister et al. 2022: the tokens whose information is nearest to the expected one, up to this probability."""
    logprobs = scores.log_softmax(-1)
    entropy = -(logprobs * logprobs.exp()).nansum(-1)
    ordered, order = (-logprobs - entropy).abs().sort()
    last = min(int((scores[order].softmax(-1).cumsum(-1) < mass).sum()), len(scores) - 1)
    left_out = ordered > ordered[last]
    left_out[:keep] = False
    return scores.index_fill(0, order[left_out], LOWEST)


class Sampler:
    """Chooses the tokens of output ``index`` of a request. Without a seed the request has a random one, which all its
    forks share. ``draws``: how many there were; set it back when drawn tokens are refused.
    """

    def __init__(self, options: SamplingOptions, seed: int | None = None, index: int = 0) -> None:
        if seed is not None and seed < 0:
            raise InvalidField(f"seed is {seed}, expected 0 or more", field="seed")
        source = np.random.SeedSequence(seed, spawn_key=(index,))
        self.options, self.index, self.draws = options, index, 0
        self._seed = source.entropy
        self._key = source.generate_state(2, np.uint64)

    def fork(self, index: int) -> "Sampler":
        """Output ``index`` of the same request, at the same draw."""
        assert isinstance(self._seed, int)
        other = Sampler(self.options, self._seed, index)
        other.draws = self.draws
        return other

    def __call__(self, scores: Tensor) -> int:
        """``scores``: ``[vocab]`` float32. Where nothing can be drawn, since all are -inf or the temperature takes the
        highest over the range of float32, this is the first of the highest, as in greedy search."""
        if self.options.greedy:
            return int(scores.argmax())
        drawn, scores = self._uniform(), scores.float().cpu()
        if not math.isfinite(scores.max() / self.options.temperature):
            return int(scores.argmax())
        cumulative = warp(scores, self.options).softmax(-1).double().cumsum(-1)
        return int(torch.searchsorted(cumulative, cumulative[-1:] * drawn, right=True))

    def several(self, scores: Tensor, count: int) -> Tensor:
        """``count`` different places of ``scores`` ``[places]`` in the order in which they are drawn, each by the
        scores of those that are left; fewer where the others are not finite. One draw.

        By the largest of score + Gumbel noise (Vieira 2014, Kool et al. 2019), so that no probability is too small.
        """
        live = torch.isfinite(scores).nonzero()[:, 0]
        # the counter's second word: no number is one that another draw has used
        source = np.random.Generator(np.random.Philox(key=self._key, counter=[0, self.draws + 1, 0, 0]))
        self.draws += 1
        noise = -np.log(np.maximum(source.standard_exponential(len(live)), 1e-300))
        keys = scores[live].double() + torch.from_numpy(noise)
        return live[keys.topk(min(count, len(live))).indices]

    def _uniform(self) -> float:
        """The next number from 0 to 1 - 2**-53: any sum of probabilities times it is less than that sum."""
        bits = np.random.Philox(key=self._key, counter=self.draws).random_raw()
        self.draws += 1
        return int(bits >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True, eq=False)
class LogProbs:
    """``values``: ``[vocab]`` float32. ``top``: the most likely tokens, best first, of equals the lower id first."""

    values: Tensor
    top: tuple[TokenLogprob, ...]

    def of(self, token: int) -> TokenDetails:
        return TokenDetails(token, float(self.values[token]), self.top)


def log_probs(logits: Tensor, count: int) -> LogProbs:
    """Log probabilities by the model's own logits ``[vocab]``, before every processor and warper, in float32.

    The API leaves it open. This is vLLM's default (``raw_logprobs``) and transformers' ``output_logits``: it says what
    the model thinks, whatever the request rules out, and never is -inf for a token that was forced.
    """
    values = logits.float().log_softmax(-1)
    if count < 1:
        return LogProbs(values, ())
    lowest = values.topk(min(count, len(values))).values[-1]
    ids = (values >= lowest).nonzero()[:, 0]
    best = values[ids].sort(descending=True, stable=True)
    pairs = zip(ids[best.indices].tolist()[:count], best.values.tolist()[:count], strict=True)
    return LogProbs(values, tuple(TokenLogprob(token, value) for token, value in pairs))
