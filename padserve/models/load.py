"""Load a model and settle how it runs: packed and fused, packed stock, padded, or by equal lengths.

Each way is tried in that order and the first that equals the stock model run alone is kept (see `probe`). Reduced
precisions are measured against float32 too (see `agreement`); int8 below its bound is refused.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from padserve.attention.packed import register
from padserve.config.structs import ModelConfig
from padserve.core import Head, ModelSpec
from padserve.errors import ConfigError
from padserve.models import heads
from padserve.models.agreement import Samples, make_samples, sample_encodings
from padserve.models.checkpoint import Checkpoint, default_dtype, draft_spec, max_length, read_checkpoint
from padserve.models.compiled import CompiledRunner, compile_int8
from padserve.models.families.base import Family, PackedEncoder
from padserve.models.families.table import find_family
from padserve.models.fastest import load_fastest
from padserve.models.int8 import quantize_encoder
from padserve.models.linear import pack_linears, restore
from padserve.models.loaded import LoadedModel
from padserve.models.pack import pack
from padserve.models.probe import FLOAT32_TOLERANCE, Probe, make_probe
from padserve.models.runners import EqualLengthRunner, PackedRunner, PaddedRunner, Runner, packed_inputs
from padserve.models.stock import StockModel, load_stock
from padserve.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
COMPILED, FUSED = "packed, compiled", "packed, fused"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.float32}
"""What the stock model is loaded as; int8 is made from float32."""
CALIBRATION_SEED, CHECK_SEED = 0, 1


@dataclass(frozen=True, slots=True)
class _Loading:
    """What the steps of one load share."""

    model: ModelConfig
    checkpoint: Checkpoint
    family: Family | None
    stock: StockModel
    device: torch.device
    dtype: str

    @property
    def head(self) -> Head:
        return self.checkpoint.head

    @property
    def alone(self) -> PaddedRunner:
        """The stock model in float32 on the CPU, where it was loaded."""
        return PaddedRunner(self.stock.whole(self.head), _pad_token_id(self.checkpoint), torch.device("cpu"))


def load_model(model: ModelConfig, device: torch.device) -> LoadedModel:
    """Load a model that encodes onto ``device``.

    Errors: `ConfigError`, also when no allowed way of running passes the check.
    """
    if model.speculation is not None:
        raise ConfigError(f"models.{model.name}.speculation: only models that generate text speculate")
    return load_fastest(model, device, _load) if model.dtype == "auto" else _load(model, device)


def _load(model: ModelConfig, device: torch.device) -> LoadedModel:
    checkpoint = read_checkpoint(model)
    dtype = _dtype(model, device)
    stock = load_stock(checkpoint, model.trust_remote_code, model.name)
    loading = _Loading(model, checkpoint, find_family(checkpoint.config.model_type), stock, device, dtype)
    tokenizer = _tokenizer(loading)
    limit = max_length(checkpoint.config, stock.own_max_length or tokenizer.model_max_length, _offset(stock.model))
    probe = _probe(loading, tokenizer, limit)
    samples = None if dtype == "float32" else _samples(loading, tokenizer, limit, CHECK_SEED)
    if dtype == "int8" and samples is not None:
        runner, error, why = _settle_int8(loading, tokenizer, limit, probe, samples)
    else:
        runner, error, why = _settle(loading, probe)
    agreement = None if samples is None else samples.agreement(runner)
    return LoadedModel(_spec(loading, runner, limit), tokenizer, runner, error, why, agreement)


def _dtype(model: ModelConfig, device: torch.device) -> str:
    name = default_dtype(model, str(device))
    only = {"int8": "cpu", "float16": "cuda"}.get(name, device.type)
    if name not in DTYPES or only != device.type:
        choices = [dtype for dtype in DTYPES if dtype != ("int8" if device.type == "cuda" else "float16")]
        raise ConfigError(
            f"models.{model.name}.dtype: {name} is not served on {device.type}; choose from {', '.join(choices)}, auto"
        )
    return name


def _tokenizer(loading: _Loading) -> Tokenizer:
    path, revision = loading.checkpoint.path, loading.checkpoint.revision
    try:
        own = loading.stock.tokenizer
        given = Tokenizer.from_pretrained(path, revision, loading.model.trust_remote_code)
        tokenizer = given if own is None else Tokenizer(own)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"models.{loading.model.name}: cannot load the tokenizer of {path!r}: {error}") from error
    if tokenizer.vocab_size <= len(tokenizer.all_special_ids):  # what transformers makes where it finds no files
        raise ConfigError(f"models.{loading.model.name}: cannot load the tokenizer of {path!r}: it has no vocabulary")
    return tokenizer.for_model(_takes_token_types(loading.stock.model))


def _samples(loading: _Loading, tokenizer: Tokenizer, limit: int, seed: int) -> Samples:
    return make_samples(tokenizer, loading.head, limit, _embedding_rows(loading), loading.alone, seed)


def _embedding_rows(loading: _Loading) -> int:
    return int(loading.stock.model.get_input_embeddings().weight.shape[0])


def _settle_int8(
    loading: _Loading, tokenizer: Tokenizer, limit: int, probe: Probe, samples: Samples
) -> tuple[Runner, float, str]:
    """Errors: `ConfigError` where there is no int8 encoder for the checkpoint, and where it is too far from float32."""
    name, family, base = loading.model.name, loading.family, loading.stock.base
    fused = None if family is None else family.fused_encoder(base)
    if family is None or fused is None or loading.model.batching == "padded":
        architecture = loading.checkpoint.architecture
        raise ConfigError(
            f"models.{name}.dtype: int8 runs packed and fused encoders only, and {architecture} is none here"
        )
    offset = family.position_offset(loading.checkpoint.config)
    calibration = sample_encodings(tokenizer, loading.head, limit, _embedding_rows(loading), CALIBRATION_SEED)
    with torch.inference_mode():
        inputs = fused.trace(*packed_inputs(pack(calibration), offset, loading.device))
        quantized = quantize_encoder(fused, family.layers(base) or [], inputs)
    compiled, head = compile_int8(quantized, family.tables(base)), _packed_head(loading, family)
    kind = f"{FUSED if compiled is None else COMPILED}, int8"
    runner = (
        PackedRunner(kind, quantized, head, offset, loading.device)
        if compiled is None
        else CompiledRunner(kind, compiled, head, offset)
    )
    agreement = samples.agreement(runner)
    found = f"{agreement.measure} with float32 is {agreement.value:.5f}, {agreement.bound} is needed"
    if not agreement.passes:
        raise ConfigError(f"models.{name}.dtype: int8 does not suit this checkpoint: {found}; use float32 or bfloat16")
    error = probe.error(runner)
    family.release(base)
    return runner, error, f"{kind}: {found}"


def _settle(loading: _Loading, probe: Probe) -> tuple[Runner, float, str]:
    """The first way that passes; the stock model is moved to its device and dtype on the way."""
    loading.stock.model.to(device=loading.device, dtype=DTYPES[loading.dtype])
    tolerance = _tolerance(loading, probe)
    rejected = []
    for kind, build in _ways(loading):
        try:
            runner = build()
            error = probe.error(runner)
        except NotImplementedError as failure:
            rejected.append(f"{kind}: {failure}")
            continue
        except Exception as failure:
            level = logging.WARNING if kind == COMPILED else logging.DEBUG
            logger.log(level, "%s: %s does not run: %s", loading.model.name, kind, failure, exc_info=True)
            rejected.append(f"{kind} does not run ({type(failure).__name__})")
            continue
        if error <= tolerance:
            if kind in (COMPILED, FUSED) and loading.family is not None:
                loading.family.release(loading.stock.base)
            else:
                error = _pack_weights(loading.stock.model, runner, probe, tolerance, error)
            rejected.append(f"{runner.kind} equals the stock model run alone within {error:.1e}")
            return runner, error, "; ".join(rejected)
        rejected.append(f"{kind} deviates by {error:.1e}")
    raise ConfigError(
        f"models.{loading.model.name}: no way of running {loading.checkpoint.architecture} with batching = "
        f"{loading.model.batching!r} gives the stock model's results: {'; '.join(rejected)}"
    )


def _probe(loading: _Loading, tokenizer: Tokenizer, limit: int) -> Probe:
    try:
        return make_probe(tokenizer, loading.head, limit, _window(loading.checkpoint.config), loading.alone)
    except Exception as failure:
        raise ConfigError(
            f"models.{loading.model.name}: {loading.checkpoint.architecture} does not run on a plain sentence "
            f"({type(failure).__name__}: {failure})"
        ) from failure


def _tolerance(loading: _Loading, probe: Probe) -> float:
    """In a reduced precision: a few times what the stock model itself, alone, loses by it."""
    if loading.dtype == "float32":
        return FLOAT32_TOLERANCE
    return 0.02 + 3 * probe.error_alone(_padded(loading, PaddedRunner))


def _pack_weights(model: Any, runner: Runner, probe: Probe, tolerance: float, error: float) -> float:
    """Pack the stock model's weights, unless it reads them itself or deviates then. Returns the deviation."""
    replaced = pack_linears(model)
    try:
        packed_error = probe.error(runner)
    except Exception as failure:
        logger.debug("the weights stay as they are: %s", failure)
        packed_error = float("inf")
    if packed_error <= tolerance:
        return packed_error
    restore(replaced)
    return error


