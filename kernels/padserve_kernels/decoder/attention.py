"""Attention of a step's rows over kept keys and values, in float32, as compiled functions.

Keys and values stand in blocks of 16 tokens: keys ``[blocks, num_kv_heads, head_dim, 16]``, so that one row of a
product meets 16 keys at once, values ``[blocks, num_kv_heads, 16, head_width]``.
"""

import numpy as np
from numba import njit

from padserve_kernels.x86.scalar import ONE, OPTIONS, bits_of, exp2, float_of, ordered
from padserve_kernels.x86.tiles import LANES, ROWS, VECTORS, small_product

TOKENS = LANES
"""Of a block."""


@njit(**OPTIONS)
def softmax2(scores, length, end):  # type: ignore[no-untyped-def]
    """``scores[:length]`` to ``2 ** (score - greatest)`` over their sum, ``scores[length:end]`` to zero."""
    high = np.int32(-0x80000000)
    for key in range(length):
        high = max(high, ordered(bits_of(scores[key])))
    most = float_of(ordered(high))
    total = np.float32(0.0)
    for key in range(length):
        weight = exp2(scores[key] - most)
        scores[key] = weight
        total += weight
    inverse = ONE / total
    for key in range(length):
        scores[key] *= inverse
    for key in range(length, end):
        scores[key] = np.float32(0.0)


@njit(**OPTIONS)
def keep(qkv, row, slot, shape, keys, values):  # type: ignore[no-untyped-def]
    """Put a row's keys and values to their place. ``keys``, ``values``: of one layer."""
    num_heads, kv_heads, head_dim, head_width = shape
    block, lane = slot // TOKENS, slot % TOKENS
    for head in range(kv_heads):
        at = (num_heads + head) * head_width
        for place in range(head_dim):
            keys[block, head, place, lane] = qkv[row, at + place]
        at += kv_heads * head_width
        for place in range(head_width):
            values[block, head, lane, place] = qkv[row, at + place]


@njit(**OPTIONS)
def attend_rows(  # type: ignore[no-untyped-def]
    qkv, row, heads, step, count, first, blocks, head, kv_head, shape, keys, values, bias, scores, part, out
):
    """Some rows of one sequence: ``count`` rows of one head, or with ``step`` 0 one row of ``heads`` heads.

    Row i sees the sequence's tokens up to ``first + i``. ``blocks``: the sequence's. ``out``: ``[rows, num_heads *
    head_dim]``.
    """
    _, _, head_dim, head_width = shape
    rows = count if step else heads
    last = first + (count if step else 1)  # keys that any of the rows sees
    whole = (last + TOKENS - 1) // TOKENS
    stride = qkv.strides[0] if step else head_width * 4
    query = qkv.ctypes.data + row * qkv.strides[0] + head * head_width * 4
    s, s_stride = scores.ctypes.data, scores.strides[0]
    for block in range(whole):
        at = keys.ctypes.data + blocks[block] * keys.strides[0] + kv_head * keys.strides[1]
        small_product(qkv, qkv, rows, 1, query, stride, at, TOKENS * 4, head_dim, s + block * TOKENS * 4, s_stride)
    farthest = bias.shape[1] - 1
    for index in range(rows):
        seen = first + (index if step else 0) + 1
        if farthest >= 0:
            own = head if step else head + index
            for key in range(seen):
                scores[index, key] += bias[own, min(seen - 1 - key, farthest)]
        softmax2(scores[index], seen, whole * TOKENS)
    for index in range(rows):
        for place in range(head_width):
            part[1, index, place] = np.float32(0.0)
    p, p_stride = part.ctypes.data, part.strides[1]
    for block in range(whole):
        at = values.ctypes.data + blocks[block] * values.strides[0] + kv_head * values.strides[1]
        words = min(TOKENS, last - block * TOKENS)
        for vector in range(0, head_width // LANES, VECTORS):
            width = min(VECTORS, head_width // LANES - vector)
            to = p + vector * LANES * 4
            source = s + block * TOKENS * 4
            start = at + vector * LANES * 4
            small_product(qkv, qkv, rows, width, source, s_stride, start, head_width * 4, words, to, p_stride)
        for index in range(rows):
            for place in range(head_width):
                part[1, index, place] += part[0, index, place]
    for index in range(rows):
        target, own = (row + index, head) if step else (row, head + index)
        for place in range(head_dim):
            out[target, own * head_dim + place] = part[1, index, place]


@njit(**OPTIONS)
def attend_span(qkv, start, count, first, blocks, shape, keys, values, bias, scores, part, out):  # type: ignore[no-untyped-def]
    """All rows ``start .. start + count`` of one sequence, whose first is its token ``first``."""
    num_heads, kv_heads, _, _ = shape
    group = num_heads // kv_heads
    for head in range(0, num_heads, group):
        kv_head = head // group
        if count == 1:
            for own in range(0, group, ROWS):
                heads = min(ROWS, group - own)
                attend_rows(
                    qkv,
                    start,
                    heads,
                    0,
                    1,
                    first,
                    blocks,
                    head + own,
                    kv_head,
                    shape,
                    keys,
                    values,
                    bias,
                    scores,
                    part,
                    out,
                )
            continue
        for own in range(group):
            for row in range(0, count, ROWS):
                rows = min(ROWS, count - row)
                attend_rows(
                    qkv,
                    start + row,
                    1,
                    1,
                    rows,
                    first + row,
                    blocks,
                    head + own,
                    kv_head,
                    shape,
                    keys,
                    values,
                    bias,
                    scores,
                    part,
                    out,
                )


@njit(**OPTIONS)
def look(queries, start, count, source_keys, source_values, length, layer, shape, scores, part, out):  # type: ignore[no-untyped-def]
    """Rows that look at one source. ``source_keys``: address of ``[layers, num_heads, head_dim, padded length]``,
    ``source_values``: of ``[layers, num_heads, length, head_width]``."""
    num_heads, head_dim, head_width = shape[0], shape[2], shape[3]
    vectors = (length + LANES - 1) // LANES
    s, s_stride = scores.ctypes.data, scores.strides[0]
    p, p_stride = part.ctypes.data, part.strides[1]
    for head in range(num_heads):
        at_keys = source_keys + (layer * num_heads + head) * head_dim * vectors * LANES * 4
        at_values = source_values + (layer * num_heads + head) * length * head_width * 4
        for row in range(0, count, ROWS):
            rows = min(ROWS, count - row)
            query = queries.ctypes.data + (start + row) * queries.strides[0] + head * head_width * 4
            for vector in range(0, vectors, VECTORS):
                width = min(VECTORS, vectors - vector)
                to = s + vector * LANES * 4
                at, stride = at_keys + vector * LANES * 4, vectors * LANES * 4
                q_stride = queries.strides[0]
                small_product(queries, queries, rows, width, query, q_stride, at, stride, head_dim, to, s_stride)
            for index in range(rows):
                softmax2(scores[index], length, length)
            for vector in range(0, head_width // LANES, VECTORS):
                width = min(VECTORS, head_width // LANES - vector)
                at, to = at_values + vector * LANES * 4, p + vector * LANES * 4
                small_product(queries, queries, rows, width, s, s_stride, at, head_width * 4, length, to, p_stride)
            for index in range(rows):
                for place in range(head_dim):
                    out[start + row + index, head * head_dim + place] = part[0, index, place]
