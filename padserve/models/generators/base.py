"""What generates: one step over the new tokens of many sequences, and for encoder-decoders the sources they look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from padserve.attention.cached import StepAttention


@dataclass(frozen=True, slots=True)
class Source:
    """An encoded source: keys and values of every decoder layer, each ``[1, num_heads, length, head_dim]``.

    Computed once; every beam looks at the same.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int


@dataclass(frozen=True, slots=True)
class Step:
    """The new tokens of all sequences as one stream.

    ``positions`` count from 0 in each sequence. ``wanted``: rows whose logits are needed. ``sources``: for
    encoder-decoders, consecutive rows that look at one source, and how many they are.
    """

    input_ids: Tensor  # [rows]
    positions: Tensor  # [rows]
    attention: StepAttention
    wanted: Tensor  # [wanted]
    sources: tuple[tuple[Source, int], ...] = ()


class Generator(Protocol):
    """``window``: tokens that a sequence may have in all, None for no limit."""

    num_layers: int
    vocab_size: int
    window: int | None

    def step(self, step: Step) -> Tensor:
        """Run the new tokens. Returns float32 logits ``[wanted, vocab_size]``."""

    def encode(self, sources: Sequence[Sequence[int]]) -> list[Source]:
        """Encode source texts, all in one packed stream. Only encoder-decoders can."""


def look_at_sources(query: Tensor, layer: int, sources: Sequence[tuple[Source, int]], scale: float) -> Tensor:
    """Cross-attention: ``query`` ``[rows, num_heads, head_dim]``, every row over the whole of its source."""
    if len(sources) == 1:
        return _look(query, sources[0][0].layers[layer], scale)
    parts = torch.split(query, [rows for _, rows in sources])
    return torch.cat(
        [_look(part, source.layers[layer], scale) for part, (source, _) in zip(parts, sources, strict=True)]
    )


def _look(query: Tensor, kept: tuple[Tensor, Tensor], scale: float) -> Tensor:
    key, value = kept
    attended = F.scaled_dot_product_attention(query.transpose(0, 1)[None], key, value, scale=scale)
    return attended[0].transpose(0, 1)
