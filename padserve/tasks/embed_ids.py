"""Embeddings of token ids that the client has made itself. Not a route of its own: compatible routes take ids."""

import msgspec
import numpy as np

from padserve.core import ModelSpec
from padserve.errors import InputTooLong, InvalidField
from padserve.tasks.base import Plan, Unit, plan_each
from padserve.tasks.embed import Embed, EmbedRequest, check_options
from padserve.text.tokenizer import Tokenizer, Tokens, cut


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
            tokens = _tokens(ids, spec, tokenizer)
            if len(tokens) > spec.max_length:
                if not request.truncate:
                    raise InputTooLong(len(tokens), spec.max_length)
                tokens = cut(tokens, spec.max_length, request.truncation_side, "longest_first")
            return Unit((tokens.encoding(pooling=request.pooling),))

        return plan_each(request.ids, unit)


def _tokens(ids: list[int], spec: ModelSpec, tokenizer: Tokenizer) -> Tokens:
    """Errors: `InvalidField` for an id that the model does not have."""
    known = spec.vocab_size or tokenizer.vocab_size
    wrong = next((one for one in ids if not 0 <= one < known), None)
    if wrong is not None:
        raise InvalidField(
            f"token id {wrong} is none of the {known} of {spec.name!r}; "
            "send ids of this model's own tokenizer, as /tokenize gives them, or texts"
        )
    content = {tokenizer.unk_token_id, tokenizer.mask_token_id}
    special = tokenizer.all_special_ids - content
    takes_types = tokenizer.tokens("").token_type_ids is not None
    return Tokens(
        input_ids=np.array(ids, dtype=np.int64),
        token_type_ids=np.zeros(len(ids), dtype=np.int64) if takes_types else None,
        parts=tuple(None if one in special else 0 for one in ids),
        offsets=None,
        word_ids=None,
    )
