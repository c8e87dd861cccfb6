"""A loaded model: its facts, its tokenizer, and the one way of running it that passed the check."""

from dataclasses import dataclass

from padserve.core import Batch, ModelSpec, Output
from padserve.models.agreement import Agreement
from padserve.models.runners import Runner
from padserve.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """``load_error``: deviation from the stock model in float32 measured at load, relative; ``why``: why this way.

    ``agreement``: of a reduced precision with float32, None where float32 runs.
    """

    spec: ModelSpec
    tokenizer: Tokenizer
    runner: Runner
    load_error: float
    why: str
    agreement: Agreement | None = None

    def run(self, batch: Batch) -> list[Output]:
        """One forward pass: one float32 array a sequence, see `padserve.core.Output`."""
        return self.runner.run(batch)
