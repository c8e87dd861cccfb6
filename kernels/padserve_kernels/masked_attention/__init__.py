"""Masked attention: dense padded batches; the mask comes from the lengths inside the kernel, none is made in memory.

Row b of a batch holds ``lengths[b]`` tokens, first in the row where padding is on the right, last where it is on the
left. For query i and key j of row b, both tokens, and head h:

    score(i, j) = scale * <query[b, h, i], key[b, h // group, j]>
    seen(i, j)  = not causal or j <= i
    output[b, h, i] = sum_j softmax_j(score(i, j) over seen j) * value[b, h // group, j]

What stands in padding is never read, and the output there is zero.
"""

from typing import Literal

from torch import Tensor

from padserve_kernels.dispatch import use_triton
from padserve_kernels.masked_attention.reference import masked_attention_reference

__all__ = ["Padding", "masked_attention"]

Padding = Literal["left", "right"]


def masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    causal: bool = False,
    padding: Padding = "right",
) -> Tensor:
    """Attention within the tokens of each row of a padded batch.

    ``query``: ``[batch, num_heads, length, head_dim]``; ``key, value``: ``[batch, num_kv_heads, length, head_dim]``;
    num_kv_heads divides num_heads; any strides with the last dimension contiguous. ``lengths``: ``[batch]`` ints;
    one above ``length`` counts as ``length``. Returns ``[batch, num_heads, length, head_dim]`` in the query's dtype.
    Errors: `ValueError` on shapes that do not fit and on another ``padding``.
    """
    _check(query, key, value, lengths, padding)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    left = padding == "left"
    if use_triton(query):
        from padserve_kernels.masked_attention.triton import masked_attention_triton

        return masked_attention_triton(query, key, value, lengths, scale, causal, left)
    return masked_attention_reference(query, key, value, lengths, scale, causal, left)


def _check(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, padding: str) -> None:
    if query.ndim != 4 or key.ndim != 4 or key.shape != value.shape:
        raise ValueError(
            "query, key, value must be [batch, heads, length, dim], "
            f"got {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        )
    batch, num_heads, length, head_dim = query.shape
    num_kv_heads = key.shape[1]
    if key.shape != (batch, num_kv_heads, length, head_dim) or num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"query {tuple(query.shape)} and key {tuple(key.shape)} do not fit together")
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ValueError(f"lengths must be [{batch}] ints, got {tuple(lengths.shape)} {lengths.dtype}")
    if any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        raise ValueError("the last dimension of query, key and value must be contiguous")
    if padding not in ("left", "right"):
        raise ValueError(f"padding must be 'left' or 'right', got {padding!r}")
