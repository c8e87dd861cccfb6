"""Run the entries of a batch so that a bad one fails alone."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from padserve.batching.entry import Entry, Outcome
from padserve.core import Batch, Output
from padserve.errors import InternalError, NonfiniteOutput, PadserveError
from padserve.models.pack import pack

logger = logging.getLogger(__name__)
Run = Callable[[Batch], list[Output]]


def execute(run: Run, entries: Sequence[Entry], packed: Batch | None = None) -> list[Outcome]:
    """One outcome an entry. A batch that raises is halved until the entry at fault is alone; the others are served.

    ``packed``: the entries' batch where it was made ahead.
    """
    try:
        outputs = run(packed or pack([entry.encoding for entry in entries]))
        if len(outputs) != len(entries):
            raise InternalError(f"the model returned {len(outputs)} outputs for {len(entries)} sequences")
    except Exception as error:
        if len(entries) > 1:
            middle = len(entries) // 2
            return execute(run, entries[:middle]) + execute(run, entries[middle:])
        return [_as_outcome(error, entries[0])]
    return [_finite(output) for output in outputs]


def _as_outcome(error: Exception, entry: Entry) -> PadserveError:
    if isinstance(error, PadserveError):
        return error
    logger.error("model %s failed on a sequence of %d tokens", entry.model, entry.tokens, exc_info=error)
    return InternalError(f"the model failed on this input ({type(error).__name__})")


def _finite(output: Output) -> Outcome:
    if np.isfinite(output).all():
        return output
    return NonfiniteOutput("the model returned NaN or infinity for this input")
