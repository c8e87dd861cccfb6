"""Tokens that say which of them are special. Not a route of its own: compatible routes show it."""

from padserve.tasks.tokenize import Tokenize, TokenizeResult
from padserve.text.tokenizer import Tokenizer, Tokens


class MarkedTokensResult(TokenizeResult, frozen=True, kw_only=True):
    """``special``: true for a token that the tokenizer added to the text."""

    special: list[bool]


class TokenizeMarked(Tokenize):
    """/tokenize, with a `MarkedTokensResult` for each input."""

    def described(self, tokens: Tokens, tokenizer: Tokenizer) -> MarkedTokensResult:
        plain = super().described(tokens, tokenizer)
        return MarkedTokensResult(
            truncated=plain.truncated,
            ids=plain.ids,
            tokens=plain.tokens,
            offsets=plain.offsets,
            special=[part is None for part in tokens.parts],
        )
