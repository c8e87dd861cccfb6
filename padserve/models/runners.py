"""Ways to run a batch. All take the packed `Batch`; padding is a view that a model asks for."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from padserve.core import Batch, Output
from padserve.models.families.base import PackedEncoder
from padserve.models.heads import HeadRunner
from padserve.models.positions import offset_positions

Padded = dict[str, Tensor]
WholeModel = Callable[[Padded, Batch], list[Output]]


class Runner(Protocol):
    """One forward pass of a batch; ``kind`` names the way for operators."""

    kind: str

    def run(self, batch: Batch) -> list[Output]: ...


class PackedRunner:
    """The whole batch as one stream, no padding."""

    def __init__(self, kind: str, encoder: PackedEncoder, head: HeadRunner, offset: int, device: torch.device) -> None:
        self.kind, self.encoder, self.head, self.offset, self.device = kind, encoder, head, offset, device

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Output]:
        rows = self.head.rows(batch)
        wanted = None if rows is None else torch.from_numpy(rows).to(self.device)
        hidden = self.encoder(*packed_inputs(batch, self.offset, self.device), wanted)
        return self.head.run(hidden, batch)


def packed_inputs(
    batch: Batch, offset: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, ...]]:
    """Ids, positions from ``offset``, token types, each ``[total_tokens]``, and lengths, as encoders take them."""
    types = None if batch.token_type_ids is None else torch.from_numpy(batch.token_type_ids).to(device)
    ids, positions = torch.from_numpy(batch.input_ids), torch.from_numpy(offset_positions(batch, offset))
    return ids.to(device), positions.to(device), types, tuple(batch.lengths.tolist())


class PaddedRunner:
    """The stock model over ``[num_seqs, max_seqlen]``, padded on the right."""

    kind = "padded"

    def __init__(self, model: WholeModel, pad_token_id: int, device: torch.device) -> None:
        self.model, self.pad_token_id, self.device = model, pad_token_id, device

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Output]:
        return self.model(self._pad(batch), batch)

    def _pad(self, batch: Batch) -> Padded:
        rows, columns = padded_index(batch)
        shape = (batch.num_seqs, batch.max_seqlen)
        fields = {"input_ids": (batch.input_ids, self.pad_token_id), "attention_mask": (np.int64(1), 0)}
        if batch.token_type_ids is not None:
            fields["token_type_ids"] = (batch.token_type_ids, 0)
        padded = {}
        for name, (values, fill) in fields.items():
            array = np.full(shape, fill, dtype=np.int64)
            array[rows, columns] = values
            padded[name] = torch.from_numpy(array).to(self.device)
        return padded


class EqualLengthRunner(PaddedRunner):
    """The stock model over sequences of one length at a time, for models whose results change with padding."""

    kind = "equal-length"

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Output]:
        outputs: list[Output | None] = [None] * batch.num_seqs
        for length in np.unique(batch.lengths):
            indices = np.flatnonzero(batch.lengths == length)
            part = select_sequences(batch, indices)
            for index, output in zip(indices, self.model(self._pad(part), part), strict=True):
                outputs[index] = output
        return [output for output in outputs if output is not None]


def padded_index(batch: Batch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Row and column of every token in the padded view, each ``[total_tokens]``."""
    return np.repeat(np.arange(batch.num_seqs), batch.lengths), batch.position_ids


def select_sequences(batch: Batch, indices: np.ndarray[Any, Any]) -> Batch:
    """The batch of some of its sequences, in the order given."""
    spans = [slice(batch.cu_seqlens[i], batch.cu_seqlens[i + 1]) for i in indices]
    gathers = [batch.gather[batch.gather_cu_seqlens[i] : batch.gather_cu_seqlens[i + 1]] for i in indices]
    lengths = batch.lengths[indices]
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    moved = [
        gather - batch.cu_seqlens[i] + start for gather, i, start in zip(gathers, indices, cu_seqlens[:-1], strict=True)
    ]
    types = batch.token_type_ids
    return Batch(
        input_ids=np.concatenate([batch.input_ids[span] for span in spans]),
        position_ids=np.concatenate([batch.position_ids[span] for span in spans]),
        token_type_ids=None if types is None else np.concatenate([types[span] for span in spans]),
        cu_seqlens=cu_seqlens,
        max_seqlen=int(lengths.max()),
        gather=np.concatenate(moved),
        gather_cu_seqlens=np.concatenate([[0], np.cumsum([len(g) for g in gathers])]).astype(np.int64),
        poolings=tuple(batch.poolings[i] for i in indices),
        prompt_tokens=tuple(batch.prompt_tokens[i] for i in indices),
    )
