"""Token ids that a client has made itself, as tokens of an input."""

import numpy as np

from padserve.core import ModelSpec
from padserve.errors import InputTooLong, InvalidField
from padserve.tasks.base import TaskRequest
from padserve.text.tokenizer import Tokenizer, Tokens, cut


def tokens_of(ids: list[int], spec: ModelSpec, tokenizer: Tokenizer) -> Tokens:
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


def fitted(tokens: Tokens, max_length: int, request: TaskRequest) -> Tokens:
    """Within ``max_length`` tokens. Errors: `InputTooLong` when they are more and the request lets none be cut."""
    if len(tokens) <= max_length:
        return tokens
    if not request.truncate:
        raise InputTooLong(len(tokens), max_length)
    return cut(tokens, max_length, request.truncation_side, "longest_first")
