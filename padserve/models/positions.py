"""Positions of a packed stream."""

import numpy as np

from padserve.core import Batch, Int64Array


def offset_positions(batch: Batch, offset: int) -> Int64Array:
    """Positions from ``offset`` in each sequence, ``[total_tokens]``.

    An offset is padding_idx + 1, and the modules that have one count only tokens that are not padding: one that stands
    in the text itself stays at padding_idx and moves none after it.
    """
    counted = batch.input_ids != offset - 1
    if offset == 0 or counted.all():
        return batch.position_ids + offset
    running = np.cumsum(counted)
    starts = batch.cu_seqlens[:-1]
    before = np.repeat(running[starts] - counted[starts], batch.lengths)
    positions: Int64Array = (running - before) * counted + offset - 1
    return positions
