"""Warm a model up and find the batch size beyond which its device gains nothing."""

import time
from collections.abc import Sequence

import numpy as np

from padserve.core import Encoding
from padserve.models.loaded import LoadedModel
from padserve.models.pack import pack

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
ENOUGH = 0.9
BUDGET_S = 1.0
REPEATS = 3


def measure_target_tokens(model: LoadedModel, length: int = 32) -> int:
    """The smallest batch, in tokens, that runs within 10 % of the best rate measured; larger ones only add latency."""
    length = min(length, model.spec.max_length)
    limit = model.spec.max_batch_tokens
    model.run(pack(_sequences(model, length, length)))
    rates: dict[int, float] = {}
    started = time.perf_counter()
    for size in [size for size in SIZES if size <= limit] or [limit]:
        rates[size] = size / _seconds(model, _sequences(model, size, length))
        if time.perf_counter() - started > BUDGET_S or _levelled(list(rates.values())):
            break
    best = max(rates.values())
    return min(size for size, rate in rates.items() if rate >= ENOUGH * best)


def _levelled(rates: Sequence[float]) -> bool:
    return len(rates) >= 3 and max(rates[-2:]) < rates[-3]


def _sequences(model: LoadedModel, tokens: int, length: int) -> list[Encoding]:
    ids = np.arange(length, dtype=np.int64) % max(model.spec.vocab_size - 1, 1)
    encoding = Encoding(input_ids=ids, gather=(0,) if model.spec.head == "masked-lm" else ())
    return [encoding] * max(tokens // length, 1)


def _seconds(model: LoadedModel, encodings: list[Encoding]) -> float:
    """The least of a few runs, one where a run is long: what else runs on the machine only adds."""
    batch = pack(encodings)
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        model.run(batch)
        taken.append(time.perf_counter() - started)
        if sum(taken) > BUDGET_S / 10:
            break
    return min(taken)
