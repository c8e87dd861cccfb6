"""From a request's options to the search that carries them out."""

from collections.abc import Callable, Sequence

from padserve.core import GenerationOptions
from padserve.generate.choose import Sampler
from padserve.generate.rules import OptionRules
from padserve.generate.search.base import Search, StopsText
from padserve.generate.search.beam import BeamOptions, BeamSearch
from padserve.generate.search.plain import PlainSearch
from padserve.generate.sequence import Limits, Row

Decode = Callable[[Sequence[int]], str]


def make_search(options: GenerationOptions, decode: Decode) -> Callable[[Row], Search]:
    """``decode``: generated tokens to text, for stop strings."""
    limits = Limits(options.max_new_tokens, options.end_ids | options.stop_ids)
    rules, stops = OptionRules.of(options), _stops_text(options.stop, decode)

    def start(first: Row) -> Search:
        if options.num_beams > 1:
            beams = BeamOptions(
                options.num_beams,
                options.num_return_sequences,
                options.length_penalty,
                options.early_stopping,
                options.patience,
                options.num_beam_groups,
                options.diversity_penalty,
            )
            return BeamSearch(first, limits, rules, beams, options.logprobs, stops)
        indices = range(options.num_return_sequences)
        samples = options.do_sample and options.temperature > 0
        chooses = [Sampler(options, index) if samples else None for index in indices]
        return PlainSearch(first, limits, rules, chooses, options.logprobs, stops)

    return start


def _stops_text(stop: Sequence[str], decode: Decode) -> StopsText | None:
    if not stop:
        return None

    def found(generated: Sequence[int]) -> bool:
        text = decode(generated)
        return any(string in text for string in stop)

    return found
