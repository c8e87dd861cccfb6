"""Attention with a learned bias by relative position (Raffel et al. 2020, T5; MPNet) within each sequence of a stream.

For sequence s with rows ``cu_seqlens[s] .. cu_seqlens[s + 1]``, query i and key j of it and head h:

    score(i, j)  = scale * <query[i, h], key[j, h]> + bias_table[bucket(j - i), h]
    output[i, h] = sum_j softmax_j(score(i, j) over j, or over j <= i if causal) * value[j, h]

Buckets: keys before the query, and the query's own, have the first half of them, keys after it the second half; if
causal, keys before it have all. Within its half a short distance has a bucket to itself, longer ones share buckets
that widen by the logarithm, and all from ``max_distance`` on share the last.
"""

from torch import Tensor

from padserve_kernels.dispatch import use_triton
from padserve_kernels.relative_bias_attention.reference import relative_bias_attention_reference

__all__ = ["relative_bias_attention"]


def relative_bias_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    bias_table: Tensor,
    scale: float | None = None,
    causal: bool = False,
    max_distance: int = 128,
) -> Tensor:
    """Attention within each sequence of a packed stream, with the relative position bias of T5 and MPNet.

    ``query, key, value``: ``[total_tokens, num_heads, head_dim]``, of one dtype, any strides with the last dimension
    contiguous. ``cu_seqlens``: ``[num_seqs + 1]``. ``bias_table``: ``[num_buckets, num_heads]``, any strides.
    ``scale``: by default ``head_dim ** -0.5``, which is MPNet's; T5 has 1. ``causal``: T5's decoder, with
    unidirectional buckets; without, T5's encoder and MPNet. Returns ``[total_tokens, num_heads, head_dim]`` in the
    query's dtype.
    Errors: `ValueError` on shapes that do not fit and on bucket sizes that define no buckets.
    """
    _check(query, key, value, cu_seqlens, bias_table)
    _check_buckets(len(bias_table), max_distance, causal)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if use_triton(query):
        from padserve_kernels.relative_bias_attention.triton import relative_bias_attention_triton

        return relative_bias_attention_triton(query, key, value, cu_seqlens, bias_table, scale, causal, max_distance)
    return relative_bias_attention_reference(query, key, value, cu_seqlens, bias_table, scale, causal, max_distance)


def _check(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, bias_table: Tensor) -> None:
    if query.ndim != 3 or key.shape != query.shape or value.shape != query.shape:
        raise ValueError(
            f"query, key, value must be [tokens, heads, dim], got {query.shape}, {key.shape}, {value.shape}"
        )
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0:
        raise ValueError(f"cu_seqlens must be [num_seqs + 1], got {tuple(cu_seqlens.shape)}")
    if any(tensor.dtype != query.dtype for tensor in (key, value)):
        raise ValueError(f"all must have one dtype, got {query.dtype}, {key.dtype}, {value.dtype}")
    if any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        raise ValueError("the last dimension of query, key and value must be contiguous")
    if bias_table.ndim != 2 or bias_table.shape[1] != query.shape[1]:
        raise ValueError(
            f"bias_table must be [num_buckets, heads] with {query.shape[1]} heads, got {tuple(bias_table.shape)}"
        )


def _check_buckets(num_buckets: int, max_distance: int, causal: bool) -> None:
    exact = num_buckets // (2 if causal else 4)
    if not 1 <= exact < max_distance:
        raise ValueError(
            f"num_buckets must be at least {2 if causal else 4} and max_distance above {exact}, the distances that "
            f"have a bucket to themselves; got {num_buckets} and {max_distance}"
        )
