"""Mean pool: one vector for each sequence of a packed stream, of unit length if wanted.

For sequence s with rows ``cu_seqlens[s] .. cu_seqlens[s + 1]``:

    mean[s]   = sum_i hidden[i] / (cu_seqlens[s + 1] - cu_seqlens[s])
    output[s] = mean[s] / max(|mean[s]|, eps)    or mean[s] itself

A sequence of no rows gives zeros. Rows that no sequence owns are never read.
"""

from torch import Tensor

from padserve_kernels.dispatch import use_triton
from padserve_kernels.mean_pool_normalize.reference import mean_pool_normalize_reference

__all__ = ["mean_pool_normalize"]


def mean_pool_normalize(hidden: Tensor, cu_seqlens: Tensor, normalize: bool = True, eps: float = 1e-12) -> Tensor:
    """The mean of each sequence's rows, divided by its Euclidean norm if ``normalize``.

    ``hidden``: ``[total_tokens, dim]``, the last dimension contiguous; ``cu_seqlens``: ``[num_seqs + 1]`` ints.
    Returns ``[num_seqs, dim]`` in hidden's dtype; only that is rounded, sums and norms are float32.
    Errors: `ValueError` on shapes that do not fit.
    """
    _check(hidden, cu_seqlens)
    if use_triton(hidden):
        from padserve_kernels.mean_pool_normalize.triton import mean_pool_normalize_triton

        return mean_pool_normalize_triton(hidden, cu_seqlens, normalize, eps)
    return mean_pool_normalize_reference(hidden, cu_seqlens, normalize, eps)


def _check(hidden: Tensor, cu_seqlens: Tensor) -> None:
    if hidden.ndim != 2 or hidden.stride(-1) != 1:
        raise ValueError(f"hidden must be [total_tokens, dim] with contiguous rows, got {tuple(hidden.shape)}")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0 or cu_seqlens.is_floating_point():
        raise ValueError(f"cu_seqlens must be [num_seqs + 1] ints, got {tuple(cu_seqlens.shape)} {cu_seqlens.dtype}")
