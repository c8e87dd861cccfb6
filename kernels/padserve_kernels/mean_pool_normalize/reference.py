"""The definition of mean pool: test oracle, and what runs where no kernel does."""

import torch
from torch import Tensor


def mean_pool_normalize_reference(hidden: Tensor, cu_seqlens: Tensor, normalize: bool, eps: float) -> Tensor:
    """See `padserve_kernels.mean_pool_normalize.mean_pool_normalize`. Sums and norms in float32."""
    output = torch.zeros(len(cu_seqlens) - 1, hidden.shape[1], dtype=torch.float32, device=hidden.device)
    for seq, (start, stop) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
        if stop > start:
            output[seq] = hidden[start:stop].float().mean(0)
    if normalize:
        output = output / output.norm(dim=-1, keepdim=True).clamp_min(eps)
    return output.to(hidden.dtype)
