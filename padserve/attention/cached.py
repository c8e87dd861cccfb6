"""Keys and values of all generated sequences, and the attention of one step over them.

Layout on a CPU: one tensor a layer, ``[slots, num_kv_heads, head_dim]``, a block being ``block_size`` consecutive
slots. Sequences that give one token each attend together, gathered to the longest of those that are about as long; a
sequence that gives several (a prompt's part, a draft to verify) attends by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Bias = Callable[[Tensor, int], Tensor]
"""(positions ``[rows]`` of queries, keys) -> ``[rows, num_heads, keys]``, added to the scores."""
NO_SLOT = 0
WASTE = 1.5
"""Rows attend together while the longest is at most so many times as long as the shortest, or short itself."""
SHORT = 64


@dataclass(frozen=True)
class Span:
    """One sequence's part of a step: rows ``start .. start + count`` of the stream, tokens ``first .. first + count``
    of the sequence, which stand in ``blocks`` of ``block_size`` tokens."""

    start: int
    count: int
    first: int
    blocks: Sequence[int]
    block_size: int

    @property
    def total(self) -> int:
        return self.first + self.count

    @cached_property
    def slots(self) -> Tensor:
        """Where its tokens stand, up to the last of this step: ``[first + count]``."""
        starts = torch.tensor(self.blocks)[:, None] * self.block_size
        return (starts + torch.arange(self.block_size)).flatten()[: self.total]


class KVStore:
    """``num_slots``: blocks x block size. A layer's tensors are made when it first writes, in the dtype it writes."""

    def __init__(self, num_layers: int, num_slots: int, block_size: int) -> None:
        self._num_slots, self._block_size = num_slots, block_size
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """``key, value``: ``[rows, num_kv_heads, head_dim]``. Returns the layer's whole tensors."""
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            keys = self._keys[layer] = key.new_zeros((self._num_slots, *key.shape[1:]))
            values = self._values[layer] = value.new_zeros((self._num_slots, *value.shape[1:]))
        keys[slots] = key
        values[slots] = value
        return keys, values

    @torch.inference_mode()
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(from, to) blocks, for every layer."""
        size = self._block_size
        for tensor in (*self._keys, *self._values):
            if tensor is not None:
                for source, target in pairs:
                    tensor[target * size : (target + 1) * size] = tensor[source * size : (source + 1) * size]


class StepAttention:
    """Self-attention of one step, over what the store holds and what the step adds."""

    def __init__(self, store: KVStore, spans: Sequence[Span]) -> None:
        self._store = store
        self.spans = tuple(spans)
        self._written = torch.cat([span.slots[span.first :] for span in spans])
        singles = sorted((span for span in spans if span.count == 1), key=lambda span: span.total)
        self._groups = [_Group.of(part) for part in _alike(singles)]
        self._several = [span for span in spans if span.count > 1]

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None = None,
        bias: Bias | None = None,
    ) -> Tensor:
        """``query``: ``[rows, num_heads, head_dim]``; ``key, value``: ``[rows, num_kv_heads, head_dim]``.

        A token sees itself and what comes before it, within ``window`` tokens, itself included. Returns ``[rows,
        num_heads, head_dim]``.
        """
        keys, values = self._store.write(layer, self._written, key, value)
        output = torch.empty_like(query)
        grouped = query.shape[1] != key.shape[1]
        for group in self._groups:
            k, v = keys[group.slots].transpose(1, 2), values[group.slots].transpose(1, 2)
            q = query[group.rows][:, :, None]  # [sequences, num_heads, 1, head_dim]
            mask = group.mask(window, bias, query.dtype)
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
            output[group.rows] = attended[:, :, 0]
        for span in self._several:
            rows = slice(span.start, span.start + span.count)
            q = query[rows].transpose(0, 1)[None]
            k, v = keys[span.slots].transpose(0, 1)[None], values[span.slots].transpose(0, 1)[None]
            mask = _causal(span, window, bias, query.dtype)
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
            output[rows] = attended[0].transpose(0, 1)
        return output


def _alike(singles: Sequence[Span]) -> list[list[Span]]:
    """Sequences in order of length, in groups of like length."""
    groups: list[list[Span]] = []
    for span in singles:
        if groups and span.total <= max(SHORT, WASTE * groups[-1][0].total):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences that give one token each. ``slots``: ``[sequences, longest]``, `NO_SLOT` beyond a sequence's end."""

    rows: Tensor
    slots: Tensor
    totals: Tensor

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "_Group":
        slots = torch.nn.utils.rnn.pad_sequence([span.slots for span in spans], batch_first=True, padding_value=NO_SLOT)
        rows = torch.tensor([span.start for span in spans])
        return cls(rows, slots, torch.tensor([span.total for span in spans]))

    def mask(self, window: int | None, bias: Bias | None, dtype: torch.dtype) -> Tensor | None:
        """``[sequences, 1 or num_heads, 1, longest]``; None where every key is seen."""
        longest = self.slots.shape[1]
        places = torch.arange(longest)
        seen = places[None] < self.totals[:, None]
        if window is not None:
            seen &= places[None] >= self.totals[:, None] - window
        if bias is not None:
            added = bias(self.totals - 1, longest).to(dtype)
            return added.masked_fill(~seen[:, None], float("-inf"))[:, :, None]
        return None if bool(seen.all()) else seen[:, None, None]


def _causal(span: Span, window: int | None, bias: Bias | None, dtype: torch.dtype) -> Tensor:
    """``[1, 1 or num_heads, count, total]``."""
    queries = torch.arange(span.first, span.total)
    places = torch.arange(span.total)
    seen = places[None] <= queries[:, None]
    if window is not None:
        seen &= places[None] > queries[:, None] - window
    if bias is not None:
        added = bias(queries, span.total).to(dtype)  # [count, num_heads, total]
        return added.masked_fill(~seen[:, None], float("-inf")).transpose(0, 1)[None]
    return seen[None, None]


NAME = "padserve_cached"


def cached_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    step_attention: StepAttention | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The signature that transformers calls. ``sliding_window`` counts the token itself."""
    if step_attention is None:
        raise RuntimeError("cached attention was called without step_attention; the model drops keyword arguments")
    if softcap is not None:
        raise NotImplementedError("attention with capped scores is not served")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return step_attention.attend(layer, q, k, v, scale, sliding_window)[None], None


def register() -> str:
    """Make the cached attention known to transformers (idempotent) and return its name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    from padserve.attention.packed import no_mask

    AttentionInterface.register(NAME, cached_attention_forward)
    AttentionMaskInterface.register(NAME, no_mask)
    return NAME
