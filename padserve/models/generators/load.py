"""Load a generating model and check that it gives the stock model's logits."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch

from padserve.config.structs import ModelConfig
from padserve.core import GenerationSpec, ModelSpec, SpeculationSpec
from padserve.errors import ConfigError
from padserve.models.agreement import Agreement
from padserve.models.checkpoint import Checkpoint, checkpoint_tokenizer, draft_spec
from padserve.models.generators.base import Generator
from padserve.models.generators.settle import DTYPES, settle
from padserve.text.multilingual import languages_of
from padserve.text.tokenizer import Tokenizer

NO_LIMIT = 1_000_000
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
    """``load_error``: deviation of the logits from the stock model's in float32, relative. ``agreement``: with it, of a
    reduced precision."""

    spec: ModelSpec
    tokenizer: Tokenizer
    generator: Generator
    load_error: float
    why: str
    agreement: Agreement | None = None


def load_generator(model: ModelConfig, checkpoint: Checkpoint, device: torch.device) -> LoadedGenerator:
    """Errors: `ConfigError`, also when the model's logits are not those of the stock model."""
    dtype = _dtype(model, device)
    tokenizer = _tokenizer(model, checkpoint)
    stock = _load_stock(model, checkpoint)
    config = stock.config
    settled = settle(model.name, stock, tokenizer, dtype, model.cache.block_size)
    generator = settled.generator
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
        configured=_configured(model),
    )
    spec = replace(draft, dtype=dtype, batching="packed", generation=generation)
    tokenizer = tokenizer.for_languages(languages)
    return LoadedGenerator(spec, tokenizer, generator, settled.error, settled.why, settled.agreement)


def _configured(model: ModelConfig) -> dict[str, Any]:
    """The table ``generation`` of the model's configuration."""
    return {key: value for key, value in msgspec.structs.asdict(model.generation).items() if value is not None}


def _speculation(model: ModelConfig, config: Any) -> SpeculationSpec | None:
    """As configured. A source's ids are those of the output, but for Marian models of two vocabularies."""
    chosen = model.speculation
    if chosen is None:
        return None
    one_vocabulary = bool(getattr(config, "share_encoder_decoder_embeddings", True))
    return SpeculationSpec(chosen.method, chosen.max_draft_tokens, bool(config.is_encoder_decoder) and one_vocabulary)


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
        return checkpoint_tokenizer(model, checkpoint)
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
            **checkpoint.gguf,
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise ConfigError(f"models.{model.name}: cannot load {checkpoint.path!r}: {error}") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:4])
        raise ConfigError(f"models.{model.name}: {checkpoint.path!r} has no weights for {missing}")
    return stock.eval()


def _defaults(config: Any) -> dict[str, Any]:
    found = {name: getattr(config, name, None) for name in DEFAULTS}
    return {name: value for name, value in found.items() if value is not None}
