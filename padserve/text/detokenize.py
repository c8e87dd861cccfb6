"""Tokens to text, one at a time: what is certain, no sooner. The pieces add up to `Tokenizer.decode` of all tokens.

Only a window of the newest tokens is decoded. How a token reads depends on little: whether text stands before it, the
tokens beside it, and, for bytes of a character, the others of that character. What a later token may still change is
held back: a last U+FFFD (a character that is not whole yet), a run of byte tokens (the tokenizers library reads all
of it as U+FFFD when one byte is wrong), and the beginning of what the tokenizer's clean-up would replace.
"""

from collections.abc import Iterable

from padserve.text.tokenizer import Tokenizer

UNFINISHED = "\ufffd"
WINDOW = 16
TAIL = 8
"""Of a window: at most 3 tokens are a character that is not whole, 3 more suffice to find where characters start."""
REPLACED = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
"""What transformers' ``clean_up_tokenization`` replaces, one after the other."""


class Cleanup:
    """``str.replace`` of each pair in a text that comes in pieces."""

    def __init__(self, held: Iterable[str] = ("",) * len(REPLACED)) -> None:
        self._held = list(held)

    def fork(self) -> "Cleanup":
        return Cleanup(self._held)

    def push(self, text: str, last: bool = False) -> str:
        """Text that nothing after it can change any more; all of it with the last piece."""
        for place, (pattern, replacement) in enumerate(REPLACED):
            *done, rest = (self._held[place] + text).split(pattern)
            end = len(rest) if last else len(rest) - _begun(rest, pattern)
            self._held[place] = rest[end:]
            text = replacement.join([*done, rest[:end]])
        return text


def _begun(text: str, pattern: str) -> int:
    """How many of the pattern's first characters the text ends with, not all of them."""
    return next((size for size in range(len(pattern) - 1, 0, -1) if text.endswith(pattern[:size])), 0)


class Detokenizer:
    """The text of one row of tokens. Special tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cleanup = Cleanup() if tokenizer.cleans_up == "standard" else None
        self._window: list[int] = []
        self._text = ""  # of the window
        self._given = 0  # characters of it that have been given out
        self._behind = False  # whether tokens have come since the window was read
        self._limit = WINDOW

    def fork(self) -> "Detokenizer":
        other = Detokenizer.__new__(Detokenizer)
        other._tokenizer = self._tokenizer
        other._cleanup = None if self._cleanup is None else self._cleanup.fork()
        other._window = self._window.copy()
        other._text, other._given = self._text, self._given
        other._behind, other._limit = self._behind, self._limit
        return other

    def push(self, *tokens: int) -> str:
        """Text that has become certain with these tokens."""
        kept = [token for token in tokens if self._tokenizer.is_read(token)]
        if not kept:
            return ""
        self._window += kept
        self._behind = True
        if self._tokenizer.cleans_up == "unknown" or kept[-1] in self._tokenizer.byte_ids:
            return ""
        self._read()
        certain = len(self._text) - self._text.endswith(UNFINISHED)
        new = self._text[self._given : certain]
        self._given = max(self._given, certain)
        if len(self._window) > self._limit:
            self._shorten()
        return new if self._cleanup is None else self._cleanup.push(new)

    def rest(self) -> str:
        """What is held back, as it reads if no token follows."""
        self._read()
        rest = self._text[self._given :]
        return rest if self._cleanup is None else self._cleanup.fork().push(rest, last=True)

    def _read(self) -> None:
        if not self._behind:
            return
        if self._tokenizer.cleans_up == "unknown":
            self._text = self._tokenizer.decode(self._window, skip_special_tokens=True)
        else:
            self._text = self._tokenizer.decode_uncleaned(self._window)
        self._behind = False

    def _shorten(self) -> None:
        """Go on from the newest tokens, if they have text for the next one to stand after."""
        text = self._tokenizer.decode_uncleaned(self._window[-TAIL:])
        if not text.strip():
            self._limit *= 2
            return
        self._window, self._text, self._limit = self._window[-TAIL:], text, WINDOW
        self._given = len(text) - text.endswith(UNFINISHED)
