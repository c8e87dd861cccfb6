"""Tokenizers trained in place: WordPiece (BERT), byte-level BPE (RoBERTa), Unigram (XLM-R), with their specials."""

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.contract.texts import corpus


@dataclass(frozen=True, slots=True)
class Specials:
    """Special tokens in the order of their ids, which the position rules of RoBERTa and MPNet depend on."""

    order: tuple[str, ...]
    begin: str
    end: str
    unknown: str
    pad: str
    mask: str
    double_separator: bool


BERT = Specials(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]", False)
ROBERTA = Specials(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s>", "</s>", "<unk>", "<pad>", "<mask>", True)


def wordpiece() -> Tokenizer:
    return _wordpiece(BERT)


def mpnet_wordpiece() -> Tokenizer:
    return _wordpiece(ROBERTA)


def _wordpiece(specials: Specials) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token=specials.unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=list(specials.order), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def byte_bpe(specials: Specials = ROBERTA) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=list(specials.order),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def unigram(specials: Specials = ROBERTA) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=list(specials.order), unk_token=specials.unknown, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def wrap(tokenizer: Tokenizer, specials: Specials, max_length: int, *, bare: bool = False, **options: Any) -> Any:
    """The transformers tokenizer around a trained one; ``bare`` leaves out the special tokens of the template."""
    if not bare:
        tokenizer.post_processor = _template(tokenizer, specials)
    names = ["input_ids", "attention_mask"] if specials.double_separator else None
    mask = AddedToken(specials.mask, lstrip=specials.double_separator)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        cls_token=specials.begin,
        sep_token=specials.end,
        unk_token=specials.unknown,
        pad_token=specials.pad,
        mask_token=mask,
        model_input_names=names or ["input_ids", "token_type_ids", "attention_mask"],
        **options,
    )


def _template(tokenizer: Tokenizer, specials: Specials) -> processors.PostProcessor:
    begin, end = specials.begin, specials.end
    if specials.double_separator:
        single, pair = f"{begin} $A {end}", f"{begin} $A {end} {end} $B {end}"
    else:
        single, pair = f"{begin} $A {end}", f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1"
    ids = [(token, tokenizer.token_to_id(token)) for token in (begin, end)]
    template: processors.PostProcessor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return template
