"""Small checkpoints with random weights, made once a session, and the stock models that are their oracle."""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from padserve.config.structs import ModelConfig
from padserve.core import Encoding, Head, Output
from padserve.models.load import load_model
from padserve.models.loaded import LoadedModel

AUTO_CLASSES = {
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "embedding": "AutoModel",
}
MAX_LENGTH = 128
PAD = 1
SPECIAL_TOKENS = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
ROBERTA_LIKE = {"roberta", "camembert", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "data2vec-text"}
ROBERTA_LIKE |= {"longformer", "mpnet", "ibert", "mra"}
TEXT = """the quick brown fox jumps over a lazy dog while seven wizards mix their potion in an old iron pot
every sequence attends within itself so that no neighbour in the stream can change what another one gives"""

WORDS = TEXT.split()

MakeCheckpoint = Callable[..., Path]
Load = Callable[..., LoadedModel]


def train_tokenizer(max_length: int) -> transformers.PreTrainedTokenizerBase:
    """A small WordPiece tokenizer; its padding id is 1, as RoBERTa's is, so that position offsets matter."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        TEXT.splitlines(), trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL_TOKENS, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="[CLS]",
        pad_token="[PAD]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_max_length=max_length,
    )


def small_config(model_type: str, **changes: Any) -> Any:
    """Two layers of width 32 under the names that most families use; ``changes`` adds and replaces."""
    positions = MAX_LENGTH + (PAD + 1 if model_type in ROBERTA_LIKE else 0)
    settings = {
        "vocab_size": 120,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": positions,
        "type_vocab_size": 2,
        "pad_token_id": PAD,
        "bos_token_id": 0,
        "cls_token_id": 0,
        "eos_token_id": 2,
        "sep_token_id": 2,
        "num_labels": 3,
    } | changes
    settings = {key: value for key, value in settings.items() if value is not None}
    return transformers.AutoConfig.for_model(model_type, **settings)


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> None:
    """Weights large enough that every position, type and neighbour shows in the outputs."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.copy_(noise * 0.2)
        else:
            parameter.copy_(parameter + noise * 0.1 if "orm" in name else noise * 0.1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """``checkpoint(model_type, head, **config)`` -> the folder; equal calls give the same one."""

    made: dict[str, Path] = {}

    def make(model_type: str, head: Head, **changes: Any) -> Path:
        key = repr((model_type, head, sorted(changes.items())))
        if key not in made:
            made[key] = write(tmp_path_factory.mktemp(f"{model_type}-{head}"), model_type, head, changes)
        return made[key]

    def write(folder: Path, model_type: str, head: Head, changes: dict[str, Any]) -> Path:
        config = small_config(model_type, **changes)
        model = getattr(transformers, AUTO_CLASSES[head]).from_config(config)
        randomize(model, zlib.crc32(model_type.encode()))
        model.save_pretrained(folder)
        train_tokenizer(MAX_LENGTH).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def load() -> Load:
    """``load(folder, **model configuration)`` -> the model as it is served on a CPU."""

    def load(folder: Path, **settings: Any) -> LoadedModel:
        settings = {"name": "m", "source": str(folder)} | settings
        return load_model(ModelConfig(**settings), torch.device("cpu"))

    return load


@pytest.fixture(scope="session")
def stock() -> Callable[[Path, Head], nn.Module]:
    """The checkpoint as transformers alone loads it, in float32."""

    def stock(folder: Path, head: Head) -> nn.Module:
        model: nn.Module = getattr(transformers, AUTO_CLASSES[head]).from_pretrained(folder, dtype=torch.float32)
        return model.eval()

    return stock


@torch.inference_mode()
def oracle(model: nn.Module, head: Head, encoding: Encoding) -> Output:
    """One sequence through the stock model, alone: what `padserve.core.Output` says of the head."""
    inputs = {"input_ids": torch.tensor(encoding.input_ids)[None]}
    if encoding.token_type_ids is not None:
        inputs["token_type_ids"] = torch.tensor(encoding.token_type_ids)[None]
    output = model(**inputs)
    if head == "embedding":
        return output.last_hidden_state[0].mean(0).numpy()
    logits: Output = output.logits[0].numpy()
    return logits[list(encoding.gather)] if head == "masked-lm" else logits


@pytest.fixture(scope="session")
def alone() -> Callable[[nn.Module, Head, Encoding], Output]:
    return oracle


@pytest.fixture(scope="session")
def random_encodings() -> Callable[..., list[Encoding]]:
    """``random_encodings(lengths, head, types)``: ids that are no special token but the first and the last."""

    def make(lengths: Sequence[int], head: Head, types: bool = False) -> list[Encoding]:
        rng = np.random.default_rng(len(lengths))
        encodings = []
        for length in lengths:
            ids = rng.integers(5, 100, length)
            ids[0], ids[-1] = 0, 2
            gather = tuple(sorted({0, length // 2, length - 1})) if head == "masked-lm" else ()
            kinds = (np.arange(length) > length // 2).astype(np.int64) if types else None
            encodings.append(Encoding(ids, kinds, gather=gather))
        return encodings

    return make
