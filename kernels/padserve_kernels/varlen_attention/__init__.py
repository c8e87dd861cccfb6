"""Varlen attention: every sequence of a packed stream attends within itself; no mask tensor is made.

For sequence s with rows ``cu_seqlens[s] .. cu_seqlens[s + 1]``, query i and key j of it and head h:

    score(i, j) = scale * <query[i, h], key[j, h // group]> + bias[h, i, j]
    seen(i, j)  = (not causal or j <= i) and (window is None or |i - j| <= window)
    output[i, h] = sum_j softmax_j(score(i, j) over seen j) * value[j, h // group]

A query that sees no key gives zeros.
"""

from torch import Tensor

from padserve_kernels.dispatch import use_triton
from padserve_kernels.varlen_attention.reference import varlen_attention_reference

__all__ = ["varlen_attention"]


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention within each sequence of a packed stream.

    ``query``: ``[total_tokens, num_heads, head_dim]``; ``key, value``: ``[total_tokens, num_kv_heads, head_dim]``;
    num_kv_heads divides num_heads; any strides with the last dimension contiguous. ``cu_seqlens``: ``[num_seqs + 1]``.
    ``bias``: ``[num_heads, longest, longest]``, added to the scores. Returns
    ``[total_tokens, num_heads, head_dim]`` in the query's dtype.
    Errors: `ValueError` on shapes that do not fit.
    """
    _check(query, key, value, cu_seqlens, bias)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if use_triton(query):
        from padserve_kernels.varlen_attention.triton import varlen_attention_triton

        return varlen_attention_triton(query, key, value, cu_seqlens, scale, causal, window, bias)
    return varlen_attention_reference(query, key, value, cu_seqlens, scale, causal, window, bias)


def _check(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, bias: Tensor | None) -> None:
    if query.ndim != 3 or key.ndim != 3 or key.shape != value.shape:
        raise ValueError(
            f"query, key, value must be [tokens, heads, dim], got {query.shape}, {key.shape}, {value.shape}"
        )
    if query.shape[0] != key.shape[0] or query.shape[2] != key.shape[2] or query.shape[1] % key.shape[1]:
        raise ValueError(f"query {tuple(query.shape)} and key {tuple(key.shape)} do not fit together")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0:
        raise ValueError(f"cu_seqlens must be [num_seqs + 1], got {tuple(cu_seqlens.shape)}")
    if any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        raise ValueError("the last dimension of query, key and value must be contiguous")
    if bias is not None and (bias.ndim != 3 or bias.shape[0] != query.shape[1] or bias.stride(-1) != 1):
        raise ValueError(f"bias must be [num_heads, longest, longest], got {tuple(bias.shape)}")
