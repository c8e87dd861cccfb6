"""Sampling: transformers 5.24's warpers in its order, then a draw from a generator of the sequence's own."""

import numpy as np
import torch
from torch import Tensor

from padserve.core import GenerationOptions

LOWEST = float("-inf")


class Sampler:
    """Output ``index`` of a request. With a seed its draws are always the same; they never depend on other requests."""

    def __init__(self, options: GenerationOptions, index: int) -> None:
        self._options = options
        seed = None if options.seed is None else [options.seed, index]
        self._random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))

    def __call__(self, scores: Tensor) -> int:
        """``scores``: ``[vocab]`` float32. Draws one number whatever the scores are."""
        drawn = self._random.random()
        cumulative = warp(scores, self._options).softmax(-1).double().cumsum(-1)
        place = torch.searchsorted(
            cumulative, torch.tensor(drawn * float(cumulative[-1]), dtype=torch.float64), right=True
        )
        return min(int(place), len(cumulative) - 1)


def warp(scores: Tensor, options: GenerationOptions) -> Tensor:
    """Temperature, top_k, top_p, min_p, typical_p; ``[vocab]`` with -inf for what is left out. One token stays."""
    if options.temperature != 1.0:
        scores = scores / options.temperature
    if 0 < options.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(options.top_k).values[-1], LOWEST)
    if options.top_p < 1.0:
        ordered, order = scores.sort(descending=False)
        left_out = ordered.softmax(-1).cumsum(-1) <= 1 - options.top_p
        left_out[-1] = False
        scores = scores.masked_fill(left_out.scatter(0, order, left_out), LOWEST)
    if options.min_p > 0.0:
        likely = scores.softmax(-1)
        left_out = likely < options.min_p * likely.max()
        left_out[scores.argmax()] = False
        scores = scores.masked_fill(left_out, LOWEST)
    if options.typical_p < 1.0:
        scores = _typical(scores, options.typical_p)
    return scores


def _typical(scores: Tensor, mass: float) -> Tensor:
    """Meister et al. 2022: the tokens whose information is nearest to the expected one, up to a probability mass."""
    logprobs = scores.log_softmax(-1)
    likely = logprobs.exp()
    entropy = -(logprobs * likely).nansum()
    distance = (-logprobs - entropy).abs()
    ordered, order = distance.sort()
    last = int((scores[order].softmax(-1).cumsum(-1) < mass).sum().clamp(max=len(scores) - 1))
    left_out = distance > ordered[last]
    return scores.masked_fill(left_out, LOWEST)