def _ways(loading: _Loading) -> Iterator[tuple[str, Callable[[], Runner]]]:
    if loading.model.batching in ("auto", "packed") and loading.family is not None:
        yield COMPILED, lambda: _compiled(loading)
        yield FUSED, lambda: _packed(loading, FUSED)
        yield "packed", lambda: _packed(loading, "packed")
    if loading.model.batching in ("auto", "padded"):
        yield "padded", lambda: _padded(loading, PaddedRunner)
        yield "equal-length", lambda: _padded(loading, EqualLengthRunner)


def _padded(loading: _Loading, way: type[PaddedRunner]) -> Runner:
    model = loading.stock.model
    if model.config._attn_implementation not in ("sdpa", "eager"):
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return way(loading.stock.whole(loading.head), _pad_token_id(loading.checkpoint), loading.device)


def _packed(loading: _Loading, kind: str) -> Runner:
    assert loading.family is not None
    family, config = loading.family, loading.checkpoint.config
    encoder, head = _encoder(loading, family, kind), _packed_head(loading, family)
    return PackedRunner(kind, encoder, head, family.position_offset(config), loading.device)


def _compiled(loading: _Loading) -> Runner:
    assert loading.family is not None
    family, config = loading.family, loading.checkpoint.config
    encoder, head = family.compiled_encoder(loading.stock.base), _packed_head(loading, family)
    return CompiledRunner(COMPILED, encoder, head, family.position_offset(config))


