"""Small random checkpoints for every family and task, saved as users' folders are, and how each one is served."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from tests.contract.families import FAMILIES, MAX_LENGTH, randomize, small_config
from tests.contract.vocabularies import wrap

TOPICS = ["topic-a", "topic-b", "topic-c", "topic-d"]
ENTITIES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]
NLI = ["contradiction", "neutral", "entailment"]
POISON = "kernel"
"""A word whose embedding is NaN in the checkpoint ``poison-cross``."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    build: Callable[[Path], None]
    serve: dict[str, Any] = field(default_factory=dict)


def labels(names: list[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def save_model(
    folder: Path, family: str, head: str, *, bare: bool = False, limit: int = MAX_LENGTH, **overrides: Any
) -> Any:
    """Save a seeded ``AutoModel{head}`` of the family with its tokenizer; the seed follows from the folder's name."""
    kind = FAMILIES[family]
    tokenizer_options = overrides.pop("tokenizer_options", {})
    tokenizer = wrap(kind.train(), kind.specials, limit, bare=bare, **tokenizer_options)
    config = small_config(kind, tokenizer, **overrides)
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModel{head}").from_config(config)
    randomize(model, seed=sum(folder.name.encode()))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def classifier(family: str, **overrides: Any) -> Callable[[Path], None]:
    options = labels(TOPICS) | overrides
    return lambda folder: save_model(folder, family, "ForSequenceClassification", **options) and None


def masked(family: str) -> Callable[[Path], None]:
    return lambda folder: save_model(folder, family, "ForMaskedLM") and None


def tagger(family: str) -> Callable[[Path], None]:
    return lambda folder: save_model(folder, family, "ForTokenClassification", **labels(ENTITIES)) and None


def embedder(
    family: str, pooling: str, *, dense: bool = False, normalize: bool = False, prompts: bool = False
) -> Callable[[Path], None]:
    """A sentence-transformers folder with its own pooling, and optionally Dense, Normalize and prompts."""

    def build(folder: Path) -> None:
        plain = folder.with_name(f"{folder.name}-plain")
        save_model(plain, family, "")
        parts: list[torch.nn.Module] = [modules.Transformer(str(plain)), modules.Pooling(32, pooling_mode=pooling)]
        if dense:
            layer = modules.Dense(32, 24)
            randomize(layer, seed=5)
            parts.append(layer)
        if normalize:
            parts.append(modules.Normalize())
        texts = {"query": "find this: ", "document": "text: "} if prompts else {}
        SentenceTransformer(modules=parts, device="cpu", prompts=texts).save_pretrained(str(folder))
        shutil.rmtree(plain)

    return build


def poisoned(folder: Path) -> None:
    """A cross-encoder that is sound but for one word, whose embedding is NaN."""
    model = save_model(folder, "bert", "ForSequenceClassification", num_labels=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids(POISON)] = float("nan")
    model.save_pretrained(folder)


def scrambled(folder: Path) -> None:
    """Twelve labels whose ids stand in config.json as strings, in an order that is not theirs."""
    names = [f"class-{chr(ord('z') - index)}" for index in range(12)]
    save_model(folder, "bert", "ForSequenceClassification", **labels(names))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    order = [7, 10, 2, 11, 0, 9, 1, 3, 8, 5, 4, 6]
    config["id2label"] = {str(index): names[index] for index in order}
    config["label2id"] = {names[index]: index for index in order}
    path.write_text(json.dumps(config))


ROBERTA_NLI = ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]
SINGLE = {"problem_type": "single_label_classification"}
MULTI = {"problem_type": "multi_label_classification"}

CHECKPOINTS = [
    # The first classifier in the list is not the default one: that is bert-cls, below.
    *[
        Checkpoint(f"{family}-cls", classifier(family, **SINGLE), {"default": True} if family == "bert" else {})
        for family in reversed(FAMILIES)
    ],
    Checkpoint("bert-mlm", masked("bert"), {"default": True}),
    Checkpoint("roberta-mlm", masked("roberta")),
    Checkpoint("modernbert-mlm", masked("modernbert")),
    Checkpoint("bert-multi", classifier("bert", **MULTI)),
    Checkpoint("bert-cross", classifier("bert", num_labels=1, id2label={0: "LABEL_0"}, label2id={"LABEL_0": 0})),
    Checkpoint("roberta-cross", classifier("roberta", num_labels=1, id2label={0: "score"}, label2id={"score": 0})),
    Checkpoint("bert-two", classifier("bert", **labels(["irrelevant", "relevant"]))),
    Checkpoint("bert-nli", classifier("bert", **labels(NLI)), {"tasks": ["zero-shot", "classify"], "default": True}),
    Checkpoint("roberta-nli", classifier("roberta", **labels(ROBERTA_NLI)), {"tasks": ["zero-shot"]}),
    Checkpoint("bert-ner", tagger("bert"), {"default": True}),
    Checkpoint("roberta-ner", tagger("roberta")),
    Checkpoint("xlmr-ner", tagger("xlmr")),
    Checkpoint("st-mean", embedder("bert", "mean", normalize=True, prompts=True), {"default": True}),
    Checkpoint("st-dense", embedder("roberta", "cls", dense=True)),
    Checkpoint("st-last", embedder("bert", "lasttoken")),
    Checkpoint("st-mpnet", embedder("mpnet", "mean")),
    Checkpoint("leftpad-cls", classifier("bert", tokenizer_options={"padding_side": "left"}), {"batching": "padded"}),
    Checkpoint("tanh-cls", classifier("bert", hidden_act="gelu_new")),
    Checkpoint("relu-cls", classifier("bert", hidden_act="relu")),
    Checkpoint("scrambled-cls", scrambled),
    Checkpoint("poison-cross", poisoned),
    Checkpoint("deberta-long", classifier("deberta", limit=600)),
    Checkpoint("deberta-bf16", classifier("deberta"), {"dtype": "bfloat16"}),
    Checkpoint("alone-cls", classifier("bert"), {"max_batch_tokens": MAX_LENGTH}),
    Checkpoint("vast-cls", classifier("bert"), {"max_batch_tokens": 10**12}),
    *[Checkpoint(f"{family}-bare", classifier(family, bare=True)) for family in FAMILIES],
]


def slow_classifier(folder: Path) -> None:
    """Large enough that a batch takes a noticeable part of a second, for tests of queues, deadlines and draining."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    }
    save_model(folder, "bert", "ForSequenceClassification", **labels(TOPICS), **sizes)


def build_all(root: Path) -> dict[str, Path]:
    folders = {checkpoint.name: root / checkpoint.name for checkpoint in CHECKPOINTS}
    for checkpoint in CHECKPOINTS:
        checkpoint.build(folders[checkpoint.name])
    return folders
