"""Embeddings of token ids that the client has made itself. Not a route of its own: compatible routes take ids."""

import msgspec

from padserve.core import ModelSpec
from padserve.errors import InvalidField
from padserve.tasks.base import Plan, Unit, plan_each
from padserve.tasks.embed import Embed, EmbedRequest, check_options
from padserve.tasks.ids import fitted, tokens_of
from padserve.text.tokenizer import Tokenizer


class EmbedIdsRequest(EmbedRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``ids``: as /tokenize gives them, special tokens included. They run as they are: no prompt is put before them."""

    ids: list[list[int]]
    inputs: str | list[str] = msgspec.field(default_factory=list)


class EmbedIds(Embed):
    """/embed, of an `EmbedIdsRequest`."""

    def plan(self, request: EmbedRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        check_options(request, spec)
        if not isinstance(request, EmbedIdsRequest):
            return super().plan(request, spec, tokenizer)
        if request.prompt is not None or request.prompt_name is not None:
            raise InvalidField("token ids take no prompt; put the prompt's own ids before them", field="prompt_name")

        def unit(ids: list[int]) -> Unit:
            tokens = fitted(tokens_of(ids, spec, tokenizer), spec.max_length, request)
            return Unit((tokens.encoding(pooling=request.pooling),))

        return plan_each(request.ids, unit)
