"""The definition of masked attention: test oracle, and what runs where no kernel does."""

import torch
from torch import Tensor


def masked_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    scale: float,
    causal: bool = False,
    left: bool = False,
) -> Tensor:
    """See `padserve_kernels.masked_attention.masked_attention`. Every product and the softmax in float32."""
    length = query.shape[2]
    group = query.shape[1] // key.shape[1]
    output = torch.zeros_like(query)
    for row, count in enumerate(lengths.clamp(0, length).tolist()):
        tokens = slice(length - count, length) if left else slice(0, count)
        q = query[row, :, tokens].float()  # [num_heads, count, head_dim]
        k = key[row, :, tokens].float().repeat_interleave(group, 0)
        v = value[row, :, tokens].float().repeat_interleave(group, 0)
        scores = q @ k.transpose(1, 2) * scale
        if causal:
            seen = torch.ones(count, count, dtype=torch.bool, device=query.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        output[row, :, tokens] = (scores.softmax(-1) @ v).to(query.dtype)
    return output
