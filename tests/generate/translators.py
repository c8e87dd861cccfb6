"""Small checkpoints of every kind that translates, each with the tokenizer of its kind, made in place."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from tests.generate.models import BART, T5, randomize
from tests.models.conftest import TEXT, train_tokenizer

WORDS = [f"▁{word}" for word in dict.fromkeys(TEXT.split())]
CONTROL = ["<s>", "<pad>", "</s>", "<unk>"]
M2M100_CODES = FAIRSEQ_LANGUAGE_CODES["m2m100"]
MARKS = ("fra", "deu", "pt_br")
T5_PARAMS: dict[str, Any] = {
    "summarization": {
        "prefix": "summarize: ",
        "num_beams": 3,
        "length_penalty": 2.0,
        "min_length": 6,
        "max_length": 14,
        "no_repeat_ngram_size": 2,
        "early_stopping": True,
    },
    "translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 2, "max_length": 12},
    "translation_en_to_fr": {"prefix": "translate English to French: ", "num_beams": 2, "max_length": 12},
}
BART_PARAMS = {"summarization": {"num_beams": 2, "min_length": 5, "max_length": 11, "length_penalty": 0.5}}


@dataclass(frozen=True, slots=True)
class Kind:
    """``tokenizer``: made in the folder. ``config``: of the model, by its type."""

    model_type: str
    tokenizer: Callable[[Path], Any]
    config: dict[str, Any]


def save(kind: str, folder: Path) -> None:
    """A seeded model and its tokenizer, as users' folders are."""
    made = KINDS[kind]
    torch.manual_seed(0)
    tokenizer = made.tokenizer(folder)
    tokenizer.save_pretrained(folder)
    size = max(tokenizer.get_vocab().values()) + 1
    config = transformers.AutoConfig.for_model(made.model_type, **(made.config | {"vocab_size": size}))
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    randomize(model)
    model.save_pretrained(folder)


def _spm(folder: Path, name: str, size: int = 90, **options: Any) -> Path:
    prefix = folder / name
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines() * 4),
        model_prefix=str(prefix),
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return prefix.with_suffix(".model")


def _pieces(model: Path) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [processor.id_to_piece(index) for index in range(processor.get_piece_size())]


def nllb(folder: Path, legacy: bool = False) -> Any:
    letters = sorted(set("".join(WORDS)))
    vocab = {piece: index for index, piece in enumerate([*CONTROL, *letters])}
    return transformers.NllbTokenizer(vocab=vocab, merges=[], legacy_behaviour=legacy)


def mbart(folder: Path) -> Any:
    codes = ("ar_AR", "cs_CZ", "de_DE", "en_XX", "fr_XX", "ro_RO")
    letters = sorted(set("".join(WORDS)))
    vocab = [*((piece, 0.0) for piece in CONTROL), *((letter, -6.0) for letter in letters)]
    vocab += [*((word, -3.0) for word in WORDS), *((code, 0.0) for code in codes), ("<mask>", 0.0)]
    return transformers.MBartTokenizer(vocab=vocab)


def mbart50(folder: Path) -> Any:
    vocab = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    vocab += [*((letter, -6.0) for letter in sorted(set("".join(WORDS)))), *((word, -3.0) for word in WORDS)]
    return transformers.MBart50Tokenizer(vocab=vocab)


def m2m100(folder: Path) -> Any:
    model = _spm(folder, "spm")
    pieces = [*CONTROL, *(piece for piece in _pieces(model) if piece not in CONTROL)]
    vocab = folder / "made.json"
    vocab.write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}))
    marks = [f"__{code}__" for code in M2M100_CODES]
    return transformers.M2M100Tokenizer(vocab_file=str(vocab), spm_file=str(model), additional_special_tokens=marks)


def marian(folder: Path, marks: tuple[str, ...] = (), **languages: str) -> Any:
    """Its source and target pieces differ, as those of real checkpoints do."""
    source, target = _spm(folder, "made-source"), _spm(folder, "made-target", 70, model_type="bpe")
    found = dict.fromkeys(["</s>", "<unk>", *(f">>{mark}<<" for mark in marks), *_pieces(source), *_pieces(target)])
    pieces = [piece for piece in found if piece != "<s>"] + ["<pad>"]
    vocab = folder / "made.json"
    vocab.write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}))
    return transformers.MarianTokenizer(str(source), str(target), str(vocab), **languages)


def t5(folder: Path) -> Any:
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    names = [f"▁{word}" for word in ("translate", "summarize:", "English", "German:", "French:", "to")]
    vocab += [*((letter, -6.0) for letter in sorted(set("".join((*WORDS, *names)))))]
    vocab += [(word, -3.0) for word in (*WORDS, *names)]
    return transformers.T5Tokenizer(vocab=vocab, extra_ids=0)


M2M = BART | {"scale_embedding": True, "decoder_start_token_id": 2}
MBART = BART | {"decoder_start_token_id": None}
MARIAN = BART | {"scale_embedding": True, "eos_token_id": 0, "bos_token_id": 0}
KINDS: dict[str, Kind] = {
    "nllb": Kind("m2m_100", nllb, M2M),
    "nllb-legacy": Kind("m2m_100", lambda folder: nllb(folder, legacy=True), M2M),
    "m2m100": Kind("m2m_100", m2m100, M2M),
    "mbart": Kind("mbart", mbart, MBART),
    "mbart50": Kind("mbart", mbart50, BART),
    "marian": Kind("marian", lambda folder: marian(folder, source_lang="en", target_lang="de"), MARIAN),
    "marian-many": Kind(
        "marian", lambda folder: marian(folder, MARKS, source_lang="en", target_lang="ROMANCE"), MARIAN
    ),
    "marian-group": Kind("marian", lambda folder: marian(folder, source_lang="roa", target_lang="en"), MARIAN),
    "t5": Kind("t5", t5, T5 | {"task_specific_params": T5_PARAMS}),
    "bart": Kind("bart", lambda _: train_tokenizer(128), BART | {"task_specific_params": BART_PARAMS}),
}
