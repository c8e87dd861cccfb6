"""What generates: one step over the new tokens of many sequences, and for encoder-decoders the sources they look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from padserve.attention.cached import KVStore, Span, StepAttention


@dataclass(frozen=True, slots=True)
class Source:
    """An encoded source: keys and values of every decoder layer, each ``[1, num_heads, length, head_dim]``.

    Computed once; every beam looks at the same.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int


class Store(Protocol):
    """Keys and values of all sequences, in blocks."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(from, to) blocks, for every layer."""


@dataclass(frozen=True)
class Step:
    """The new tokens of all sequences as one stream.

    ``positions`` count from 0 in each sequence. ``spans``: the sequences, in the order of their rows. ``wanted``: rows
    whose logits are needed. ``sources``: for encoder-decoders, consecutive rows that look at one source, and how many
    they are.
    """

    input_ids: Tensor  # [rows]
    positions: Tensor  # [rows]
    store: Any
    spans: Sequence[Span]
    wanted: Tensor  # [wanted]
    sources: tuple[tuple[Any, int], ...] = ()

    @cached_property
    def attention(self) -> StepAttention:
        return StepAttention(self.store, self.spans)


@dataclass(frozen=True, slots=True)
class Scores:
    """``logits``: float32 ``[wanted, vocab_size]``. ``best``: each row's likeliest token. ``sound``: whether a row has
    no NaN and something finite."""

    logits: Tensor
    best: list[int]
    sound: list[bool]

    @classmethod
    def of(cls, logits: Tensor) -> "Scores":
        sound = torch.isfinite(logits).any(-1) & ~torch.isnan(logits).any(-1)
        return cls(logits, logits.argmax(-1).tolist(), sound.tolist())


class Generator(Protocol):
    """``window``: tokens that a sequence may have in all, None for no limit."""

    num_layers: int
    vocab_size: int
    window: int | None
    token_bytes: int  # that keys and values of a token take

    def new_store(self, num_blocks: int, block_size: int) -> Store:
        """Room for keys and values. Errors: `NotImplementedError` for a block size that the generator cannot use."""

    def step(self, step: Step) -> Scores:
        """Run the new tokens."""

    def encode(self, sources: Sequence[Sequence[int]]) -> Sequence[Any]:
        """What steps need of source texts, all encoded in one packed stream. Only encoder-decoders can."""


class TorchStored:
    """What generators that run modules of torch keep keys and values in."""

    num_layers: int

    def new_store(self, num_blocks: int, block_size: int) -> KVStore:
        return KVStore(self.num_layers, num_blocks * block_size, block_size)


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
