"""Requests for generated text, what transformers alone makes of them in float32, and when a server's tokens are those.

Imports torch only where a model is called.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.texts import texts

LIKELIEST = 64


@dataclass(frozen=True, slots=True)
class Passage:
    """A text, and how many tokens are to be made of it, exactly, by how many beams."""

    text: str
    new_tokens: int
    beams: int = 1

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True)
class Greedy:
    """The likeliest tokens, and for each place the log probabilities of the `LIKELIEST` ones. ``end``: how many of
    them come before the first end token, after which servers may go on differently."""

    tokens: tuple[int, ...]
    places: tuple[Mapping[int, float], ...]
    end: int


@dataclass(frozen=True, slots=True)
class Beams:
    """What a search ends with, best first, and the mean log probabilities of their tokens."""

    outputs: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]


def passages(mix: str, count: int, new_tokens: int, beams: int = 1) -> list[Passage]:
    return [Passage(text, new_tokens, beams) for text in texts(mix, count)]


def continued_alone(model: Path, given: Sequence[Passage]) -> list[Greedy]:
    """By a decoder, which may make end tokens like any others."""
    from transformers import AutoModelForCausalLM

    alone = AutoModelForCausalLM.from_pretrained(model).eval()
    ends = alone.generation_config.eos_token_id
    alone.generation_config.eos_token_id = None
    return [greedy(alone, model, one, ends) for one in given]


def translated_alone(model: Path, given: Sequence[Passage]) -> list[Greedy | Beams]:
    """By an encoder-decoder, which makes no end token before as many as are asked for."""
    from transformers import AutoModelForSeq2SeqLM

    alone = AutoModelForSeq2SeqLM.from_pretrained(model).eval()
    return [searched(alone, model, one) if one.beams > 1 else greedy(alone, model, one, ()) for one in given]


def greedy(alone: Any, model: Path, asked: Passage, ends: Sequence[int]) -> Greedy:
    output = generated(alone, model, asked, output_scores=True)
    count = len(output.scores)
    tokens = tuple(output.sequences[0, -count:].tolist())
    places = []
    for scores in output.scores:
        best = scores[0].log_softmax(-1).topk(LIKELIEST)
        places.append(dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
    return Greedy(tokens, tuple(places), next((at for at, token in enumerate(tokens) if token in ends), count))


def searched(alone: Any, model: Path, asked: Passage) -> Beams:
    options = {"num_beams": asked.beams, "num_return_sequences": asked.beams, "output_scores": True}
    output = generated(alone, model, asked, **options)
    outputs = tuple(tuple(one) for one in output.sequences[:, -asked.new_tokens :].tolist())
    return Beams(outputs, tuple(output.sequences_scores.tolist()))


def generated(alone: Any, model: Path, asked: Passage, **options: Any) -> Any:
    import torch
    from transformers import AutoTokenizer

    features = AutoTokenizer.from_pretrained(model)(asked.text, return_tensors="pt", return_token_type_ids=False)
    lengths = {"min_new_tokens": asked.new_tokens, "max_new_tokens": asked.new_tokens}
    with torch.inference_mode():
        return alone.generate(**features, **lengths, do_sample=False, return_dict_in_generate=True, **options)


def tokens_fault(found: Sequence[int], alone: Greedy | Beams, tolerance: float) -> str | None:
    """``tolerance``: of log probabilities. A token that is as likely as the likeliest passes; what comes after it can
    not be compared, since a text that goes on from another token is another."""
    wanted = len(alone.tokens if isinstance(alone, Greedy) else alone.outputs[0])
    if len(found) != wanted:
        return f"{len(found)} tokens, not {wanted}"
    return greedy_fault(found, alone, tolerance) if isinstance(alone, Greedy) else beams_fault(found, alone, tolerance)


def greedy_fault(found: Sequence[int], alone: Greedy, tolerance: float) -> str | None:
    for at in range(alone.end):
        token, best = found[at], alone.tokens[at]
        if token != best:
            lost = alone.places[at][best] - alone.places[at].get(token, float("-inf"))
            return None if lost <= tolerance else f"token {at} is {token}, alone {best}, {lost:.3f} likelier"
    return None


def beams_fault(found: Sequence[int], alone: Beams, tolerance: float) -> str | None:
    """Of two outputs of the search whose scores are equal within the tolerance either may be best."""
    for output, score in zip(alone.outputs, alone.scores, strict=True):
        if tuple(found) == output:
            lost = alone.scores[0] - score
            return None if lost <= tolerance else f"the output with a score lower by {lost:.3f}"
    same = next(at for at, pair in enumerate(zip(found, alone.outputs[0], strict=True)) if pair[0] != pair[1])
    return f"none of the search's outputs, the best one's from token {same} on"
