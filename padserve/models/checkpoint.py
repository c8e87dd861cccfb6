"""What a checkpoint is, read from its configuration alone: head, family, limits. No weights are loaded."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padserve.config.structs import ModelConfig
from padserve.core import Activation, EmbeddingSpec, Head, ModelSpec
from padserve.errors import ConfigError
from padserve.models.generators.table import GENERATORS, find_generator
from padserve.starter.table import resolve_source
from padserve.text.tokenizer import Tokenizer

HEAD_SUFFIXES: dict[str, Head] = {
    "ForMaskedLM": "masked-lm",
    "ForPreTraining": "masked-lm",
    "WithLMHeadModel": "masked-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "Model": "embedding",
}
GENERATING_SUFFIXES = ("ForConditionalGeneration", "MTModel", "LMHeadModel", "ForCausalLM")
TASK_HEADS: dict[str, Head] = {
    "fill-mask": "masked-lm",
    "classify": "sequence-classification",
    "token-classify": "token-classification",
    "embed": "embedding",
    "similarity": "embedding",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A source, resolved, and what its configuration says. ``config`` is the transformers configuration."""

    path: str
    revision: str | None
    config: Any
    architecture: str
    head: Head
    sentence_modules: bool  # a sentence-transformers folder
    sentence_max_length: int = 0  # what that folder says; 0: nothing
    gguf_file: str | None = None  # of the folder, where the checkpoint is a GGUF file

    @property
    def gguf(self) -> dict[str, str]:
        """What transformers' loaders are told of it."""
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels by class id. JSON keys are strings and come in any order; transformers has made them ints."""
        if self.head not in ("sequence-classification", "token-classification"):
            return ()
        id2label = self.config.id2label
        return tuple(str(id2label[index]) for index in sorted(id2label))


def read_checkpoint(model: ModelConfig) -> Checkpoint:
    """Read the configuration of a model's source. Errors: `ConfigError` that names the model and what is wrong."""
    path, revision = locate(model), model.revision or None
    path, gguf_file = _gguf(model, path)
    config = _read_config(model, path, revision, gguf_file)
    architecture = _architecture(config, gguf_file)
    sentence_modules = _find_file(path, revision, "modules.json") is not None
    head = _head(model, architecture, sentence_modules, config)
    sentence_max_length = _sentence_max_length(path, revision) if sentence_modules else 0
    return Checkpoint(path, revision, config, architecture, head, sentence_modules, sentence_max_length, gguf_file)


