"""Keys and values of all generated sequences, and the attention of one step over them.

Layout on a CPU: one tensor a layer, ``[slots, num_kv_heads, head_dim]``, a block being ``block_size`` consecutive
slots. Sequences that give one token each attend together, gathered to the longest of those that are about as long, and
so do those that give a few (a draft to verify); one that gives many (a prompt's part) attends by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Bias = Callable[[Tensor, Tensor], Tensor]
"""Positions of queries ``[sequences, width]`` and of keys ``[sequences, longest]`` -> what is added to the scores,
``[sequences, num_heads, width, longest]``."""
NO_SLOT = 0
WASTE = 1.5
"""Rows attend together while the longest is at most so many times as long as the shortest, or short itself."""
SHORT = 64
FEW = 32


@dataclass(frozen=True)
class Span:
    """One sequence's part of a step: rows ``start .. start + count`` of the stream, tokens ``first .. first + count``
    of the sequence, which stand in ``blocks`` of ``block_size`` tokens.

    ``parents``: where its new tokens are a tree, the one before each, as a place among them; -1 for the token before
    them all. A parent stands before its children. None: each comes after the one before.
    """

    start: int
    count: int
    first: int
    blocks: Sequence[int]
    block_size: int
    parents: tuple[int, ...] | None = None

    @property
    def total(self) -> int:
        return self.first + self.count

    @cached_property
    def slots(self) -> Tensor:
        """Where its tokens stand, up to the last of this step: ``[first + count]``."""
        starts = torch.tensor(self.blocks)[:, None] * self.block_size
        return (starts + torch.arange(self.block_size)).flatten()[: self.total]

    @property
    def positions(self) -> list[int]:
        """In the sequence, of each new token."""
        if self.parents is None:
            return list(range(self.first, self.total))
        found: list[int] = []
        for parent in self.parents:
            found.append(self.first if parent < 0 else found[parent] + 1)
        return found


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
        self._groups = [_Group(part) for part in _alike(spans)]

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
            q = query[group.rows].transpose(1, 2)  # [sequences, num_heads, width, head_dim]
            mask = group.mask(window, bias, query.dtype)
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
            output[group.rows] = attended.transpose(1, 2)
        return output


def _alike(spans: Sequence[Span]) -> list[list[Span]]:
    """Sequences in groups of like length, those that give one token, a few and many apart."""
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (min(span.count, 2), span.total)):
        if groups and _is_like(groups[-1][0], span):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _is_like(shortest: Span, span: Span) -> bool:
    alike = (shortest.count == 1) == (span.count == 1) and max(shortest.count, span.count) <= FEW
    return alike and span.total <= max(SHORT, WASTE * shortest.total)


class _Group:
    """Sequences that attend together. ``rows``: ``[sequences, width]`` of the stream, a sequence's last one repeated
    beyond its end. ``slots``: ``[sequences, longest]``, `NO_SLOT` beyond it."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.slots = torch.nn.utils.rnn.pad_sequence(
            [span.slots for span in spans], batch_first=True, padding_value=NO_SLOT
        )
        starts, counts, firsts = torch.tensor([(span.start, span.count, span.first) for span in spans]).T[:, :, None]
        places = torch.minimum(torch.arange(max(span.count for span in spans)), counts - 1)
        self.rows = starts + places
        self._queries = firsts + places  # positions, [sequences, width]
        self._keys = torch.arange(self.slots.shape[1]).repeat(len(spans), 1)  # positions, [sequences, longest]
        self._seen = self._keys[:, None] <= self._queries[:, :, None]
        for index, span in enumerate(spans):
            if span.parents is not None:
                self._grow(index, span, places[index])
        self._masks: dict[tuple[int | None, Bias | None], Tensor | None] = {}

    def _grow(self, index: int, span: Span, places: Tensor) -> None:
        """A sequence's new tokens are a tree."""
        positions, new = torch.tensor(span.positions), slice(span.first, span.total)
        self._queries[index] = positions[places]
        self._keys[index, new] = positions
        self._seen[index, :, new] = _ancestors(span)[places]
        self._seen[index, :, span.total :] = False

    def mask(self, window: int | None, bias: Bias | None, dtype: torch.dtype) -> Tensor | None:
        """``[sequences, 1 or num_heads, width, longest]``; None where every key is seen. Made once for like layers."""
        if (window, bias) not in self._masks:
            self._masks[window, bias] = self._mask(window, bias, dtype)
        return self._masks[window, bias]

    def _mask(self, window: int | None, bias: Bias | None, dtype: torch.dtype) -> Tensor | None:
        seen = self._seen
        if window is not None:
            seen = seen & (self._keys[:, None] > self._queries[:, :, None] - window)
        if bias is not None:
            return bias(self._queries, self._keys).to(dtype).masked_fill(~seen[:, None], float("-inf"))
        return None if bool(seen.all()) else seen[:, None]


def _ancestors(span: Span) -> Tensor:
    """``[count, count]``: which of a tree's tokens each of them comes after, itself included."""
    seen = torch.eye(span.count, dtype=torch.bool)
    for place, parent in enumerate(span.parents or ()):
        if parent >= 0:
            seen[place] |= seen[parent]
    return seen


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
