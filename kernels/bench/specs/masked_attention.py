"""Attention over padded batches, padding on either side, causal or not."""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.attention import flex_attention_for
from bench.inputs import Draw
from bench.spec import OURS, Case, Contender, Shape, Spec

Way = Callable[[], Tensor]


def prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> Case:
    from padserve_kernels.masked_attention import Padding, masked_attention
    from padserve_kernels.masked_attention.reference import masked_attention_reference

    draw = Draw(dtype, device)
    batch, length, dim = int(shape["batch"]), int(shape["length"]), int(shape["head_dim"])
    heads, kv_heads = int(shape["heads"]), int(shape["kv_heads"])
    lengths, causal = draw.lengths(batch, length), bool(shape["causal"])
    padding = cast("Padding", shape["padding"])
    query, key, value = (draw.normal(batch, count, length, dim) for count in (heads, kv_heads, kv_heads))
    scale, left = dim**-0.5, padding == "left"
    real = tokens(lengths, length, left)

    def without_padding(output: Tensor) -> Tensor:
        return output.masked_fill(~real[:, None, :, None], 0.0)

    return Case(
        lambda: masked_attention_reference(query, key, value, lengths, scale, causal, left),
        {
            OURS: Contender(lambda: masked_attention(query, key, value, lengths, scale, causal, padding)),
            "torch_sdpa": Contender(sdpa(query, key, value, real, scale, causal), without_padding),
            "torch_flex": Contender(flex(query, key, value, real, scale, causal), without_padding),
        },
    )


def tokens(lengths: Tensor, length: int, left: bool) -> Tensor:
    """``[batch, length]``, True at tokens."""
    slots = torch.arange(length, device=lengths.device)[None, :]
    return slots >= length - lengths[:, None] if left else slots < lengths[:, None]


def sdpa(query: Tensor, key: Tensor, value: Tensor, real: Tensor, scale: float, causal: bool) -> Way:
    """Under a boolean mask; that and the repeated key heads, without which it has no fused kernel, made beforehand."""
    group = query.shape[1] // key.shape[1]
    k, v = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    mask = real[:, None, None, :]
    if causal:
        mask = mask & torch.ones(real.shape[1], real.shape[1], dtype=torch.bool, device=real.device).tril()
    return lambda: F.scaled_dot_product_attention(query, k, v, mask, scale=scale)


def flex(query: Tensor, key: Tensor, value: Tensor, real: Tensor, scale: float, causal: bool) -> Way:
    """Under a block mask, made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        both = real[batch, i] & real[batch, j]
        return both & (j <= i) if causal else both

    mask = create_block_mask(seen, len(real), None, real.shape[1], real.shape[1], device=real.device)
    attend, gqa = flex_attention_for(real.device), key.shape[1] != query.shape[1]
    return lambda: attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=gqa)


WIDE: Shape = {"heads": 16, "kv_heads": 4, "head_dim": 128}
SPEC = Spec(
    shapes=(
        {"batch": 32, "length": 512, "heads": 12, "kv_heads": 12, "head_dim": 64, "causal": 0, "padding": "right"},
        {"batch": 32, "length": 128, "heads": 12, "kv_heads": 12, "head_dim": 32, "causal": 0, "padding": "right"},
        {"batch": 8, "length": 2048, **WIDE, "causal": 0, "padding": "left"},
        {"batch": 8, "length": 2048, **WIDE, "causal": 1, "padding": "right"},
        {"batch": 8, "length": 2048, **WIDE, "causal": 1, "padding": "left"},
    ),
    tiny={"batch": 3, "length": 9, "heads": 4, "kv_heads": 2, "head_dim": 16, "causal": 1, "padding": "left"},
    prepare=prepare,
)
