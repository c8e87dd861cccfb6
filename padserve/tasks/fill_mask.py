"""/fill-mask: the likeliest tokens for every mask of a text."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from padserve.core import Int64Array, ModelSpec, Output
from padserve.errors import InvalidField, NoMask, PadserveError
from padserve.tasks.base import (
    Finished,
    Plan,
    Task,
    TaskRequest,
    TaskResult,
    Unit,
    as_list,
    finish_each,
    plan_each,
)
from padserve.tasks.scores import best_first, softmax
from padserve.text.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")


class FillMaskRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``inputs``: texts with masks, ``[MASK]`` or ``<mask>`` for every model. ``targets``: score only these tokens."""

    inputs: str | list[str]
    top_k: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 5
    targets: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None


class MaskCandidate(msgspec.Struct, frozen=True):
    token: int
    token_str: str
    score: float
    sequence: str


class FillMaskResult(TaskResult, frozen=True, kw_only=True):
    """``masks``: one list a mask, best first."""

    masks: list[list[MaskCandidate]]


class FillMask(Task[FillMaskRequest]):
    name = "fill-mask"
    summary = "The likeliest tokens for every mask of a text"
    heads = frozenset({"masked-lm"})
    request_type = FillMaskRequest
    result_type = FillMaskResult

    def plan(self, request: FillMaskRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        if tokenizer.mask_token is None:
            raise NoMask(f"the tokenizer of model {spec.name!r} defines no mask token")
        targets = None if request.targets is None else target_ids(request.targets, tokenizer)

        def unit(text: str) -> Unit:
            tokens = tokenizer.fitted(
                with_own_mask(text, str(tokenizer.mask_token)),
                max_length=spec.max_length,
                truncate=request.truncate,
                side=request.truncation_side,
            )
            masks = np.flatnonzero(tokens.input_ids == tokenizer.mask_token_id).tolist()
            if not masks:
                cut = "; truncation cut it away" if tokens.truncated else ""
                raise NoMask(f"the input has no mask: write {tokenizer.mask_token} where a token is wanted{cut}")
            return Unit((tokens.encoding(gather=tuple(masks)),), (tokenizer, targets))

        return plan_each(as_list(request.inputs), unit)

    def finish(
        self,
        request: FillMaskRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        def result(unit: Unit, output: Sequence[Output]) -> FillMaskResult:
            encoding = unit.encodings[0]
            masks = [candidates(unit, logits, index, request.top_k) for index, logits in enumerate(output[0])]
            return FillMaskResult(tokens=len(encoding), truncated=encoding.truncated, masks=masks)

        return finish_each(plan, outputs, isinstance(request.inputs, list), result)


def with_own_mask(text: str, mask_token: str) -> str:
    """The text with every known mask written as the model's own."""
    for mask in MASKS:
        if mask != mask_token:
            text = text.replace(mask, mask_token)
    return text


def target_ids(targets: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Each target's token id, once. Errors: `InvalidField` for a target that is not one token."""
    vocabulary = tokenizer.vocabulary()
    ids: dict[int, None] = {}
    for target in targets:
        found = vocabulary.get(target)
        if found is None:
            pieces = tokenizer.tokens(target, add_special_tokens=False).input_ids.tolist()
            if len(pieces) != 1 or pieces[0] == tokenizer.unk_token_id:
                shown = " ".join(tokenizer.id_to_token(piece) for piece in pieces)
                raise InvalidField(
                    f"target {target!r} is not one token of the model: {shown or 'nothing'}", field="targets"
                )
            found = pieces[0]
        ids[found] = None
    return list(ids)


def candidates(unit: Unit, logits: Output, index: int, top_k: int) -> list[MaskCandidate]:
    """The best tokens for the mask ``index`` of a text; ``logits`` ``[vocab_size]``."""
    tokenizer, targets = unit.state
    encoding = unit.encodings[0]
    probabilities = softmax(logits)
    if targets is not None:
        chosen = [targets[place] for place in best_first(probabilities[targets])[:top_k]]
    else:
        top_k = min(top_k, len(probabilities))
        likeliest = np.argpartition(-probabilities, top_k - 1)[:top_k]
        likeliest.sort()
        chosen = [int(likeliest[place]) for place in best_first(probabilities[likeliest])]
    return [
        MaskCandidate(
            token=token,
            token_str=tokenizer.decode([token]),
            score=float(probabilities[token]),
            sequence=filled(tokenizer, encoding.input_ids, encoding.gather[index], token, len(encoding.gather) == 1),
        )
        for token in chosen
    ]


def filled(tokenizer: Tokenizer, input_ids: Int64Array, position: int, token: int, only_mask: bool) -> str:
    """The text with one mask filled; special tokens are shown only where other masks remain."""
    ids: list[int] = input_ids.tolist()
    ids[position] = token
    return tokenizer.decode([i for i in ids if i != tokenizer.pad_token_id], skip_special_tokens=only_mask)
