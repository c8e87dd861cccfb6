"""From hidden states of a packed stream to one output a sequence; heads see only the rows they need."""

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from padserve.core import Batch, Output

HeadRunner = Callable[[Tensor, Batch], list[Output]]
"""(hidden ``[total_tokens, hidden]``, batch) -> one output a sequence."""


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

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = headed(inputs_embeds=hidden).logits
        return logits.float()

    return head


def masked_lm_head(head: Callable[[Tensor], Tensor]) -> HeadRunner:
    """Logits at the gathered positions only, never ``[total_tokens, vocab]``."""

    def run(hidden: Tensor, batch: Batch) -> list[Output]:
        rows = hidden[torch.from_numpy(batch.gather).to(hidden.device)]
        logits = head(rows[None])[0].cpu().numpy()
        return split_rows(logits, batch.gather_cu_seqlens)

    return run


def sequence_head(head: Callable[[Tensor], Tensor], first_token: bool) -> HeadRunner:
    def run_first(hidden: Tensor, batch: Batch) -> list[Output]:
        first = torch.from_numpy(batch.cu_seqlens[:-1]).to(hidden.device)
        return list(head(hidden[first][:, None]).cpu().numpy())

    def run_whole(hidden: Tensor, batch: Batch) -> list[Output]:
        parts = torch.split(hidden, batch.lengths.tolist())
        return [head(part[None])[0].cpu().numpy() for part in parts]

    return run_first if first_token else run_whole


def token_head(head: Callable[[Tensor], Tensor]) -> HeadRunner:
    def run(hidden: Tensor, batch: Batch) -> list[Output]:
        return split_rows(head(hidden[None])[0].cpu().numpy(), batch.cu_seqlens)

    return run


def embedding_head(modules: Sequence[Any]) -> HeadRunner:
    """sentence-transformers' Pooling over the packed stream, then the modules after it on the CPU, in float32."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    pooling, rest = modules[0], modules[1:]

    def pooling_for(mode: str | None) -> Any:
        if mode is None:
            return pooling
        return Pooling(pooling.embedding_dimension, pooling_mode=mode, include_prompt=pooling.include_prompt)

    def run(hidden: Tensor, batch: Batch) -> list[Output]:
        outputs: list[Output | None] = [None] * batch.num_seqs
        for (mode, prompt), indices in _groups(batch).items():
            rows, cu_seqlens = _select(hidden.float(), batch, indices)
            features: dict[str, Any] = {
                "token_embeddings": rows[None],
                "cu_seq_lens_q": cu_seqlens,
                "prompt_length": prompt,
            }
            features = {"sentence_embedding": pooling_for(mode)(features)["sentence_embedding"].cpu()}
            for module in rest:
                features = module(features)
            embeddings = features["sentence_embedding"].float().cpu().numpy()
            for index, embedding in zip(indices, embeddings, strict=True):
                outputs[index] = embedding
        return [output for output in outputs if output is not None]

    return run


def _groups(batch: Batch) -> dict[tuple[str | None, int], list[int]]:
    """Sequences that can be pooled together: same mode, same prompt length."""
    groups: dict[tuple[str | None, int], list[int]] = {}
    for index, key in enumerate(zip(batch.poolings, batch.prompt_tokens, strict=True)):
        groups.setdefault(key, []).append(index)
    return groups


def _select(hidden: Tensor, batch: Batch, indices: list[int]) -> tuple[Tensor, Tensor]:
    if len(indices) == batch.num_seqs:
        return hidden, torch.from_numpy(batch.cu_seqlens).to(hidden.device)
    starts, stops = batch.cu_seqlens[:-1], batch.cu_seqlens[1:]
    rows = torch.cat([hidden[starts[i] : stops[i]] for i in indices])
    lengths = batch.lengths[indices]
    cu_seqlens = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])).to(hidden.device)
    return rows, cu_seqlens


def split_rows(rows: Output, cu_seqlens: np.ndarray[Any, np.dtype[np.int64]]) -> list[Output]:
    return [rows[start:stop] for start, stop in pairwise(cu_seqlens)]
