"""Small tokenizers of every kind of decoder, made in place."""

from collections.abc import Callable
from typing import Any

import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from padserve.starter.table import resolve_source
from padserve.text.tokenizer import Tokenizer
from tests.contract.vocabularies import BERT, ROBERTA, byte_bpe, unigram, wordpiece

ADDED = [AddedToken("<|note|>", special=False), AddedToken("<|turn|>", special=True), AddedToken(" is", special=False)]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "▁a", "a", "▁the", "fox", "▁dog", ".", "▁.", "'", "▁'", "s", "n't", "▁n't", "中", "\ufffd", "▁▁", "\n"]
"""Also ones that clean-up and leading spaces turn on."""


def wrapped(backend: tokenizers.Tokenizer, unk: str = "<unk>", **options: Any) -> Tokenizer:
    backend.add_tokens([token for token in ADDED if not token.special])
    backend.add_special_tokens([token for token in ADDED if token.special])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=unk, **options))


def byte_level() -> Tokenizer:
    return wrapped(byte_bpe(ROBERTA))


def metaspace() -> Tokenizer:
    return wrapped(unigram(ROBERTA))


def metaspace_cleaned() -> Tokenizer:
    made = unigram(ROBERTA)
    made.add_tokens(["▁.", "▁'", "▁n't", "'", "s", "n", "'t"])
    return wrapped(made, clean_up_tokenization_spaces=True)


def byte_fallback(cleaned: bool = False) -> Tokenizer:
    """As Llama's: the space before the first word is a token's, and goes."""
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", *BYTES, *PIECES])}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    forced = {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True} if cleaned else {}
    return wrapped(made, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=cleaned, **forced)


def word_piece(cleaned: bool) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        made = wordpiece()
        made.add_tokens([".", "'", "n't", "'s", "##'"])
        made.decoder = decoders.WordPiece(cleanup=cleaned)
        return wrapped(made, unk=BERT.unknown, clean_up_tokenization_spaces=cleaned)

    return make


def word_ends() -> Tokenizer:
    """As FSMT's and CLIP's: the last token of a word says so."""
    pieces = ["<unk>", "fox</w>", "fo", "x</w>", "dog</w>", "a</w>", ".</w>", "中", "</w>"]
    made = tokenizers.Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    made.decoder = decoders.BPEDecoder("</w>")
    return wrapped(made)


def no_decoder() -> Tokenizer:
    made = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "fox": 1, "dog": 2, ".": 3, "'": 4}, unk_token="<unk>"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    return wrapped(made, clean_up_tokenization_spaces=True)


def marian() -> Tokenizer:
    return Tokenizer.from_pretrained(resolve_source("starter:translate-en-pt-tiny"))


def byt5() -> Tokenizer:
    return Tokenizer(transformers.ByT5Tokenizer())


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "metaspace": metaspace,
    "metaspace, cleaned": metaspace_cleaned,
    "byte fallback": byte_fallback,
    "byte fallback, cleaned": lambda: byte_fallback(cleaned=True),
    "WordPiece": word_piece(cleaned=False),
    "WordPiece, cleaned": word_piece(cleaned=True),
    "word ends": word_ends,
    "no decoder": no_decoder,
    "marian": marian,
    "byt5": byt5,
}
