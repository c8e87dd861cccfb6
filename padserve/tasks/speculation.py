"""How a request's tokens are guessed ahead: as it says, else as the model's configuration does."""

from dataclasses import replace
from typing import Protocol

from padserve.core import GenerationOptions, GenerationSpec, SpeculationSpec
from padserve.errors import InvalidField

AUTO, OFF = "auto", "off"


class Asks(Protocol):
    @property
    def speculation(self) -> str: ...

    @property
    def max_draft_tokens(self) -> int | None: ...


def speculation_of(request: Asks, options: GenerationOptions, generation: GenerationSpec) -> SpeculationSpec | None:
    """None for none. Errors: `InvalidField` for a method that is not configured, or cannot serve this request."""
    configured, name = generation.speculation, request.speculation
    if name not in (AUTO, OFF, configured and configured.method):
        known = ", ".join((AUTO, OFF, *([configured.method] if configured else [])))
        raise InvalidField(
            f"speculation: {name!r} is not configured for this model; choose from {known}", field="speculation"
        )
    if configured is None or name == OFF:
        return None
    if not _is_greedy(options):
        if name == AUTO:
            return None
        raise InvalidField(
            f"{name} works with greedy search of one output in this version: leave num_beams at 1 and do_sample false, "
            f"or give speculation {OFF!r}",
            field="speculation",
        )
    return replace(configured, max_draft_tokens=request.max_draft_tokens or configured.max_draft_tokens)


def _is_greedy(options: GenerationOptions) -> bool:
    samples = options.do_sample and options.temperature > 0
    return options.num_beams == 1 and options.num_return_sequences == 1 and not samples
