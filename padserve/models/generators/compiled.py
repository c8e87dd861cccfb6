"""Decoders whose step is one compiled call, where the processor has what that needs: Llama and its kin, BART's, T5's.

They give what the generators of torch give, and any checkpoint whose logits differ from the stock model's at load runs
with those instead.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from padserve.models.generators.base import Scores, Step
from padserve_kernels.decoder import DecoderWeights, compile_decoder

if TYPE_CHECKING:
    from padserve_kernels.decoder.compiled import CompiledDecoder, KeptSource, Rows

Array = npt.NDArray[Any]
Embed = Callable[[Tensor, Tensor], Tensor]
"""(input_ids, positions), each ``[rows]`` -> ``[rows, hidden]``."""
Turn = Callable[[Tensor], tuple[Tensor, Tensor]]
"""positions ``[rows]`` -> cosines and sines, each ``[rows, head_dim]``."""
EncodeSources = Callable[[Sequence[Sequence[int]]], tuple[Tensor, tuple[int, ...]]]
"""Source texts -> their hidden states ``[total_tokens, hidden]``, and the lengths."""
KeepSource = Callable[[Tensor], Tensor]
"""Hidden states -> a layer's keys and values of them, ``[2, num_heads, total_tokens, head_dim]``."""
TOKENS = 16
"""Of the kernel's blocks."""


class CompiledStore:
    """Keys and values of all layers. ``parts``: the kernel's blocks in one of ours."""

    def __init__(self, decoder: "CompiledDecoder", num_blocks: int, block_size: int) -> None:
        if block_size % TOKENS:
            raise NotImplementedError(f"compiled decoders need a block size that is a multiple of {TOKENS}")
        self.parts = block_size // TOKENS
        self.keys = decoder.new_keys(num_blocks * self.parts)
        self.values = decoder.new_values(num_blocks * self.parts)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            own = slice(source * self.parts, (source + 1) * self.parts)
            to = slice(target * self.parts, (target + 1) * self.parts)
            self.keys[:, to] = self.keys[:, own]
            self.values[:, to] = self.values[:, own]

    def blocks_of(self, blocks: Sequence[int], tokens: int) -> list[int]:
        """The kernel's blocks that hold a sequence's first tokens."""
        if self.parts == 1:
            return list(blocks[: -(-tokens // TOKENS)])
        return [block * self.parts + part for block in blocks for part in range(self.parts)][: -(-tokens // TOKENS)]


class CompiledGenerator:
    """See `padserve.models.generators.base.Generator`. ``encode_sources``, ``keep``: of encoder-decoders, the latter a
    function for each layer."""

    def __init__(
        self,
        weights: DecoderWeights,
        embed: Embed,
        window: int | None,
        turn: Turn | None = None,
        encode_sources: EncodeSources | None = None,
        keep: Sequence[KeepSource] = (),
    ) -> None:
        self._decoder = compile_decoder(weights)
        self._embed, self._turn, self._encode_sources, self._keep = embed, turn, encode_sources, keep
        self.window = window
        self.num_layers, self.vocab_size = self._decoder.num_layers, self._decoder.vocab_size
        widths = self._decoder.head_dim + self._decoder.head_width
        self.token_bytes = 4 * self.num_layers * self._decoder.num_kv_heads * widths

    def new_store(self, num_blocks: int, block_size: int) -> CompiledStore:
        return CompiledStore(self._decoder, num_blocks, block_size)

    @torch.inference_mode()
    def encode(self, sources: Sequence[Sequence[int]]) -> list["KeptSource"]:
        if self._encode_sources is None:
            raise NotImplementedError("a decoder has no sources")
        hidden, lengths = self._encode_sources(sources)
        layers = torch.stack([keep(hidden) for keep in self._keep]).float()  # [layers, 2, heads, tokens, head_dim]
        return [self._kept(part) for part in torch.split(layers, list(lengths), 3)]

    def _kept(self, layers: Tensor) -> "KeptSource":
        from padserve_kernels.decoder.compiled import KeptSource

        count, _, heads, length, head_dim = layers.shape
        keys = np.zeros((count, heads, head_dim, -(-length // TOKENS) * TOKENS), np.float32)
        values = np.zeros((count, heads, length, self._decoder.head_width), np.float32)
        keys[..., :length] = layers[:, 0].transpose(2, 3).numpy()
        values[..., :head_dim] = layers[:, 1].numpy()
        return KeptSource(keys, values, length)

    def step(self, step: Step) -> Scores:
        from padserve_kernels.decoder.compiled import NOTHING

        with torch.inference_mode():
            hidden = np.array(self._embed(step.input_ids, step.positions).float().numpy())
            cos, sin = (NOTHING, NOTHING) if self._turn is None else map(_numpy, self._turn(step.positions))
        store: CompiledStore = step.store
        logits = self._decoder(hidden, _rows(step, store), step.wanted.numpy(), store.keys, store.values, cos, sin)
        return Scores(torch.from_numpy(logits.values), logits.best.tolist(), logits.sound.tolist())


def _numpy(tensor: Tensor) -> Array:
    array: Array = np.ascontiguousarray(tensor.float().numpy())
    return array


def _rows(step: Step, store: CompiledStore) -> "Rows":
    from padserve_kernels.decoder.compiled import Rows

    blocks: list[int] = []
    starts = []
    for span in step.spans:
        if span.parents is not None:
            raise NotImplementedError("the compiled decoder has no trees of drafts")
        starts.append(len(blocks))
        blocks += store.blocks_of(span.blocks, span.total)
    spans = np.array([(span.start, span.count, span.first) for span in step.spans], np.int64).T
    first, counts, tokens = (np.ascontiguousarray(one) for one in spans)
    return Rows(first, counts, tokens, np.array(blocks, np.int64), np.array(starts, np.int64), step.sources)