def _encoder(loading: _Loading, family: Family, kind: str) -> PackedEncoder:
    """Errors: `NotImplementedError` where the family has none of this kind."""
    base = loading.stock.base
    if kind == FUSED:
        fused = family.fused_encoder(base)
        if fused is None:
            raise NotImplementedError("the family has no fused encoder for this checkpoint")
        return fused
    loading.stock.model.set_attn_implementation(register())
    return family.stock_encoder(base)


def _packed_head(loading: _Loading, family: Family) -> heads.HeadRunner:
    if loading.stock.head is not None:
        return loading.stock.head
    function = heads.head_over_hidden(loading.stock.model)
    if loading.head == "masked-lm":
        return heads.masked_lm_head(function)
    if loading.head == "token-classification":
        return heads.token_head(function)
    return heads.sequence_head(function, family.first_token_head)


def _spec(loading: _Loading, runner: Runner, limit: int) -> ModelSpec:
    draft = draft_spec(loading.checkpoint, loading.model, str(loading.device), limit)
    batching: Literal["packed", "padded"] = "padded" if isinstance(runner, PaddedRunner) else "packed"
    return replace(draft, batching=batching, embedding=loading.stock.embedding)


def _offset(model: Any) -> int:
    """Rows of the position table that no token uses: RoBERTa and its kin start at padding_idx + 1."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


def _window(config: Any) -> int:
    """How far apart two tokens can be before something changes: a local attention's reach, or log buckets."""
    reaches = [getattr(config, name, None) for name in ("sliding_window", "position_buckets")]
    return max([16, *(reach for reach in reaches if isinstance(reach, int))])


def _pad_token_id(checkpoint: Checkpoint) -> int:
    pad = getattr(checkpoint.config, "pad_token_id", None)
    return pad if isinstance(pad, int) else 0


def _takes_token_types(model: Any) -> bool:
    return "token_type_ids" in inspect.signature(model.forward).parameters
