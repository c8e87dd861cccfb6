"""The definition of disentangled attention: test oracle, and what runs where no kernel does."""

import torch
from torch import Tensor


def disentangled_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_key: Tensor | None,
    pos_query: Tensor | None,
    cu_seqlens: Tensor,
    position_buckets: int,
    max_relative_positions: int,
    att_span: int,
    scale: float,
) -> Tensor:
    """See `padserve_kernels.disentangled_attention.disentangled_attention`. Every product and the softmax in float32.

    ``position_buckets``: 0 for none.
    """
    output = torch.zeros_like(query)
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        q = query[start:stop].float().transpose(0, 1)  # [num_heads, length, head_dim]
        k = key[start:stop].float().transpose(0, 1)
        v = value[start:stop].float().transpose(0, 1)
        position = torch.arange(stop - start)
        distance = position[:, None] - position[None, :]
        row = position_row(distance, position_buckets, max_relative_positions, att_span).to(query.device)
        row = row.expand(len(q), -1, -1)
        scores = q @ k.transpose(1, 2)
        if pos_key is not None:
            scores += (q @ pos_key.float().permute(1, 2, 0)).gather(2, row)
        if pos_query is not None:
            scores += (pos_query.float().transpose(0, 1) @ k.transpose(1, 2)).gather(1, row)
        output[start:stop] = ((scores * scale).softmax(-1) @ v).transpose(0, 1).to(query.dtype)
    return output


def position_row(distance: Tensor, position_buckets: int, max_relative_positions: int, att_span: int) -> Tensor:
    """Row of the position embeddings for each distance i - j, int64."""
    if position_buckets > 0:
        distance = log_bucket(distance, position_buckets, max_relative_positions)
    return (distance + att_span).clamp(0, 2 * att_span - 1)


def log_bucket(distance: Tensor, position_buckets: int, max_relative_positions: int) -> Tensor:
    """Distances up to half the buckets stay; farther ones share buckets that widen by the logarithm. Keeps the sign.

    The roundings are those of transformers' ``make_log_bucket_position`` on a CPU: at a border the last bit of the
    logarithm decides.
    """
    middle = position_buckets // 2
    far = distance.abs().clamp(min=middle)
    widening = torch.log(far / middle) / torch.log(torch.tensor((max_relative_positions - 1) / middle)) * (middle - 1)
    bucket = (torch.ceil(widening) + middle) * distance.sign()
    return torch.where(distance.abs() <= middle, distance, bucket.long())