def _architecture(config: Any, gguf_file: str | None) -> str:
    """GGUF files hold decoders with their heads and do not say so."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if gguf_file is not None and config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])
    return str((config.architectures or [type(config).__name__.replace("Config", "Model")])[0])


def checkpoint_tokenizer(model: ModelConfig, checkpoint: Checkpoint) -> Tokenizer:
    """Errors: those of transformers."""
    path, revision = checkpoint.path, checkpoint.revision
    return Tokenizer.from_pretrained(path, revision, model.trust_remote_code, **checkpoint.gguf)


def _gguf(model: ModelConfig, path: str) -> tuple[str, str | None]:
    """The folder and the file of a GGUF checkpoint: a path to the file, or a folder that holds just one and no
    configuration. Errors: `ConfigError` where what reads such files is missing.
    """
    given = Path(path).expanduser()
    found = [given] if given.suffix == ".gguf" else sorted(given.glob("*.gguf")) if given.is_dir() else []
    if not found or (given.is_dir() and (given / "config.json").exists()):
        return path, None
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ConfigError(f"models.{model.name}: {path!r} holds several GGUF files; name one of {names}")
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"models.{model.name}: GGUF files need the package {package}: pip install 'padserve[gguf]'"
            )
    return str(found[0].parent), found[0].name


def locate(model: ModelConfig) -> str:
    """The folder or hub id of a model. Errors: `ConfigError` for a folder or a starter model that does not exist."""
    path = resolve_source(model.source)
    if path.endswith(".gguf") and Path(path).expanduser().is_file():
        return path
    if _looks_local(path) and not Path(path).is_dir():
        raise ConfigError(f"models.{model.name}: no folder {path!r}")
    return path


def _read_config(model: ModelConfig, path: str, revision: str | None, gguf_file: str | None) -> Any:
    from transformers import AutoConfig

    extra = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        return AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=model.trust_remote_code, **extra)
    except Exception as error:  # readers of damaged files raise what they like
        raise ConfigError(f"models.{model.name}: cannot read the configuration of {path!r}: {error}") from error


def _looks_local(path: str) -> bool:
    return path.startswith(("/", ".", "~")) or path.count("/") > 1


def _find_file(path: str, revision: str | None, name: str) -> Path | None:
    """A file of a checkpoint, local or on the hub; None where it has none."""
    if Path(path).is_dir():
        local = Path(path) / name
        return local if local.is_file() else None
    from transformers.utils import cached_file

    found = cached_file(path, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _sentence_max_length(path: str, revision: str | None) -> int:
    file = _find_file(path, revision, "sentence_bert_config.json")
    length = json.loads(file.read_text(encoding="utf-8")).get("max_seq_length") if file else None
    return length if isinstance(length, int) else 0


def _head(model: ModelConfig, architecture: str, sentence_modules: bool, config: Any) -> Head:
    wanted = {TASK_HEADS[task] for task in model.tasks if task in TASK_HEADS}
    if len(wanted) > 1:
        raise ConfigError(
            f"models.{model.name}: tasks {', '.join(model.tasks)} need different heads ({', '.join(sorted(wanted))}); "
            "list the source twice, under two names"
        )
    natural = _natural_head(architecture)
    if sentence_modules and natural != "sequence-classification":
        natural = "embedding"
    embeds = sentence_modules or wanted == {"embedding"}
    if _generates(architecture, natural, config, embeds):
        return _generating_head(model, architecture, config, wanted)
    head = next(iter(wanted), natural)
    if head is None:
        known = ", ".join(f"…{suffix}" for suffix in HEAD_SUFFIXES)
        raise ConfigError(
            f"models.{model.name}: no task is known for {architecture}; served are {known}. "
            'Set tasks = ["embed"] to embed with its encoder'
        )
    if head not in ("embedding", natural):
        raise ConfigError(f"models.{model.name}: {architecture} has no {head} head")
    if head == "embedding" and natural == "sequence-classification" and config.num_labels == 1 and not sentence_modules:
        raise ConfigError(
            f"models.{model.name}: {architecture} with one label is a cross-encoder; its encoder makes no "
            'embeddings of use. Serve it with tasks = ["rerank"]'
        )
    return head


def _generating_head(model: ModelConfig, architecture: str, config: Any, wanted: set[Head]) -> Head:
    """Errors: `ConfigError` for encoder tasks, for a decoder without its head, and for a family that is not served."""
    if wanted:
        raise ConfigError(f"models.{model.name}: {architecture} has no {next(iter(wanted))} head; it generates text")
    if not architecture.endswith(GENERATING_SUFFIXES):
        raise ConfigError(f"models.{model.name}: {architecture} generates text, but has no language-modelling head")
    if find_generator(config.model_type) is None:
        served = ", ".join(GENERATORS)
        raise ConfigError(
            f"models.{model.name}: {config.model_type} generates text; of such models are served: {served}"
        )
    return "seq2seq-lm" if config.is_encoder_decoder else "causal-lm"


def _generates(architecture: str, natural: Head | None, config: Any, embeds: bool) -> bool:
    """Whether a model is made to generate.

    Classifiers and encoders of encoder-decoder models are not, nor is a decoder whose hidden states are to be pooled.
    """
    if config.is_encoder_decoder:
        classifies = natural in ("sequence-classification", "token-classification")
        return not classifies and not (embeds and architecture.endswith("EncoderModel"))
    decodes = architecture.endswith(("ForCausalLM", "LMHeadModel")) and natural != "masked-lm"
    return decodes and not embeds


def _natural_head(architecture: str) -> Head | None:
    for suffix, head in HEAD_SUFFIXES.items():
        if architecture.endswith(suffix):
            return head
    return None


def rerank_activation(config: Any) -> Activation | None:
    """The activation that a cross-encoder's configuration asks for (sentence-transformers keeps a class path)."""
    asked = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    asked = asked or getattr(config, "sbert_ce_default_activation_function", None)
    names: dict[str, Activation] = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}
    return names.get(str(asked).rpartition(".")[2]) if asked else None


def max_length(config: Any, tokenizer_max: int, position_offset: int) -> int:
    """Tokens that an input may have, special ones included: the least that tokenizer and position table allow."""
    positions = getattr(config, "max_position_embeddings", None)
    limits = [tokenizer_max] if 0 < tokenizer_max < 10**9 else []
    if isinstance(positions, int) and positions > 0:
        limits.append(positions - position_offset)
    return min(limits) if limits else 512


def default_dtype(model: ModelConfig, device: str) -> str:
    return model.dtype or ("bfloat16" if device.startswith("cuda") else "float32")


def draft_spec(checkpoint: Checkpoint, model: ModelConfig, device: str, limit: int) -> ModelSpec:
    """The spec as far as the configuration tells; loading settles how it runs and what its embeddings are.

    ``limit``: tokens that an input may have.
    """
    config = checkpoint.config
    embedding = EmbeddingSpec(int(config.hidden_size), "mean") if checkpoint.head == "embedding" else None
    return ModelSpec(
        name=model.name,
        source=model.source,
        head=checkpoint.head,
        tasks=(),
        architecture=checkpoint.architecture,
        family=config.model_type,
        dtype=default_dtype(model, device),
        device=device,
        batching="padded" if model.batching == "padded" else "packed",
        max_length=limit,
        max_batch_tokens=max(model.max_batch_tokens, limit),
        vocab_size=int(getattr(config, "vocab_size", 0)),
        labels=checkpoint.labels,
        problem_type=getattr(config, "problem_type", None),
        function_to_apply=getattr(config, "function_to_apply", None),
        rerank_activation=rerank_activation(config),
        embedding=embedding,
        default=model.default,
    )
