"""Small checkpoints of three tokenizer kinds, and a task run on one of them as the server would, without the queue."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from padserve.config.structs import ModelConfig
from padserve.core import Output
from padserve.errors import PadserveError
from padserve.models.load import load_model
from padserve.models.loaded import LoadedModel
from padserve.models.pack import pack
from padserve.service.catalog import with_tasks
from padserve.tasks.base import Finished, Unit
from padserve.tasks.table import get_task

CORPUS = [
    "The capital of France is Paris and the capital of Portugal is Lisbon.",
    "My name is Maria Silva, I live in São Paulo and work for Müller & Sons since 1997.",
    "This example is about sports, politics or science; the match ended two nil on 5.975,74 points.",
    "How do I renew a passport? Passports are renewed at the post office, unbelievably quickly.",
]
WORDPIECE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def wordpiece() -> transformers.PreTrainedTokenizerFast:
    """BERT-like: lower case, accents stripped, ``##``."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=220, special_tokens=WORDPIECE, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, mask_token="[MASK]", model_max_length=64, **names
    )


def bytelevel() -> transformers.PreTrainedTokenizerFast:
    """RoBERTa-like: byte-level BPE, a space is part of the token after it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=ROBERTA, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "bos_token": "<s>"}
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        mask_token=mask,
        eos_token="</s>",
        model_max_length=128,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )


def metaspace() -> transformers.PreTrainedTokenizerFast:
    """XLM-R-like: unigram with ``▁`` for a space."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=ROBERTA, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.decoder = decoders.Metaspace()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        mask_token=mask,
        model_max_length=128,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )


KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "wordpiece": (wordpiece, "bert"),
    "bytelevel": (bytelevel, "roberta"),
    "metaspace": (metaspace, "xlm-roberta"),
}


class Served:
    """A checkpoint's folder, loaded as padserve loads it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = str(folder)
        config = ModelConfig(name="m", source=self.folder, **settings)
        loaded = load_model(config, torch.device("cpu"))
        self.loaded: LoadedModel = loaded
        self.spec = with_tasks(loaded.spec, config)

    def finished(self, task_name: str, **fields: Any) -> Finished:
        """Plan, run each unit's sequences together, finish."""
        task = get_task(task_name)
        request = msgspec.convert(fields, task.request_type)
        plan = task.plan(request, self.spec, self.loaded.tokenizer)
        outputs: list[Sequence[Output] | PadserveError] = []
        for unit in plan.units:
            if isinstance(unit, Unit):
                outputs.append(self.loaded.run(pack(unit.encodings)) if unit.encodings else [])
            else:
                outputs.append(unit)
        return task.finish(request, self.spec, plan, outputs)

    def results(self, task_name: str, **fields: Any) -> list[Any]:
        """Results as JSON values; an error is raised."""
        finished = self.finished(task_name, **fields)
        for result in finished.results:
            if isinstance(result, PadserveError):
                raise result
        return [msgspec.to_builtins(result) for result in finished.results]


MakeServed = Callable[..., Served]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> MakeServed:
    """``make(kind, auto_class, **config)``: a checkpoint with random weights, made once."""
    made: dict[str, Served] = {}

    def build(kind: str, auto_class: str, **changes: Any) -> Served:
        key = f"{kind} {auto_class} {changes}"
        if key not in made:
            folder = tmp_path_factory.mktemp(kind)
            save(folder, kind, auto_class, changes)
            made[key] = Served(folder)
        return made[key]

    return build


def save(folder: Path, kind: str, auto_class: str, changes: dict[str, Any]) -> None:
    make_tokenizer, model_type = KINDS[kind]
    tokenizer = make_tokenizer()
    positions = 64 if kind == "wordpiece" else 130
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        max_position_embeddings=positions,
        pad_token_id=tokenizer.pad_token_id,
        **(WIDTH | changes),
    )
    torch.manual_seed(11)
    model = getattr(transformers, auto_class).from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def labels(names: Sequence[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def pipe(task: str, served: Served, **options: Any) -> Any:
    return transformers.pipeline(task, model=served.folder, device="cpu", dtype=torch.float32, **options)
