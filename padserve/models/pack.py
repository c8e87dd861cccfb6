"""Encodings to one packed `Batch`: everything concatenated, nothing padded."""

from collections.abc import Sequence

import numpy as np

from padserve.core import Batch, Encoding


def pack(encodings: Sequence[Encoding]) -> Batch:
    """Pack sequences, each of at least one token. Sequences without token types count as type 0 beside others."""
    if not encodings or any(len(encoding) == 0 for encoding in encodings):
        raise ValueError("a batch needs at least one sequence, and every sequence at least one token")
    lengths = [len(encoding) for encoding in encodings]
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    gathers = [np.asarray(e.gather, dtype=np.int64) + start for e, start in zip(encodings, cu_seqlens, strict=False)]
    return Batch(
        input_ids=np.concatenate([encoding.input_ids for encoding in encodings]),
        position_ids=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        token_type_ids=_token_types(encodings),
        cu_seqlens=cu_seqlens,
        max_seqlen=max(lengths),
        gather=np.concatenate(gathers),
        gather_cu_seqlens=np.concatenate([[0], np.cumsum([len(g) for g in gathers])]).astype(np.int64),
        poolings=tuple(encoding.pooling for encoding in encodings),
        prompt_tokens=tuple(encoding.prompt_tokens for encoding in encodings),
    )


def _token_types(encodings: Sequence[Encoding]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    if all(encoding.token_type_ids is None for encoding in encodings):
        return None
    return np.concatenate(
        [np.zeros(len(e), dtype=np.int64) if e.token_type_ids is None else e.token_type_ids for e in encodings]
    )
