"""Embedding layer norm: rows gathered from the tables, their sum and its layer norm in one pass over memory.

    sum[i]    = words[input_ids[i]] + positions[position_ids[i]] + token_types[token_type_ids[i]]
    output[i] = (sum[i] - mean(sum[i])) / sqrt(variance(sum[i]) + eps) * weight + bias

Mean and variance (biased) are over a row. The sum is never rounded to the tables' dtype.
"""

from torch import Tensor

from padserve_kernels.dispatch import use_triton
from padserve_kernels.embedding_layer_norm.reference import embedding_layer_norm_reference

__all__ = ["embedding_layer_norm"]


def embedding_layer_norm(
    input_ids: Tensor,
    position_ids: Tensor,
    token_type_ids: Tensor,
    words: Tensor,
    positions: Tensor,
    token_types: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-12,
) -> Tensor:
    """What BERT's first layer is given.

    ``input_ids, position_ids, token_type_ids``: ``[total_tokens]`` ints; ``words, positions, token_types``:
    ``[entries, dim]``, each with its own number of entries, the last dimension contiguous; ``weight, bias``:
    ``[dim]``, contiguous. Returns ``[total_tokens, dim]`` in the dtype of ``words``.
    Errors: `ValueError` on shapes that do not fit. An id outside its table is an `IndexError` on a CPU; on a GPU,
    where a check would wait for the device, its row is NaN.
    """
    ids = (input_ids, position_ids, token_type_ids)
    tables = (words, positions, token_types)
    _check(ids, tables, weight, bias)
    if use_triton(words):
        from padserve_kernels.embedding_layer_norm.triton import embedding_layer_norm_triton

        return embedding_layer_norm_triton(ids, tables, weight, bias, eps)
    return embedding_layer_norm_reference(ids, tables, weight, bias, eps)


def _check(ids: tuple[Tensor, ...], tables: tuple[Tensor, ...], weight: Tensor, bias: Tensor) -> None:
    if any(rows.ndim != 1 or rows.shape != ids[0].shape or rows.is_floating_point() for rows in ids):
        raise ValueError(f"ids must be three times [total_tokens] ints, got {[tuple(rows.shape) for rows in ids]}")
    dim = tables[0].shape[-1]
    if dim == 0 or any(table.ndim != 2 or table.shape[1] != dim for table in tables):
        raise ValueError(f"tables must be three times [entries, dim], got {[tuple(table.shape) for table in tables]}")
    if weight.shape != (dim,) or bias.shape != (dim,):
        raise ValueError(f"weight and bias must be [{dim}], got {tuple(weight.shape)}, {tuple(bias.shape)}")
    if any(tensor.stride(-1) != 1 for tensor in (*tables, weight, bias)):
        raise ValueError("the last dimension of tables, weight and bias must be contiguous")
    for rows, table in zip(ids, tables, strict=True):
        if rows.device.type == "cpu" and len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(table):
            raise IndexError(f"ids from {int(rows.min())} to {int(rows.max())} do not fit a table of {len(table)}")
