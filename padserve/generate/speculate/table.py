"""The drafters, by the name of their method."""

from padserve.core import GenerationOptions, Speculated
from padserve.generate.speculate.base import Speculation
from padserve.generate.speculate.ngram import NgramDrafter

DRAFTERS = {"ngram": NgramDrafter.of}


def make_speculation(options: GenerationOptions) -> Speculation | None:
    """For one row of a request; None where it asks for none."""
    chosen = options.speculation
    if chosen is None:
        return None
    longest = len(options.prompt) + options.max_new_tokens
    return Speculation(DRAFTERS[chosen.method](options, chosen), longest, Speculated(chosen.method))
