"""/tokenize: token ids, strings and offsets. Every model serves it; nothing is run."""

from collections.abc import Sequence
from typing import get_args

from padserve.core import Head, ModelSpec, Output
from padserve.errors import PadserveError
from padserve.tasks.base import (
    Finished,
    Plan,
    Result,
    Task,
    TaskRequest,
    Unit,
    as_list,
    finish_each,
    plan_each,
)
from padserve.text.tokenizer import Tokenizer, Tokens, cut


class TokenizeRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Any length is taken; ``truncate`` cuts to what the model could take."""

    inputs: str | list[str]
    add_special_tokens: bool = True


class TokenizeResult(Result, frozen=True, kw_only=True):
    """``offsets``: start and end of each token in characters of the text; null for tokenizers that have none."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]] | None

    @property
    def input_tokens(self) -> int:
        return len(self.ids)


class Tokenize(Task[TokenizeRequest]):
    name = "tokenize"
    summary = "Token ids, strings and offsets"
    heads = frozenset(get_args(Head))
    request_type = TokenizeRequest
    result_type = TokenizeResult

    def plan(self, request: TokenizeRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        def unit(text: str) -> Unit:
            tokens = tokenizer.tokens(text, add_special_tokens=request.add_special_tokens)
            if request.truncate and len(tokens) > spec.max_length:
                tokens = cut(tokens, spec.max_length, request.truncation_side, "longest_first")
            return Unit((), self.described(tokens, tokenizer))

        return plan_each(as_list(request.inputs), unit)

    def finish(
        self,
        request: TokenizeRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        return finish_each(plan, outputs, isinstance(request.inputs, list), lambda unit, _: unit.state)

    def described(self, tokens: Tokens, tokenizer: Tokenizer) -> TokenizeResult:
        ids: list[int] = tokens.input_ids.tolist()
        return TokenizeResult(
            truncated=tokens.truncated,
            ids=ids,
            tokens=[tokenizer.id_to_token(token_id) for token_id in ids],
            offsets=None if tokens.offsets is None else list(tokens.offsets),
        )
