"""Load a generating model and check that it gives the stock model's logits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from padserve.attention.cached import Span
from padserve.config.structs import ModelConfig
from padserve.core import GenerationSpec, ModelSpec, SpeculationSpec
from padserve.errors import ConfigError
from padserve.models.checkpoint import Checkpoint, draft_spec
from padserve.models.generators.base import Generator, Step
from padserve.models.generators.compiled_families import compile_generator
from padserve.models.generators.table import find_generator
from padserve.models.probe import WORDS
from padserve.text.multilingual import languages_of
from padserve.text.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
NO_LIMIT = 1_000_000
PROBE_TOKENS, PROBE_BLOCK = 24, 16
DEFAULTS = (
    "max_new_tokens",
    "max_length",
    "min_new_tokens",
    "min_length",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "num_return_sequences",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
)
"""Fields of a checkpoint's ``generation_config`` that a request that leaves them out gets."""


@dataclass(frozen=True, slots=True)
class LoadedGenerator:
    """``load_error``: deviation of the logits from the stock model's in float32, relative."""

    spec: ModelSpec
    tokenizer: Tokenizer
    generator: Generator
    load_error: float
    why: str


def load_generator(model: ModelConfig, checkpoint: Checkpoint, device: torch.device) -> LoadedGenerator:
    """Errors: `ConfigError`, also when the model's logits are not those of the stock model."""
    dtype = _dtype(model, device)
    tokenizer = _tokenizer(model, checkpoint)
    stock = _load_stock(model, checkpoint)
    config = stock.config
    given, tokens = _probe_tokens(tokenizer, config)
    want = _stock_logits(stock, given, tokens)
    source = given if config.is_encoder_decoder else None
    generator, error, why = _settle(model.name, stock.to(DTYPES[dtype]), source, tokens, want, TOLERANCE[dtype])
    limit = generator.window or NO_LIMIT
    draft = draft_spec(checkpoint, model, str(device), limit)
    defaults = _defaults(stock.generation_config)
    languages = languages_of(tokenizer, config, defaults)
    generation = GenerationSpec(
        bool(config.is_encoder_decoder),
        generator.window,
        defaults,
        languages=() if languages is None else languages.codes,
        needs_source=languages is not None and languages.needs_source,
        tasks=getattr(config, "task_specific_params", None) or {},
        chat_template=tokenizer.has_chat_template,
        speculation=_speculation(model, config),
    )
    spec = replace(draft, dtype=dtype, batching="packed", generation=generation)
    tokenizer = tokenizer.for_languages(languages)
    return LoadedGenerator(spec, tokenizer, generator, error, why)


def _settle(
    name: str, stock: Any, source: Sequence[int] | None, tokens: Sequence[int], want: Tensor, tolerance: float
) -> tuple[Generator, float, str]:
    """The first way whose logits are those of the stock model. Errors: `ConfigError`."""
    rejected: list[str] = []
    for kind, build in (("compiled", compile_generator), ("torch", find_generator(stock.config.model_type))):
        try:
            generator: Generator = build(stock)
            error = float((_logits(generator, source, tokens) - want).abs().max() / want.abs().max())
        except NotImplementedError as failure:
            rejected.append(f"{kind}: {failure}")
            continue
        if error <= tolerance:
            rejected.append(f"{kind}: its logits equal the stock model's within {error:.1e}")
            return generator, error, "; ".join(rejected)
        rejected.append(f"{kind} deviates by {error:.1e} from the stock model")
    raise ConfigError(f"models.{name}: {'; '.join(rejected)}")


def _dtype(model: ModelConfig, device: torch.device) -> str:
    if device.type != "cpu":
        raise ConfigError(f"models.{model.name}: generating models are served on CPUs only in this version")
    name = model.dtype or "float32"
    if name == "auto":
        name = "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"
    if name not in DTYPES:
        raise ConfigError(
            f"models.{model.name}.dtype: {name} is not served for generation; choose from {', '.join(DTYPES)}"
        )
    return name


def _tokenizer(model: ModelConfig, checkpoint: Checkpoint) -> Tokenizer:
    try:
        return Tokenizer.from_pretrained(checkpoint.path, checkpoint.revision, model.trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"models.{model.name}: cannot load the tokenizer of {checkpoint.path!r}: {error}") from error


def _load_stock(model: ModelConfig, checkpoint: Checkpoint) -> Any:
    import transformers

    auto = transformers.AutoModelForSeq2SeqLM if checkpoint.head == "seq2seq-lm" else transformers.AutoModelForCausalLM
    try:
        stock, info = auto.from_pretrained(
            checkpoint.path,
            revision=checkpoint.revision,
            dtype=torch.float32,
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise ConfigError(f"models.{model.name}: cannot load {checkpoint.path!r}: {error}") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:4])
        raise ConfigError(f"models.{model.name}: {checkpoint.path!r} has no weights for {missing}")
    return stock.eval()


def _probe_tokens(tokenizer: Tokenizer, config: Any) -> tuple[list[int], list[int]]:
    """A text for the encoder, and what the decoder is given."""
    text = tokenizer.tokens(" ".join(WORDS)).input_ids.tolist()[:PROBE_TOKENS]
    if not config.is_encoder_decoder:
        return text, text
    start = config.decoder_start_token_id
    return text, [int(start if start is not None else config.pad_token_id or 0), *text[: PROBE_TOKENS // 2]]


@torch.inference_mode()
def _stock_logits(stock: Any, given: Sequence[int], tokens: Sequence[int]) -> Tensor:
    ids = torch.tensor([list(tokens)])
    output = (
        stock(input_ids=torch.tensor([list(given)]), decoder_input_ids=ids)
        if stock.config.is_encoder_decoder
        else stock(input_ids=ids)
    )
    logits: Tensor = output.logits[0, -1].float()
    return logits


def _logits(generator: Generator, source: Sequence[int] | None, tokens: Sequence[int]) -> Tensor:
    """After the last token: all but it in one step, it in another."""
    count = len(tokens)
    blocks = range(1, count // PROBE_BLOCK + 2)
    store = generator.new_store(len(blocks) + 1, PROBE_BLOCK)
    sources = generator.encode([source]) if source is not None else []
    logits = torch.empty(0)
    for first, stop in ((0, count - 1), (count - 1, count)):
        if first == stop:
            continue
        step = Step(
            torch.tensor(tokens[first:stop]),
            torch.arange(first, stop),
            store,
            [Span(0, stop - first, first, blocks, PROBE_BLOCK)],
            torch.tensor([stop - first - 1]),
            tuple((one, stop - first) for one in sources),
        )
        logits = generator.step(step).logits[0]
    return logits


def _speculation(model: ModelConfig, config: Any) -> SpeculationSpec | None:
    """As configured. A source's ids are those of the output, but for Marian models of two vocabularies."""
    chosen = model.speculation
    if chosen is None:
        return None
    one_vocabulary = bool(getattr(config, "share_encoder_decoder_embeddings", True))
    return SpeculationSpec(chosen.method, chosen.max_draft_tokens, bool(config.is_encoder_decoder) and one_vocabulary)


def _defaults(config: Any) -> dict[str, Any]:
    found = {name: getattr(config, name, None) for name in DEFAULTS}
    return {name: value for name, value in found.items() if value is not None}
