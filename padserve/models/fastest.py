"""``dtype = "auto"``: the fastest precision that agrees with float32 on this processor, by measurement."""

import logging
import time
from collections.abc import Callable

import msgspec
import numpy as np
import torch

from padserve.config.structs import ModelConfig
from padserve.core import Encoding
from padserve.errors import ConfigError
from padserve.models.loaded import LoadedModel
from padserve.models.pack import pack

logger = logging.getLogger(__name__)
CANDIDATES = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("bfloat16", "float16", "float32")}
LENGTHS = (12, 20, 32, 48, 96)
REPEATS = 9


def load_fastest(
    model: ModelConfig, device: torch.device, load: Callable[[ModelConfig, torch.device], LoadedModel]
) -> LoadedModel:
    """Load ``model`` in each precision of the device, one after another, and keep the fastest that agrees with float32.

    ``load`` loads it in the one that its ``dtype`` names. Errors: `ConfigError` when it loads in none.
    """
    best: tuple[float, LoadedModel] | None = None
    refused: ConfigError | None = None
    for dtype in CANDIDATES["cuda" if device.type == "cuda" else "cpu"]:
        try:
            loaded = load(msgspec.structs.replace(model, dtype=dtype), device)
        except ConfigError as error:
            logger.info("model %s, dtype auto: %s is left out: %s", model.name, dtype, error)
            refused = refused or error
            continue
        seconds = run_seconds(loaded)
        agrees = loaded.agreement is None or loaded.agreement.passes
        logger.info("model %s, dtype auto: %s takes %.1f ms, agrees: %s", model.name, dtype, 1000 * seconds, agrees)
        if agrees and (best is None or seconds < best[0]):
            best = seconds, loaded
    if best is None:
        raise refused or ConfigError(f"models.{model.name}.dtype: no precision agrees with float32")
    return best[1]


def run_seconds(loaded: LoadedModel) -> float:
    """The least time of a batch of mixed lengths; what else runs on the machine only adds to it."""
    ids = np.arange(max(LENGTHS), dtype=np.int64) % max(loaded.spec.vocab_size - 1, 1)
    gather = (0,) if loaded.spec.head == "masked-lm" else ()
    lengths = [min(length, loaded.spec.max_length) for length in LENGTHS]
    batch = pack([Encoding(input_ids=ids[:length], gather=gather) for length in lengths])
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        loaded.run(batch)
        taken.append(time.perf_counter() - started)
    return min(taken)
