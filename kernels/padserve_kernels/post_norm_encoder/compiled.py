"""The encoder as one compiled function: `CompiledEncoder` packs weights, `_forward` runs them.

Rows pass each layer in blocks, so that what is between two products stays in the processor's cache.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from torch import Tensor

from padserve_kernels.post_norm_encoder.attention import attend
from padserve_kernels.post_norm_encoder.layout import Embeddings, EncoderWeights
from padserve_kernels.x86.features import Kind
from padserve_kernels.x86.keep import keep_compiled
from padserve_kernels.x86.packing import shape, stack, stack_norms
from padserve_kernels.x86.products import IN_WORD, OPERAND, padded, product, words_of
from padserve_kernels.x86.rows import CODES, activate, add_norm, add_row, mean_rows, put, take
from padserve_kernels.x86.scalar import LOG2_E, OPTIONS
from padserve_kernels.x86.space import SPACE
from padserve_kernels.x86.tiles import LANES, ROWS

BLOCK = 96
"""Rows that pass a layer together."""
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids, positions, and types, each int64 ``[total_tokens]``; ``types`` None: all of type 0."""

    ids: Array
    positions: Array
    types: Array | None = None


class CompiledEncoder:
    """A post-LayerNorm encoder with its weights packed. Threads may call it at the same time."""

    def __init__(self, weights: EncoderWeights) -> None:
        self.kind, self.num_heads = weights.kind, weights.num_heads
        first = weights.layers[0]
        self.width, self.inner = shape(first.output)[0], shape(first.up)[0]
        self.head_dim = self.width // weights.num_heads
        self._head_width = -(-self.head_dim // LANES) * LANES
        products = (
            stack(self.kind, [layer.qkv for layer in weights.layers], self._qkv_columns()),
            *(stack(self.kind, [getattr(layer, name) for layer in weights.layers]) for name in NAMES),
        )
        self._tables = None if weights.embeddings is None else _tables(weights.embeddings)
        self._model = (
            products,
            tuple(stack_norms([getattr(layer, name) for layer in weights.layers]) for name in NORMS),
            tuple(np.float32(getattr(first, name).eps) for name in NORMS),
            (self.num_heads, self.head_dim, self._head_width),
            self.inner,
            np.float32(self.head_dim**-0.5 * LOG2_E),
            CODES[weights.activation],
        )

    @property
    def takes_tokens(self) -> bool:
        return self._tables is not None

    def _qkv_columns(self) -> Array:
        """Where each output of ``qkv`` stands when every head takes whole vectors."""
        head, place = np.divmod(np.arange(3 * self.width), self.head_dim)
        columns: Array = head * self._head_width + place
        return columns

    def __call__(self, given: Array | Tokens, ends: Array, wanted: Array | None = None, mean: bool = False) -> Array:
        """Float32 ``[rows, hidden]``: of every token, of the ``wanted`` rows, or with ``mean`` one of each sequence.

        ``given``: `Tokens`, or float32 ``[total_tokens, hidden]`` in their place. ``ends``: int64 ``[num_seqs + 1]``,
        where each sequence starts, and where the last ends. ``wanted``: int64 ``[n]``; the last layer leaves out the
        others. Errors: `IndexError` for a token that a table does not have.
        """
        tables, tokens, hidden = self._given(given)
        total = len(tokens[0]) if isinstance(given, Tokens) else len(hidden)
        picked = np.arange(total) if wanted is None or mean else wanted
        result = np.empty((len(picked), self.width), np.float32)
        pooled = np.empty((len(ends) - 1 if mean else 0, self.width), np.float32)
        longest = int(np.diff(ends).max())
        spaces = self._spaces(total, len(picked), longest)
        _forward(tables, tokens, hidden, ends, picked, *self._model, result, pooled, *spaces)
        return pooled if mean else result

    def _given(self, given: Array | Tokens) -> tuple[Any, tuple[Array, Array, Array], Array]:
        if not isinstance(given, Tokens):
            return (
                self._tables or _no_tables(self.kind),
                (NO_IDS, NO_IDS, NO_IDS),
                np.ascontiguousarray(given, np.float32),
            )
        if self._tables is None:
            raise ValueError("an encoder without embeddings takes hidden states")
        types = np.zeros_like(given.ids) if given.types is None else given.types
        each = (given.ids, given.positions, types)
        for name, ids, table in zip(("id", "position", "type"), each, self._tables[0], strict=True):
            if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= len(table)):
                raise IndexError(f"a token's {name} is outside of the {len(table)} that the model has")
        return self._tables, each, NO_HIDDEN

    def _spaces(self, total: int, picked: int, longest: int) -> tuple[Array, ...]:
        keys = -(-longest // LANES) * LANES
        qkv_width = padded(3 * self.num_heads * self._head_width)
        block = min(BLOCK, max(total, picked))
        operand, part = OPERAND[self.kind], IN_WORD[self.kind]
        array = SPACE.array
        return (
            array("rows", (total, self.width), np.float32),
            array("given", (total, words_of(self.kind, self.width) * part), operand),
            array("between", (block, words_of(self.kind, self.width) * part), operand),
            array("active", (block, words_of(self.kind, self.inner) * part), operand),
            array("qkv", (total, qkv_width), np.float32),
            array("context", (total, self.width), np.float32),
            array("products", (block, padded(max(self.width, self.inner))), np.float32),
            array("steps", (4, max(total, block)), np.float32),
            array("keys", (self.head_dim, keys), np.float32),
            array("scores", (ROWS, keys), np.float32),
            array("attended", (ROWS, self._head_width), np.float32),
            array("buffer", (max(qkv_width, self.inner),), np.float32),
        )


NORMS = ("attention_norm", "output_norm")
NAMES = ("output", "up", "down")


def _tables(embeddings: Embeddings) -> tuple[tuple[Array, Array, Array], Array, Array, Any]:
    """Words, positions and types as bits, then what the norm has."""
    words, positions = _bits(embeddings.words), _bits(embeddings.positions)
    types = np.zeros((1, words.shape[1]), words.dtype) if embeddings.types is None else _bits(embeddings.types)
    (weight,), (bias,) = stack_norms([embeddings.norm])
    return (words, positions, types), weight, bias, np.float32(embeddings.norm.eps)


def _bits(table: Tensor) -> Array:
    table = table.detach().contiguous()
    half = table.dtype == torch.bfloat16
    bits: Array = table.view(torch.int16).numpy().view(np.uint16) if half else table.float().numpy().view(np.int32)
    return bits


def _no_tables(kind: Kind) -> Any:
    table = np.zeros((0, 1), np.uint16 if kind == "bfloat16" else np.int32)
    return (table, table, table), np.zeros(0, np.float32), np.zeros(0, np.float32), np.float32(0)


NO_IDS, NO_HIDDEN = np.zeros(0, np.int64), np.zeros((0, 1), np.float32)


@njit(**OPTIONS)
def _embed(tables, tokens, row, width, buffer, output):  # type: ignore[no-untyped-def]
    """A token's embedding, into ``output`` and the buffer."""
    (words, positions, types), weight, bias, eps = tables
    ids, places, kinds = tokens
    for column in range(width):
        buffer[column] = np.float32(0.0)
        output[column] = np.float32(0.0)
    add_row(words, ids[row], width, buffer)
    add_row(types, kinds[row], width, buffer)
    add_row(positions, places[row], width, buffer)
    add_norm(buffer, output, width, weight, bias, eps, output)


@njit(**OPTIONS)
def _forward(  # type: ignore[no-untyped-def]
    tables,
    tokens,
    hidden,
    ends,
    picked,
    weights,
    norms,
    eps,
    heads,
    inner,
    scale,
    activation,
    result,
    pooled,
    rows,
    given,
    between,
    active,
    qkv,
    context,
    products,
    steps,
    keys,
    scores,
    attended,
    buffer,
):
    w_qkv, w_output, w_up, w_down = weights
    (norm_1, bias_1), (norm_2, bias_2) = norms
    num_heads, head_dim, head_width = heads
    total, width = rows.shape
    layers, block = norm_1.shape[0], between.shape[0]
    step, centre, step_2, centre_2 = steps[0], steps[1], steps[2], steps[3]
    queries, used = num_heads * head_width, 3 * num_heads * head_width
    for row in range(total):
        if len(tokens[0]) > 0:
            _embed(tables, tokens, row, width, buffer, rows[row])
        else:
            for column in range(width):
                rows[row, column] = hidden[row, column]
                buffer[column] = hidden[row, column]
        put(buffer, width, w_qkv[5][0], given, row, step, centre)
    for layer in range(layers):
        last = layer == layers - 1
        target = result if last else rows
        product(given, total, w_qkv[0][layer], w_qkv[1].shape[1], qkv)
        for row in range(total):
            take(given, qkv, row, used, w_qkv, layer, row, step, centre, buffer)
            for column in range(queries):
                qkv[row, column] = buffer[column] * scale
            for column in range(queries, used):
                qkv[row, column] = buffer[column]
        attend(qkv, ends, num_heads, head_dim, head_width, keys, scores, attended, context)
        count = len(picked) if last else total
        for first in range(0, count, block):
            size = min(block, count - first)
            for row in range(size):
                source = picked[first + row] if last else first + row
                for column in range(width):
                    buffer[column] = context[source, column]
                put(buffer, width, w_output[5][layer], between, row, step_2, centre_2)
            product(between, size, w_output[0][layer], w_output[1].shape[1], products)
            for row in range(size):
                source = picked[first + row] if last else first + row
                take(given, products, row, width, w_output, layer, row, step_2, centre_2, buffer)
                add_norm(buffer, rows[source], width, norm_1[layer], bias_1[layer], eps[0], target[first + row])
                put(buffer, width, w_up[5][layer], between, row, step_2, centre_2)
            product(between, size, w_up[0][layer], w_up[1].shape[1], products)
            for row in range(size):
                take(given, products, row, inner, w_up, layer, row, step_2, centre_2, buffer)
                activate(buffer, inner, activation)
                put(buffer, inner, w_down[5][layer], active, row, step_2, centre_2)
            product(active, size, w_down[0][layer], w_down[1].shape[1], products)
            for row in range(size):
                own = target[first + row]
                take(given, products, row, width, w_down, layer, row, step_2, centre_2, buffer)
                add_norm(buffer, own, width, norm_2[layer], bias_2[layer], eps[1], own)
                if not last:
                    put(buffer, width, w_qkv[5][layer + 1], given, first + row, step, centre)
    if len(pooled) > 0:
        mean_rows(result, ends, width, pooled)


keep_compiled(_forward)
