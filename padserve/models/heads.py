"""From hidden states of a packed stream to one output a sequence; heads see only the rows they need."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from padserve.core import Batch, Int64Array, Output


@dataclass(frozen=True, slots=True)
class HeadRunner:
    """``rows(batch)``: the rows of the packed stream that the head reads, None for all, so that an encoder's last layer
    can leave out the others. ``run(hidden, batch)``: one output a sequence, from the hidden states of those rows.

    ``takes_means(batch)``: whether it only needs the mean of each sequence; ``run_means(means)`` takes these, float32
    ``[num_seqs, hidden]``."""

    rows: Callable[[Batch], Int64Array | None]
    run: Callable[[Tensor, Batch], list[Output]]
    takes_means: Callable[[Batch], bool] = lambda batch: False
    run_means: Callable[[Output], list[Output]] = list

    def over_all(self, hidden: Tensor, batch: Batch) -> list[Output]:
        """From the hidden states of every row, ``[total_tokens, hidden]``."""
        return self.run(select_rows(hidden, self.rows(batch)), batch)


def select_rows(hidden: Tensor, rows: Int64Array | None) -> Tensor:
    return hidden if rows is None else hidden[torch.from_numpy(rows).to(hidden.device)]


def _all_rows(batch: Batch) -> None:
    return None


def _first_rows(batch: Batch) -> Int64Array:
    return batch.cu_seqlens[:-1]


class _GivenHidden(nn.Module):
    """Stands where a model had its encoder and returns the hidden states it is given as ``inputs_embeds``."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self._pool = _pooler(base)

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **_: Any) -> Any:
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=self._pool(inputs_embeds))


def _pooler(base: Any) -> Callable[[Any], Any]:
    pooler = getattr(base, "pooler", None)
    if pooler is None:
        return lambda hidden: None
    if hasattr(base, "pooler_activation"):  # ALBERT
        return lambda hidden: base.pooler_activation(base.pooler(hidden[:, 0]))
    return lambda hidden: base.pooler(hidden)


def head_over_hidden(model: Any) -> Callable[[Tensor], Tensor]:
    """The model's own head as a function from hidden states ``[n, length, hidden]`` to float32 logits.

    It shares the model's modules through a shallow copy whose encoder is `_GivenHidden`; the model stays whole.
    """
    headed = copy.copy(model)
    headed._modules = dict(model._modules)
    headed._modules[model.base_model_prefix] = _GivenHidden(model.base_model)
    dtype = model.dtype

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = headed(inputs_embeds=hidden.to(dtype)).logits
        return logits.float()

    return head


def masked_lm_head(head: Callable[[Tensor], Tensor]) -> HeadRunner:
    """Logits at the gathered positions only, never ``[total_tokens, vocab]``."""

    def run(hidden: Tensor, batch: Batch) -> list[Output]:
        logits = head(hidden[None])[0].cpu().numpy()
        return split_rows(logits, batch.gather_cu_seqlens)

    return HeadRunner(lambda batch: batch.gather, run)


def sequence_head(head: Callable[[Tensor], Tensor], first_token: bool) -> HeadRunner:
    def run_first(hidden: Tensor, batch: Batch) -> list[Output]:
        return list(head(hidden[:, None]).cpu().numpy())

    def run_whole(hidden: Tensor, batch: Batch) -> list[Output]:
        parts = torch.split(hidden, batch.lengths.tolist())
        return [head(part[None])[0].cpu().numpy() for part in parts]

    return HeadRunner(_first_rows, run_first) if first_token else HeadRunner(_all_rows, run_whole)


def token_head(head: Callable[[Tensor], Tensor]) -> HeadRunner:
    def run(hidden: Tensor, batch: Batch) -> list[Output]:
        return split_rows(head(hidden[None])[0].cpu().numpy(), batch.cu_seqlens)

    return HeadRunner(_all_rows, run)


def embedding_head(modules: Sequence[Any]) -> HeadRunner:
    """sentence-transformers' Pooling over the packed stream, then the modules after it on the CPU, in float32."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    pooling, rest = modules[0], modules[1:]

    def pooling_for(mode: str | None) -> Any:
        if mode is None:
            return pooling
        return Pooling(pooling.embedding_dimension, pooling_mode=mode, include_prompt=pooling.include_prompt)

    def takes_means(batch: Batch) -> bool:
        modes = {pooling.pooling_mode if mode is None else mode for mode in batch.poolings}
        return modes == {"mean"} and (pooling.include_prompt or not any(batch.prompt_tokens))

    def run_means(means: Output) -> list[Output]:
        return list(after(torch.from_numpy(means)) if rest else means)

    def after(embeddings: Tensor) -> Output:
        features: dict[str, Any] = {"sentence_embedding": embeddings}
        for module in rest:
            features = module(features)
        shaped: Output = features["sentence_embedding"].float().cpu().numpy()
        return shaped

    def rows_of(batch: Batch) -> Int64Array | None:
        """Where every sequence is pooled by its first token, or every one by its last."""
        modes = {pooling.pooling_mode if mode is None else mode for mode in batch.poolings}
        if modes == {"cls"} and not any(batch.prompt_tokens):
            return batch.cu_seqlens[:-1]
        if modes == {"lasttoken"} and not any(batch.prompt_tokens):
            return batch.cu_seqlens[1:] - 1
        return None

    def run(hidden: Tensor, batch: Batch) -> list[Output]:
        outputs: list[Output | None] = [None] * batch.num_seqs
        ends = batch.cu_seqlens if rows_of(batch) is None else np.arange(batch.num_seqs + 1)
        for (mode, prompt), indices in _groups(batch).items():
            rows, cu_seqlens = _select(hidden.float(), ends, indices)
            features: dict[str, Any] = {
                "token_embeddings": rows[None],
                "cu_seq_lens_q": cu_seqlens,
                "prompt_length": prompt,
            }
            embeddings = after(pooling_for(mode)(features)["sentence_embedding"].cpu())
            for index, embedding in zip(indices, embeddings, strict=True):
                outputs[index] = embedding
        return [output for output in outputs if output is not None]

    return HeadRunner(rows_of, run, takes_means, run_means)


def _groups(batch: Batch) -> dict[tuple[str | None, int], list[int]]:
    """Sequences that can be pooled together: same mode, same prompt length."""
    groups: dict[tuple[str | None, int], list[int]] = {}
    for index, key in enumerate(zip(batch.poolings, batch.prompt_tokens, strict=True)):
        groups.setdefault(key, []).append(index)
    return groups


def _select(hidden: Tensor, ends: Int64Array, indices: list[int]) -> tuple[Tensor, Tensor]:
    """``ends``: ``[num_seqs + 1]``, where each sequence's rows start in ``hidden``, and where the last one's end."""
    if len(indices) == len(ends) - 1:
        return hidden, torch.from_numpy(ends).to(hidden.device)
    rows = torch.cat([hidden[ends[i] : ends[i + 1]] for i in indices])
    lengths = np.diff(ends)[indices]
    return rows, torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])).to(hidden.device)


def split_rows(rows: Output, cu_seqlens: np.ndarray[Any, np.dtype[np.int64]]) -> list[Output]:
    return [rows[start:stop] for start, stop in pairwise(cu_seqlens)]
