"""The stock model of a checkpoint, loaded by the libraries that own it, and run whole: the oracle and the fallback."""

from typing import Any

import torch
from torch import Tensor

from padserve.core import Batch, EmbeddingSpec, Head, Output
from padserve.errors import ConfigError
from padserve.models.checkpoint import Checkpoint
from padserve.models.heads import HeadRunner, embedding_head
from padserve.models.runners import Padded, WholeModel

AUTO_CLASSES: dict[Head, str] = {
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}


class StockModel:
    """``model``: the transformers module. ``head``: for embeddings, what follows the encoder. ``tokenizer``: the one
    that sentence-transformers has set up (lower case, maximum length), None where the checkpoint's own is used."""

    tokenizer: Any = None

    def __init__(self, model: Any, head: HeadRunner | None, embedding: EmbeddingSpec | None, length: int) -> None:
        self.model, self.head, self.embedding = model, head, embedding
        self.own_max_length = length

    @property
    def base(self) -> Any:
        return self.model.base_model

    def whole(self, head: Head) -> WholeModel:
        """The forward pass of the whole stock model over a padded view."""
        return self._embed_whole if self.head is not None else _logits_whole(self.model, head)

    def _embed_whole(self, padded: Padded, batch: Batch) -> list[Output]:
        assert self.head is not None
        return self.head.over_all(_unpad(self.model(**padded).last_hidden_state, batch), batch)


def _logits_whole(model: Any, head: Head) -> WholeModel:
    def run(padded: Padded, batch: Batch) -> list[Output]:
        logits: Tensor = model(**padded).logits
        if head == "sequence-classification":
            return list(logits.float().cpu().numpy())
        rows = [logits[i, :length] for i, length in enumerate(batch.lengths.tolist())]
        if head == "masked-lm":
            spans = zip(batch.gather_cu_seqlens[:-1], batch.gather_cu_seqlens[1:], strict=True)
            own = [batch.gather[a:b] - start for (a, b), start in zip(spans, batch.cu_seqlens, strict=False)]
            rows = [row[torch.from_numpy(positions).to(row.device)] for row, positions in zip(rows, own, strict=True)]
        return [row.float().cpu().numpy() for row in rows]

    return run


def _unpad(hidden: Tensor, batch: Batch) -> Tensor:
    return torch.cat([hidden[i, :length] for i, length in enumerate(batch.lengths.tolist())])


def load_stock(checkpoint: Checkpoint, trust_remote_code: bool, name: str) -> StockModel:
    """Load in float32, for inference. Errors: `ConfigError`, also when a checkpoint lacks weights of its head."""
    load = _load_sentence_model if checkpoint.head == "embedding" else _load_headed_model
    try:
        return load(checkpoint, trust_remote_code, name)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise ConfigError(f"models.{name}: cannot load {checkpoint.path!r}: {error}") from error


def _load_headed_model(checkpoint: Checkpoint, trust_remote_code: bool, name: str) -> StockModel:
    import transformers

    auto = getattr(transformers, AUTO_CLASSES[checkpoint.head])
    model, info = auto.from_pretrained(
        checkpoint.path,
        revision=checkpoint.revision,
        dtype=torch.float32,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    missing = sorted(key for key in info["missing_keys"] if "position_ids" not in key)
    if missing:
        raise ConfigError(
            f"models.{name}: {checkpoint.path!r} has no weights for {', '.join(missing[:4])}"
            f"{' …' if len(missing) > 4 else ''}; it was not trained for a {checkpoint.head} head"
        )
    return StockModel(model.eval(), None, None, 0)


def _load_sentence_model(checkpoint: Checkpoint, trust_remote_code: bool, name: str) -> StockModel:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    sentence = SentenceTransformer(
        checkpoint.path,
        device="cpu",
        revision=checkpoint.revision,
        trust_remote_code=trust_remote_code,
        model_kwargs={"dtype": torch.float32},
    )
    modules = list(sentence.eval())
    if not hasattr(modules[0], "auto_model") or len(modules) < 2 or not isinstance(modules[1], Pooling):
        shown = ", ".join(type(module).__name__ for module in modules)
        raise ConfigError(f"models.{name}: modules {shown}; served are Transformer, Pooling and what follows them")
    if isinstance(modules[-1], Normalize):
        modules.pop()
    embedding = EmbeddingSpec(
        dimensions=int(sentence.get_embedding_dimension() or 0),
        pooling=_pooling_name(modules[1]),
        prompts={key: prompt for key, prompt in sentence.prompts.items() if prompt is not None},
        default_prompt_name=sentence.default_prompt_name,
        include_prompt=bool(modules[1].include_prompt),
    )
    stock = StockModel(modules[0].auto_model, embedding_head(modules[1:]), embedding, sentence.max_seq_length or 0)
    stock.tokenizer = modules[0].tokenizer
    return stock


def _pooling_name(pooling: Any) -> str:
    mode = pooling.pooling_mode
    return mode if isinstance(mode, str) else "+".join(mode)
