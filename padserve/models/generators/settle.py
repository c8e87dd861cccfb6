"""How a generating model runs: the first way whose logits are those of the stock model run alone in float32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from padserve.attention.cached import Span
from padserve.errors import ConfigError
from padserve.models.agreement import Agreement, compare, sample_encodings
from padserve.models.generators.base import Generator, Step
from padserve.models.generators.causal import window_of
from padserve.models.generators.compiled_families import compile_generator
from padserve.models.generators.int8 import quantizer_of
from padserve.models.generators.table import find_generator
from padserve.text.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}
"""What the stock model is turned into; int8 is made from float32."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "int8": 0.0}
"""Of the logits; a reduced precision whose best tokens agree passes whatever its logits."""
FEW = 4
CALIBRATION_SEED, CHECK_SEED = 0, 1
NO_LIMIT = 1_000_000
LONGEST = 256
"""Tokens of a sample, at most."""
Build = Callable[[Any], Generator]


@dataclass(frozen=True, slots=True)
class Sample:
    """``source``: what an encoder is given, None for decoders. ``tokens``: what the decoder is."""

    source: tuple[int, ...] | None
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """``error``: greatest deviation of the logits from the stock model's in a few samples, relative. ``agreement``: in
    all of them, of a reduced precision."""

    generator: Generator
    error: float
    why: str
    agreement: Agreement | None


def settle(name: str, stock: Any, tokenizer: Tokenizer, dtype: str, block_size: int) -> Settled:
    """``stock``: in float32; its weights belong to the generator afterwards. ``block_size``: of the cache that it will
    have. Errors: `ConfigError`."""
    samples = make_samples(stock, tokenizer, CHECK_SEED)
    samples = samples[:FEW] if dtype == "float32" else samples
    wanted = [_stock_logits(stock, sample) for sample in samples]
    rejected: list[str] = []
    for kind, build in _ways(stock, tokenizer, dtype):
        try:
            generator = build(stock)
            got = [logits_of(generator, sample, block_size) for sample in samples]
        except NotImplementedError as failure:
            rejected.append(f"{kind}: {failure}")
            continue
        pairs = list(zip(wanted, got, strict=True))
        error = max(float((want - found).abs().max() / want.abs().max()) for want, found in pairs[:FEW])
        agreement = None if dtype == "float32" else compare("causal-lm", _arrays(wanted), _arrays(got))
        if error <= TOLERANCE[dtype] or (agreement is not None and agreement.passes):
            rejected.append(f"{kind}: its logits equal the stock model's within {error:.1e}")
            return Settled(generator, error, "; ".join(rejected), agreement)
        share = "" if agreement is None else f", its best tokens agree in {agreement.value:.3f} of {agreement.bound}"
        rejected.append(f"{kind} deviates by {error:.1e} from the stock model{share}")
    raise ConfigError(f"models.{name}: {'; '.join(rejected)}")


def _ways(stock: Any, tokenizer: Tokenizer, dtype: str) -> list[tuple[str, Build]]:
    if dtype == "int8":
        return [("compiled, int8 weights", lambda model: _compile_int8(model, tokenizer))]
    stock.to(DTYPES[dtype])
    return [("compiled", compile_generator), ("torch", find_generator(stock.config.model_type))]


def _compile_int8(stock: Any, tokenizer: Tokenizer) -> Generator:
    """In one thread: rounding is a long row of small operations, where threads wait for each other."""
    samples = [(sample.source or (), sample.tokens) for sample in make_samples(stock, tokenizer, CALIBRATION_SEED)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compile_generator(stock, quantizer_of(stock, samples))
    finally:
        torch.set_num_threads(threads)


def make_samples(stock: Any, tokenizer: Tokenizer, seed: int) -> list[Sample]:
    """Plain words and random tokens."""
    config = stock.config
    rows = int(stock.get_input_embeddings().weight.shape[0])
    longest = min(LONGEST, window_of(config) or LONGEST)
    found = []
    for encoding in sample_encodings(tokenizer, "causal-lm", NO_LIMIT, rows, seed):
        ids = tuple(int(token) for token in encoding.input_ids[:longest])
        if not config.is_encoder_decoder:
            found.append(Sample(None, ids))
            continue
        start = config.decoder_start_token_id
        start = int(start if start is not None else config.pad_token_id or 0)
        found.append(Sample(ids, (start, *ids[: max(len(ids) // 2, 1)])))
    return found


@torch.inference_mode()
def _stock_logits(stock: Any, sample: Sample) -> Tensor:
    ids = torch.tensor([sample.tokens])
    output = (
        stock(input_ids=ids)
        if sample.source is None
        else stock(input_ids=torch.tensor([sample.source]), decoder_input_ids=ids)
    )
    logits: Tensor = output.logits[0].float()
    return logits


def logits_of(generator: Generator, sample: Sample, block_size: int) -> Tensor:
    """After each token, ``[length, vocab]``: all but the last one in one step, it in another."""
    tokens, count = sample.tokens, len(sample.tokens)
    blocks = range(1, count // block_size + 2)
    store = generator.new_store(len(blocks) + 1, block_size)
    sources = [] if sample.source is None else generator.encode([sample.source])
    parts = []
    for first, stop in ((0, count - 1), (count - 1, count)):
        if first == stop:
            continue
        step = Step(
            torch.tensor(tokens[first:stop]),
            torch.arange(first, stop),
            store,
            [Span(0, stop - first, first, blocks, block_size)],
            torch.arange(stop - first),
            tuple((one, stop - first) for one in sources),
        )
        parts.append(generator.step(step).logits)
    return torch.cat(parts)


def _arrays(logits: Sequence[Tensor]) -> list[Any]:
    return [one.numpy() for one in logits]
