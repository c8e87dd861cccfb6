"""Attention within each sequence of a packed stream, in float32, as a compiled function."""

import numpy as np
from numba import njit

from padserve_kernels.x86.scalar import ONE, OPTIONS, bits_of, exp2, float_of, ordered
from padserve_kernels.x86.tiles import LANES, ROWS, VECTORS, small_product


@njit(**OPTIONS)
def softmax2(scores, length):  # type: ignore[no-untyped-def]
    """``scores[:length]`` to ``2 ** (score - greatest)``. Returns one over their sum."""
    high = np.int32(-0x80000000)
    for key in range(length):
        high = max(high, ordered(bits_of(scores[key])))
    most = float_of(ordered(high))
    total = np.float32(0.0)
    for key in range(length):
        weight = exp2(scores[key] - most)
        scores[key] = weight
        total += weight
    return ONE / total


@njit(**OPTIONS)
def attend(qkv, ends, num_heads, head_dim, head_width, keys, scores, attended, context):  # type: ignore[no-untyped-def]
    """Attention of every head, for compiled functions.

    ``qkv``: ``[total_tokens, …]`` queries (times the scale and log2 e), keys and values side by side, each head
    ``head_width`` wide, a multiple of 16, of which ``head_dim`` counts. ``ends``: ``[num_seqs + 1]`` where sequences
    start and end. ``context``: ``[total_tokens, num_heads * head_dim]``, what is written. The rest is working space:
    ``keys`` ``[head_dim, longest]``, ``scores`` ``[6, longest]``, the longest length a multiple of 16, ``attended``
    ``[6, head_width]``.
    """
    width = num_heads * head_width
    stride, s_stride, k_stride = qkv.strides[0], scores.strides[0], keys.strides[0]
    s, k, o = scores.ctypes.data, keys.ctypes.data, attended.ctypes.data
    sums = np.empty(ROWS, np.float32)
    for sequence in range(len(ends) - 1):
        start, length = ends[sequence], ends[sequence + 1] - ends[sequence]
        vectors = (length + LANES - 1) // LANES
        for head in range(num_heads):
            at = head * head_width
            for key in range(length):
                for place in range(head_dim):
                    keys[place, key] = qkv[start + key, width + at + place]
            here = qkv.ctypes.data + start * stride + at * 4
            for first in range(0, length, ROWS):
                rows = min(ROWS, length - first)
                for panel in range(0, vectors, VECTORS):
                    count = min(VECTORS, vectors - panel)
                    q, to = here + first * stride, s + panel * 64
                    small_product(qkv, qkv, rows, count, q, stride, k + panel * 64, k_stride, head_dim, to, s_stride)
                for row in range(rows):
                    sums[row] = softmax2(scores[row], length)
                for vector in range(0, head_width // LANES, VECTORS):
                    count = min(VECTORS, head_width // LANES - vector)
                    v, to = here + 2 * width * 4 + vector * 64, o + vector * 64
                    small_product(qkv, qkv, rows, count, s, s_stride, v, stride, length, to, attended.strides[0])
                for row in range(rows):
                    for place in range(head_dim):
                        context[start + first + row, head * head_dim + place] = attended[row, place] * sums[row]
