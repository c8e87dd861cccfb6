"""Torch's ways to attend within the sequences of a batch, as contenders for the specs.

All are given packed streams ``[total_tokens, heads, head_dim]`` and answer to that layout.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.inputs import cumulative
from bench.spec import Contender, compiled

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's: (score, batch, head, query token, key token) -> score."""


class Ragged:
    """Where the tokens of a packed stream stand in its padded batch."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        self.cu_seqlens = cumulative(lengths)
        self.batch, self.longest = len(lengths), int(lengths.max())
        self.real = torch.arange(self.longest, device=lengths.device)[None, :] < lengths[:, None]  # [batch, longest]
        self.seq, self.position = self.real.nonzero(as_tuple=True)  # [total_tokens] each

    def padding_bias(self, dtype: torch.dtype) -> Tensor:
        """``[batch, 1, 1, longest]``, minus infinity at keys in padding, else zero."""
        bias = torch.zeros(self.real.shape, dtype=dtype, device=self.real.device)
        return bias.masked_fill_(~self.real, float("-inf"))[:, None, None, :]

    @property
    def total(self) -> int:
        return len(self.seq)

    def pad(self, rows: Tensor) -> Tensor:
        """``[total_tokens, heads, head_dim]`` -> ``[batch, heads, longest, head_dim]``, zeros in padding."""
        padded = rows.new_zeros(self.batch, self.longest, *rows.shape[1:])
        padded[self.real] = rows
        return padded.transpose(1, 2)

    def pack(self, padded: Tensor) -> Tensor:
        """The way back."""
        return padded.transpose(1, 2)[self.real]


def sdpa_padded(ragged: Ragged, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Contender:
    """`scaled_dot_product_attention` over a padded batch, keys in padding masked by a boolean tensor.

    Key heads are repeated beforehand: with fewer of them and a mask it has no fused kernel.
    """
    group = query.shape[1] // key.shape[1]
    q = ragged.pad(query)
    k, v = (ragged.pad(rows).repeat_interleave(group, 1) for rows in (key, value))
    mask = ragged.real[:, None, None, :]
    return Contender(lambda: F.scaled_dot_product_attention(q, k, v, mask, scale=scale), ragged.pack)


def sdpa_padded_bias(
    ragged: Ragged, query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Callable[[Tensor, Tensor], Tensor]
) -> Contender:
    """The same with ``bias(query, key)``, of padded batches -> ``[batch, heads, longest, longest]``, as its mask."""
    q, k, v = (ragged.pad(rows) for rows in (query, key, value))
    return Contender(lambda: F.scaled_dot_product_attention(q, k, v, bias(q, k), scale=scale), ragged.pack)


def torch_varlen(ragged: Ragged, query: Tensor, key: Tensor, value: Tensor, scale: float) -> dict[str, Contender]:
    """`torch.nn.attention.varlen`, a CUDA kernel of half precision; none where that is not so or torch has it not."""
    if not query.is_cuda or query.dtype == torch.float32:
        return {}
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return {}
    borders, longest = ragged.cu_seqlens, ragged.longest
    gqa: dict[str, Any] = {"enable_gqa": True} if key.shape[1] != query.shape[1] else {}

    def call() -> Tensor:
        output = varlen_attn(query, key, value, borders, borders, longest, longest, scale=scale, **gqa)
        assert isinstance(output, Tensor)
        return output

    return {"torch_varlen": Contender(call)}


def flex_packed(
    ragged: Ragged, query: Tensor, key: Tensor, value: Tensor, scale: float, score_mod: ScoreMod | None = None
) -> Contender:
    """FlexAttention over the packed stream, blocks of two sequences that do not meet left out."""
    from torch.nn.attention.flex_attention import create_block_mask

    seq, total = ragged.seq, ragged.total

    def within(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return seq[i] == seq[j]

    mask = create_block_mask(within, None, None, total, total, device=query.device)
    q, k, v = (rows.transpose(0, 1)[None] for rows in (query, key, value))
    flex = flex_attention_for(query.device)
    gqa = key.shape[1] != query.shape[1]
    return Contender(
        lambda: flex(q, k, v, score_mod=score_mod, block_mask=mask, scale=scale, enable_gqa=gqa),
        lambda output: output[0].transpose(0, 1),
    )


def flex_attention_for(device: torch.device) -> Callable[..., Tensor]:
    """FlexAttention, compiled on a GPU, where only that is its kernel."""
    from torch.nn.attention.flex_attention import flex_attention

    attend: Callable[..., Any] = flex_attention
    return compiled(attend) if device.type == "cuda" else attend
