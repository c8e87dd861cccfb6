"""Disentangled attention of DeBERTa-v2 and v3 (He et al. 2021) within each sequence of a packed stream.

For sequence s with rows ``cu_seqlens[s] .. cu_seqlens[s + 1]``, query i and key j of it and head h:

    score(i, j)  = scale * (<query[i], key[j]> + <query[i], pos_key[r(i - j)]> + <key[j], pos_query[r(i - j)]>)
    output[i, h] = sum_j softmax_j(score(i, j)) * value[j, h]
    r(d)         = d's log bucket + att_span, held within 0 .. 2 * att_span - 1

Buckets: a distance of at most half of ``position_buckets`` has its own; farther ones share buckets that widen by the
logarithm up to ``max_relative_positions``. The sign is kept.
"""

from torch import Tensor

from padserve_kernels.disentangled_attention.reference import disentangled_attention_reference
from padserve_kernels.dispatch import use_triton

__all__ = ["disentangled_attention"]


def disentangled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_key: Tensor | None,
    pos_query: Tensor | None,
    cu_seqlens: Tensor,
    position_buckets: int,
    max_relative_positions: int,
    att_span: int,
    scale: float | None = None,
) -> Tensor:
    """Attention within each sequence of a packed stream, with the two position terms of DeBERTa.

    ``query, key, value``: ``[total_tokens, num_heads, head_dim]``. ``pos_key, pos_query``: the projected position
    embeddings, ``[2 * att_span, num_heads, head_dim]``, None where a checkpoint leaves that term out. All have one
    dtype and any strides with the last dimension contiguous. ``cu_seqlens``: ``[num_seqs + 1]``.
    ``position_buckets``: no buckets, each distance by itself, unless it and ``max_relative_positions`` are positive.
    ``scale``: by default ``(head_dim * terms) ** -0.5``, content being one term. Returns
    ``[total_tokens, num_heads, head_dim]`` in the query's dtype.
    Errors: `ValueError` on shapes that do not fit and on bucket sizes that define no buckets.
    """
    _check(query, key, value, pos_key, pos_query, cu_seqlens, att_span)
    _check_buckets(position_buckets, max_relative_positions)
    terms = 1 + (pos_key is not None) + (pos_query is not None)
    scale = (query.shape[-1] * terms) ** -0.5 if scale is None else scale
    buckets = max(position_buckets, 0) if max_relative_positions > 0 else 0
    arguments = (query, key, value, pos_key, pos_query, cu_seqlens, buckets, max_relative_positions, att_span, scale)
    if use_triton(query):
        from padserve_kernels.disentangled_attention.triton import disentangled_attention_triton

        return disentangled_attention_triton(*arguments)
    return disentangled_attention_reference(*arguments)


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_key: Tensor | None,
    pos_query: Tensor | None,
    cu_seqlens: Tensor,
    att_span: int,
) -> None:
    if query.ndim != 3 or key.shape != query.shape or value.shape != query.shape:
        raise ValueError(
            f"query, key, value must be [tokens, heads, dim], got {query.shape}, {key.shape}, {value.shape}"
        )
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0:
        raise ValueError(f"cu_seqlens must be [num_seqs + 1], got {tuple(cu_seqlens.shape)}")
    expected = (2 * att_span, *query.shape[1:])
    for name, rows in (("pos_key", pos_key), ("pos_query", pos_query)):
        if rows is not None and (att_span < 1 or rows.shape != expected):
            raise ValueError(f"{name} must be [2 * att_span, heads, dim] = {expected}, got {tuple(rows.shape)}")
    given = [tensor for tensor in (query, key, value, pos_key, pos_query) if tensor is not None]
    if any(tensor.dtype != query.dtype for tensor in given):
        raise ValueError(f"all must have one dtype, got {[tensor.dtype for tensor in given]}")
    if any(tensor.stride(-1) != 1 for tensor in given):
        raise ValueError("the last dimension of query, key, value, pos_key and pos_query must be contiguous")


def _check_buckets(position_buckets: int, max_relative_positions: int) -> None:
    middle = position_buckets // 2
    if position_buckets > 0 and max_relative_positions > 0 and not 1 <= middle < max_relative_positions - 1:
        raise ValueError(
            f"position_buckets must be at least 2 and half of it below max_relative_positions - 1, "
            f"got {position_buckets} and {max_relative_positions}"
        )
