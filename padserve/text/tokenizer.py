"""Tokenizer: text to ids and back, cut to length without ever changing shared state.

A tokenizer shared by threads that set different truncation gives rows of wrong length and no exception. So truncation
and padding are switched off once, and a text that is too long is cut here: of the encoding of the whole text the
special tokens stay and content tokens are left out, which is what the tokenizer's own truncation gives.
"""

import copy
import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from padserve.core import Encoding, Int64Array
from padserve.errors import BadEncoding, InputTooLong, InvalidField
from padserve.text.languages import Around, Languages

Side = Literal["right", "left"]
Strategy = Literal["longest_first", "only_first", "only_second"]
BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
NLLB_CODE = re.compile("[a-z]{3}_[A-Z][a-z]{3}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """One tokenized input. Offsets count characters of the original text; None for tokenizers that have none."""

    input_ids: Int64Array  # [length]
    token_type_ids: Int64Array | None  # [length]
    parts: tuple[int | None, ...]  # [length]: 0 or 1, the text that a token is of; None for added special tokens
    offsets: tuple[tuple[int, int], ...] | None  # [length]
    word_ids: tuple[int | None, ...] | None  # [length]
    truncated: bool = False

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def num_special(self) -> int:
        return self.parts.count(None)

    def encoding(self, **extra: Any) -> Encoding:
        """What the model is given."""
        return Encoding(self.input_ids, self.token_type_ids, self.truncated, **extra)

    def select(self, indices: Sequence[int]) -> "Tokens":
        """The tokens at these positions, as a truncated encoding."""
        types = self.token_type_ids
        return Tokens(
            input_ids=self.input_ids[list(indices)],
            token_type_ids=None if types is None else types[list(indices)],
            parts=tuple(self.parts[i] for i in indices),
            offsets=None if self.offsets is None else tuple(self.offsets[i] for i in indices),
            word_ids=None if self.word_ids is None else tuple(self.word_ids[i] for i in indices),
            truncated=True,
        )


class Tokenizer:
    """Wraps a transformers tokenizer. Safe to share between threads."""

    languages: Languages | None = None
    """How the model is told languages; set once, at load."""

    def __init__(self, hf: Any, takes_token_types: bool = True) -> None:
        self._hf = hf
        self._backend = hf.backend_tokenizer if hf.is_fast else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        self._token_types = takes_token_types and "token_type_ids" in hf.model_input_names

    @classmethod
    def from_pretrained(
        cls, source: str, revision: str | None = None, trust_remote_code: bool = False, **more: str
    ) -> Self:
        """``more``: what else transformers is told of the source."""
        from transformers import AutoTokenizer

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")  # equals stock without too
            return cls(
                AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code, **more)
            )

    def for_model(self, takes_token_types: bool) -> "Tokenizer":
        """The same tokenizer for a model that takes, or does not take, token types."""
        other = copy.copy(self)
        other._token_types = self._token_types and takes_token_types
        return other

    def for_languages(self, languages: Languages | None) -> "Tokenizer":
        other = copy.copy(self)
        other.languages = languages
        return other

    @property
    def model_max_length(self) -> int:
        return int(self._hf.model_max_length)

    @property
    def vocab_size(self) -> int:
        return len(self._hf)

    @property
    def mask_token(self) -> str | None:
        token: str | None = self._hf.mask_token
        return token

    @property
    def mask_token_id(self) -> int | None:
        token_id: int | None = self._hf.mask_token_id
        return token_id

    @property
    def all_special_ids(self) -> frozenset[int]:
        return frozenset(self._hf.all_special_ids)

    @property
    def pad_token_id(self) -> int | None:
        token_id: int | None = self._hf.pad_token_id
        return token_id

    @property
    def unk_token_id(self) -> int | None:
        token_id: int | None = self._hf.unk_token_id
        return token_id

    def vocabulary(self) -> dict[str, int]:
        """Token string to id."""
        vocabulary: dict[str, int] = self._hf.get_vocab()
        return vocabulary

    def language_tokens(self) -> dict[str, int]:
        """The token of each language, by the code that the tokenizer has for it."""
        known = getattr(self._hf, "lang_code_to_id", None)
        if known is None:
            codes = [str(token) for token in self._hf.all_special_tokens if NLLB_CODE.fullmatch(str(token))]
            known = {code: self._hf.convert_tokens_to_ids(code) for code in codes}
        return {code: token for code, token in known.items() if token not in (None, self.unk_token_id)}

    @property
    def language_marks(self) -> tuple[str, ...]:
        """Marian's marks of target languages, ``>>fra<<``."""
        return tuple(getattr(self._hf, "supported_language_codes", ()))

    @property
    def declared_languages(self) -> tuple[str | None, str | None]:
        """The source and target language that a Marian tokenizer says it is of."""
        return getattr(self._hf, "source_lang", None), getattr(self._hf, "target_lang", None)

    def around(self) -> Around:
        """The special tokens that a text gets."""
        tokens = self.tokens("a")
        content = [index for index, part in enumerate(tokens.parts) if part is not None]
        ids = [int(token) for token in tokens.input_ids]
        return tuple(ids[: content[0]]), tuple(ids[content[-1] + 1 :])

    def id_to_token(self, token_id: int) -> str:
        return str(self._hf.convert_ids_to_tokens(int(token_id)))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self._hf.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def text_after(self, before: Sequence[int], token_id: int) -> str:
        """The text that a token adds to those ``before`` it, special tokens by their names."""
        return self.decode([*before, token_id])[len(self.decode(before)) :]

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self._hf, "chat_template", None))

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """A conversation as the checkpoint's template writes it. Errors: `InvalidField` where that refuses it."""
        taken = variables.keys() & inspect.signature(self._hf.apply_chat_template).parameters.keys()
        if taken:
            raise InvalidField(f"{min(taken)!r} is no variable of a chat template", field="chat_template_kwargs")
        try:
            return str(
                self._hf.apply_chat_template(
                    list(messages),
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    **variables,
                )
            )
        except Exception as error:  # a template is a program: what it raises says what it does not take
            reason = str(error) or type(error).__name__
            raise InvalidField(
                f"the model's chat template refuses these messages: {reason}", field="messages"
            ) from error

    def decode_uncleaned(self, ids: Sequence[int]) -> str:
        """`decode` without special tokens, before spaces are cleaned up."""
        return str(self._hf.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def cleans_up(self) -> Literal["none", "standard", "unknown"]:
        """What `decode` does to the spaces of the whole text: transformers' own replacements, or another class's."""
        from transformers import PreTrainedTokenizerBase

        forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
        is_bpe = type(getattr(self._backend, "model", None)).__name__ == "BPE"
        if not self._hf.clean_up_tokenization_spaces or (is_bpe and not getattr(self._hf, forced, False)):
            return "none"
        own = type(self._hf).clean_up_tokenization is not PreTrainedTokenizerBase.clean_up_tokenization
        return "unknown" if own else "standard"

    def is_read(self, token_id: int) -> bool:
        """Whether `decode_uncleaned` looks at a token at all: not at special tokens, nor at ids without a token."""
        if token_id in self._skipped_ids:
            return False
        return self._backend is None or self._backend.id_to_token(token_id) is not None

    @cached_property
    def _skipped_ids(self) -> frozenset[int]:
        if self._backend is None:
            return self.all_special_ids
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Tokens of one byte each, as vocabularies with byte fallback name them: ``<0xE4>``."""
        return frozenset(token_id for token, token_id in self.vocabulary().items() if BYTE_TOKEN.fullmatch(token))

    def join(self, tokens: list[str]) -> str:
        """Token strings as text."""
        return str(self._hf.convert_tokens_to_string(tokens))

    def word_piece_prefix(self) -> str | None:
        """The prefix of a token that continues a word ("##"), None where the model has none."""
        model = getattr(self._backend, "model", None)
        return getattr(model, "continuing_subword_prefix", None)

    def tokens(self, text: str, pair: str | None = None, add_special_tokens: bool = True) -> Tokens:
        """The whole input, uncut. Errors: `BadEncoding` for text that is not valid Unicode."""
        try:
            if self._backend is not None:
                return self._fast(self._backend.encode(text, pair, add_special_tokens=add_special_tokens))
            return self._slow(text, pair, add_special_tokens)
        except (TypeError, UnicodeEncodeError) as error:
            raise BadEncoding("the input is not valid Unicode text (a lone surrogate?)") from error

    def surrounded(self, text: str, around: Around) -> Tokens:
        """The whole text between these special tokens in place of the tokenizer's own. Errors: `BadEncoding`."""
        tokens, (before, after) = self.tokens(text, add_special_tokens=False), around
        types, offsets, words = tokens.token_type_ids, tokens.offsets, tokens.word_ids
        front, back = len(before), len(after)
        return Tokens(
            input_ids=np.concatenate([np.array(ids, dtype=np.int64) for ids in (before, tokens.input_ids, after)]),
            token_type_ids=None if types is None else np.pad(types, (front, back)),
            parts=((None,) * front + tokens.parts + (None,) * back),
            offsets=None if offsets is None else ((0, 0),) * front + offsets + ((0, 0),) * back,
            word_ids=None if words is None else (None,) * front + words + (None,) * back,
        )

    def target_ids(self, text: str) -> tuple[int, ...]:
        """The tokens of a text as a part of the output, which Marian spells with other pieces than its input.

        Errors: `BadEncoding`.
        """
        pieces = getattr(self._hf, "spm_target", None)
        if pieces is None:
            return tuple(int(token) for token in self.tokens(text, add_special_tokens=False).input_ids)
        known = self._hf.target_encoder if self._hf.separate_vocabs else self._hf.encoder
        try:
            return tuple(known.get(piece, known[self._hf.unk_token]) for piece in pieces.encode(text, out_type=str))
        except UnicodeEncodeError as error:
            raise BadEncoding("the text is not valid Unicode (a lone surrogate?)") from error

    def _fast(self, encoded: Any) -> Tokens:
        return Tokens(
            input_ids=np.array(encoded.ids, dtype=np.int64),
            token_type_ids=np.array(encoded.type_ids, dtype=np.int64) if self._token_types else None,
            parts=tuple(encoded.sequence_ids),
            offsets=tuple(encoded.offsets),
            word_ids=tuple(encoded.word_ids),
        )

    def _slow(self, text: str, pair: str | None, add_special_tokens: bool) -> Tokens:
        encoded = self._hf(
            text, pair, add_special_tokens=add_special_tokens, return_special_tokens_mask=True, verbose=False
        )
        first = len(self._hf(text, add_special_tokens=False, verbose=False)["input_ids"])
        parts: list[int | None] = []
        content = 0
        for special in encoded["special_tokens_mask"]:
            parts.append(None if special else int(content >= first))
            content += not special
        types = encoded.get("token_type_ids") if self._token_types else None
        return Tokens(
            input_ids=np.array(encoded["input_ids"], dtype=np.int64),
            token_type_ids=None if types is None else np.array(types, dtype=np.int64),
            parts=tuple(parts),
            offsets=None,
            word_ids=None,
        )

    def fitted(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int,
        truncate: bool,
        side: Side = "right",
        strategy: Strategy = "longest_first",
        around: Around | None = None,
    ) -> Tokens:
        """The input within ``max_length`` tokens. ``strategy``: which text of a pair is cut. ``around``: special tokens
        of a single text in place of the tokenizer's own.

        Errors: `InputTooLong` when it is longer and ``truncate`` is false, or when the part that may not be cut fills
        the model alone.
        """
        tokens = self.tokens(text, pair) if around is None else self.surrounded(text, around)
        if len(tokens) <= max_length:
            return tokens
        if not truncate:
            raise InputTooLong(len(tokens), max_length)
        return cut(tokens, max_length, side, strategy)

    def encoding(self, text: str, max_length: int) -> Encoding:
        """A text as a model's input, cut on the right."""
        return self.fitted(text, max_length=max_length, truncate=True).encoding()


def cut(tokens: Tokens, max_length: int, side: Side, strategy: Strategy) -> Tokens:
    """Leave content tokens out until ``max_length`` remain. Errors: `InputTooLong` when that cannot be."""
    counts = (tokens.parts.count(0), tokens.parts.count(1))
    keep = _kept(counts, max_length - tokens.num_special, strategy)
    if min(keep) < 0 or (keep[0] == 0 and counts[0] > 0) or (keep[1] == 0 and counts[1] > 0):
        raise InputTooLong(len(tokens), max_length, "the part that may not be cut leaves no room for the other")
    seen = [0, 0]
    indices = []
    for index, part in enumerate(tokens.parts):
        if part is None:
            indices.append(index)
            continue
        rank = seen[part] if side == "right" else counts[part] - 1 - seen[part]
        seen[part] += 1
        if rank < keep[part]:
            indices.append(index)
    return tokens.select(indices)


def _kept(counts: tuple[int, int], room: int, strategy: Strategy) -> tuple[int, int]:
    """Content tokens that stay of either text; the tokenizers library's own rule for ``longest_first``."""
    if strategy == "only_first" or counts[1] == 0:
        return min(counts[0], room - counts[1]), counts[1]
    if strategy == "only_second":
        return counts[0], min(counts[1], room - counts[0])
    short, long = sorted(counts)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    return (short, long) if counts[0] <= counts[1] else (long, short)


def windows(tokens: Tokens, max_length: int, stride: int) -> list[list[int]]:
    """Positions in each window over a long text: special tokens, and content that overlaps by ``stride``."""
    content = [index for index, part in enumerate(tokens.parts) if part is not None]
    special = [index for index, part in enumerate(tokens.parts) if part is None]
    room = max_length - len(special)
    spans = []
    for start in range(0, len(content), room - stride):
        spans.append(sorted(special + content[start : start + room]))
        if start + room >= len(content):
            break
    return spans or [special]
