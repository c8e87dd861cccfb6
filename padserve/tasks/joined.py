"""One result of an input whose parts were generated each by itself."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from padserve.tasks.generating import GeneratingResult, Output

ItemT = TypeVar("ItemT")


def joined(parts: Sequence[GeneratingResult], gaps: Sequence[str]) -> GeneratingResult:
    """The best outputs together, then the second best, and so on. ``gaps``: before each part, and behind the last."""
    return msgspec.structs.replace(
        parts[0],
        tokens=sum(part.tokens for part in parts),
        truncated=any(part.truncated for part in parts),
        outputs=[_output(outputs, gaps) for outputs in zip(*(part.outputs for part in parts), strict=True)],
    )


def _output(outputs: Sequence[Output], gaps: Sequence[str]) -> Output:
    """Scores of beams are not comparable between parts: there is none for several."""
    texts = [gap + output.text for gap, output in zip(gaps, outputs, strict=False)]
    return Output(
        text="".join(texts) + gaps[-1],
        finish_reason="length" if any(output.finish_reason == "length" for output in outputs) else "stop",
        token_ids=_chained([output.token_ids for output in outputs]),
        score=outputs[0].score if len(outputs) == 1 else None,
        logprobs=_chained([output.logprobs for output in outputs]),
    )


def _chained(lists: Sequence[list[ItemT] | None]) -> list[ItemT] | None:
    """None where there are none."""
    given = [each for each in lists if each is not None]
    return [item for each in given for item in each] if given else None
