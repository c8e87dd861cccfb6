"""The decoder as one compiled function: `CompiledDecoder` packs weights, `_step` runs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from padserve_kernels.decoder.attention import TOKENS, attend_span, keep, look
from padserve_kernels.decoder.layout import DecoderWeights
from padserve_kernels.x86.keep import keep_compiled
from padserve_kernels.x86.packing import floats, shape, stack, stack_norms
from padserve_kernels.x86.products import IN_WORD, OPERAND, padded, product, words_of
from padserve_kernels.x86.rows import CODES, activate, norm, put, take
from padserve_kernels.x86.scalar import LOG2_E, OPTIONS, bits_of, ordered
from padserve_kernels.x86.space import SPACE
from padserve_kernels.x86.tiles import LANES, ROWS

Array = npt.NDArray[Any]
NOTHING, NO_BIAS = np.zeros((0, 0), np.float32), np.zeros((1, 0), np.float32)
NO_INTS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class KeptSource:
    """``keys``: float32 ``[layers, num_heads, head_dim, padded length]``, the length a multiple of 16; ``values``:
    ``[layers, num_heads, length, head_width]``."""

    keys: Array
    values: Array
    length: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A step's rows by sequence. ``starts, counts, firsts``: int64 ``[sequences]``, each one's first row, how many it
    has, and its token that the first one is. ``blocks``: of all sequences, one after another, each one's from
    ``block_starts`` on. ``sources``: what consecutive rows look at, and how many they are."""

    starts: Array
    counts: Array
    firsts: Array
    blocks: Array
    block_starts: Array
    sources: Sequence[tuple[KeptSource, int]] = ()


@dataclass(frozen=True, slots=True)
class Logits:
    """``values``: float32 ``[rows, vocab_size]``; ``best``: each row's likeliest token; ``sound``: whether it has no
    NaN and something finite."""

    values: Array
    best: Array
    sound: Array


class CompiledDecoder:
    """A decoder with its weights packed. Threads may call it at the same time for different sequences."""

    def __init__(self, weights: DecoderWeights) -> None:
        kind, layers = weights.kind, weights.layers
        self.kind, self.num_layers = kind, len(layers)
        self.width = shape(layers[0].output)[0]
        self.inner = shape(layers[0].down)[1]
        self.vocab_size = shape(weights.head)[0]
        self.num_heads, self.num_kv_heads, self.head_dim = weights.num_heads, weights.num_kv_heads, weights.head_dim
        self.head_width = -(-self.head_dim // LANES) * LANES
        cross = [layer.cross for layer in layers if layer.cross is not None]
        output = stack(kind, [layer.output for layer in layers])
        products = (
            stack(kind, [layer.qkv for layer in layers], self._columns(self.num_heads + 2 * self.num_kv_heads)),
            output,
            stack(kind, [layer.up for layer in layers]),
            stack(kind, [layer.down for layer in layers]),
            stack(kind, [weights.head]),
            stack(kind, [one.query for one in cross], self._columns(self.num_heads)) if cross else output,
            stack(kind, [one.output for one in cross]) if cross else output,
        )
        first, last = layers[0], weights.norm or layers[0].feed_norm
        norms = (
            stack_norms([layer.attention_norm for layer in layers]),
            stack_norms([layer.feed_norm for layer in layers]),
            stack_norms([last]),
            stack_norms([one.norm for one in cross] or [last]),
        )
        eps = (first.attention_norm.eps, first.feed_norm.eps, last.eps, cross[0].norm.eps if cross else 0.0)
        bias = NO_BIAS if weights.bias is None else floats(weights.bias) * LOG2_E
        self._model = (
            products,
            norms,
            tuple(np.float32(one) for one in eps),
            (self.num_heads, self.num_kv_heads, self.head_dim, self.head_width),
            self.inner,
            self.vocab_size,
            (np.float32(weights.scale) * LOG2_E, np.float32(weights.cross_scale) * LOG2_E),
            bias,
            CODES[weights.activation],
            (weights.gated, weights.norm_first, weights.rms, weights.norm is not None, bool(cross)),
        )

    def _columns(self, heads: int) -> Array:
        """Where each output stands when every head takes whole vectors."""
        head, place = np.divmod(np.arange(heads * self.head_dim), self.head_dim)
        columns: Array = head * self.head_width + place
        return columns

    def new_keys(self, blocks: int) -> Array:
        """Room for the keys of blocks of 16 tokens, ``[layers, blocks, num_kv_heads, head_dim, 16]``."""
        return np.zeros((self.num_layers, blocks, self.num_kv_heads, self.head_dim, TOKENS), np.float32)

    def new_values(self, blocks: int) -> Array:
        """Room for their values, ``[layers, blocks, num_kv_heads, 16, head_width]``."""
        return np.zeros((self.num_layers, blocks, self.num_kv_heads, TOKENS, self.head_width), np.float32)

    def __call__(
        self, hidden: Array, rows: Rows, wanted: Array, keys: Array, values: Array, cos: Array, sin: Array
    ) -> Logits:
        """Run new tokens. ``hidden``: their embeddings, float32 ``[rows, hidden]``, overwritten. ``wanted``: int64 rows
        whose logits are returned. ``keys, values``: what is kept, and where the new ones go. ``cos, sin``: float32
        ``[rows, head_dim]``, `NOTHING` where positions turn nothing.
        """
        count = len(wanted)
        logits = np.empty((count, padded(self.vocab_size)), np.float32)
        best, sound = np.empty(count, np.int64), np.empty(count, np.bool_)
        longest = int((rows.firsts + rows.counts).max())
        sources = [source for source, _ in rows.sources]
        longest = max([longest, *(source.length for source in sources)])
        looks = (
            np.array([source.keys.ctypes.data for source in sources], np.int64),
            np.array([source.values.ctypes.data for source in sources], np.int64),
            np.array([source.length for source in sources], np.int64),
            np.array([number for _, number in rows.sources], np.int64),
        )
        spans = (rows.starts, rows.counts, rows.firsts, rows.blocks, rows.block_starts)
        spaces = self._spaces(len(hidden), longest)
        _step(hidden, spans, looks, wanted, *self._model, keys, values, cos, sin, logits, best, sound, *spaces)
        return Logits(logits[:, : self.vocab_size], best, sound)

    def _spaces(self, rows: int, longest: int) -> tuple[Array, ...]:
        operand, part = OPERAND[self.kind], IN_WORD[self.kind]
        qkv = padded((self.num_heads + 2 * self.num_kv_heads) * self.head_width)
        context = self.num_heads * self.head_dim
        up = self._model[0][2][1].shape[1]
        array = SPACE.array
        widest = max(qkv, up, padded(self.width), padded(self.vocab_size), context)
        return (
            array("given", (rows, words_of(self.kind, self.width) * part), operand),
            array("between", (rows, words_of(self.kind, context) * part), operand),
            array("active", (rows, words_of(self.kind, self.inner) * part), operand),
            array("qkv", (rows, qkv), np.float32),
            array("context", (rows, context), np.float32),
            array(
                "products", (rows, max(up, padded(self.width), padded(self.num_heads * self.head_width))), np.float32
            ),
            array("steps", (2, rows), np.float32),
            array("scores", (ROWS, -(-longest // TOKENS) * TOKENS), np.float32),
            array("part", (2, ROWS, self.head_width), np.float32),
            array("buffer", (widest,), np.float32),
        )


@njit(**OPTIONS)
def _turn(buffer, at, head_dim, cos, sin):  # type: ignore[no-untyped-def]
    """Rotate the halves of a head by its position."""
    half = head_dim // 2
    for place in range(half):
        x, y = buffer[at + place], buffer[at + half + place]
        buffer[at + place] = x * cos[place] - y * sin[place]
        buffer[at + half + place] = y * cos[half + place] + x * sin[half + place]


@njit(**OPTIONS)
def _give(hidden, rows, width, first, weight, bias, eps, rms, smooth, operand, steps, buffer):  # type: ignore[no-untyped-def]
    """What a product is given: the hidden states, normed where norms come first."""
    for row in range(rows):
        for column in range(width):
            buffer[column] = hidden[row, column]
        if first:
            norm(buffer, width, weight, bias, eps, rms)
        put(buffer, width, smooth, operand, row, steps[0], steps[1])


@njit(**OPTIONS)
def _add(hidden, rows, width, first, weight, bias, eps, rms, operand, products, product_weight, layer, steps, buffer):  # type: ignore[no-untyped-def]
    """Add a product to the hidden states, normed where norms come after."""
    for row in range(rows):
        take(operand, products, row, width, product_weight, layer, row, steps[0], steps[1], buffer)
        for column in range(width):
            buffer[column] += hidden[row, column]
        if not first:
            norm(buffer, width, weight, bias, eps, rms)
        for column in range(width):
            hidden[row, column] = buffer[column]


@njit(**OPTIONS)
def _put_all(context, rows, smooth, operand, steps, buffer):  # type: ignore[no-untyped-def]
    width = context.shape[1]
    for row in range(rows):
        for column in range(width):
            buffer[column] = context[row, column]
        put(buffer, width, smooth, operand, row, steps[0], steps[1])


@njit(**OPTIONS)
def _best(row, width):  # type: ignore[no-untyped-def]
    """The place of the greatest, and whether nothing is NaN and something finite."""
    most, place = np.int32(-0x80000000), 0
    finite = False
    for column in range(width):
        most = max(most, ordered(bits_of(row[column])))
    for column in range(width):
        if ordered(bits_of(row[column])) == most:
            place = column
            break
    for column in range(width):
        finite |= (bits_of(row[column]) & np.int32(0x7F800000)) != np.int32(0x7F800000)
    low = np.int32(0x7FFFFFFF)
    for column in range(width):
        low = min(low, ordered(bits_of(row[column])))
    # NaN lies beyond infinity, at both ends
    return place, finite and most <= np.int32(0x7F800000) and low >= np.int32(-0x7F800001)


@njit(**OPTIONS)
def _step(  # type: ignore[no-untyped-def]
    hidden,
    spans,
    looks,
    wanted,
    weights,
    norms,
    eps,
    shape,
    inner,
    vocab_size,
    scales,
    bias,
    activation,
    flags,
    keys,
    values,
    cos,
    sin,
    logits,
    best,
    sound,
    given,
    between,
    active,
    qkv,
    context,
    products,
    steps,
    scores,
    part,
    buffer,
):
    starts, counts, firsts, blocks, block_starts = spans
    w_qkv, w_output, w_up, w_down, w_head, w_query, w_cross = weights
    (norm_1, bias_1), (norm_2, bias_2), (norm_3, bias_3), (norm_4, bias_4) = norms
    num_heads, kv_heads, head_dim, head_width = shape
    gated, first, rms, has_norm, has_cross = flags
    rows, width = hidden.shape
    queries, used = num_heads * head_width, (num_heads + 2 * kv_heads) * head_width
    for layer in range(norm_1.shape[0]):
        _give(
            hidden, rows, width, first, norm_1[layer], bias_1[layer], eps[0], rms, w_qkv[5][layer], given, steps, buffer
        )
        product(given, rows, w_qkv[0][layer], w_qkv[1].shape[1], qkv)
        for span in range(len(starts)):
            own = blocks[block_starts[span] :]
            for index in range(counts[span]):
                row, place = starts[span] + index, firsts[span] + index
                take(given, qkv, row, used, w_qkv, layer, row, steps[0], steps[1], buffer)
                if len(cos) > 0:
                    for head in range(num_heads + kv_heads):
                        _turn(buffer, head * head_width, head_dim, cos[row], sin[row])
                for column in range(queries):
                    qkv[row, column] = buffer[column] * scales[0]
                for column in range(queries, used):
                    qkv[row, column] = buffer[column]
                keep(qkv, row, own[place // TOKENS] * TOKENS + place % TOKENS, shape, keys[layer], values[layer])
        for span in range(len(starts)):
            own = blocks[block_starts[span] :]
            attend_span(
                qkv,
                starts[span],
                counts[span],
                firsts[span],
                own,
                shape,
                keys[layer],
                values[layer],
                bias,
                scores,
                part,
                context,
            )
        _put_all(context, rows, w_output[5][layer], between, steps, buffer)
        product(between, rows, w_output[0][layer], w_output[1].shape[1], products)
        _add(
            hidden,
            rows,
            width,
            first,
            norm_1[layer],
            bias_1[layer],
            eps[0],
            rms,
            between,
            products,
            w_output,
            layer,
            steps,
            buffer,
        )
        if has_cross:
            _give(
                hidden,
                rows,
                width,
                first,
                norm_4[layer],
                bias_4[layer],
                eps[3],
                rms,
                w_query[5][layer],
                given,
                steps,
                buffer,
            )
            product(given, rows, w_query[0][layer], w_query[1].shape[1], products)
            for row in range(rows):
                take(given, products, row, queries, w_query, layer, row, steps[0], steps[1], buffer)
                for column in range(queries):
                    qkv[row, column] = buffer[column] * scales[1]
            start = 0
            for source in range(len(looks[0])):
                count = looks[3][source]
                look(
                    qkv,
                    start,
                    count,
                    looks[0][source],
                    looks[1][source],
                    looks[2][source],
                    layer,
                    shape,
                    scores,
                    part,
                    context,
                )
                start += count
            _put_all(context, rows, w_cross[5][layer], between, steps, buffer)
            product(between, rows, w_cross[0][layer], w_cross[1].shape[1], products)
            _add(
                hidden,
                rows,
                width,
                first,
                norm_4[layer],
                bias_4[layer],
                eps[3],
                rms,
                between,
                products,
                w_cross,
                layer,
                steps,
                buffer,
            )
        _give(
            hidden, rows, width, first, norm_2[layer], bias_2[layer], eps[1], rms, w_up[5][layer], given, steps, buffer
        )
        product(given, rows, w_up[0][layer], w_up[1].shape[1], products)
        for row in range(rows):
            take(given, products, row, 2 * inner if gated else inner, w_up, layer, row, steps[0], steps[1], buffer)
            activate(buffer, inner, activation)
            if gated:
                for column in range(inner):
                    buffer[column] *= buffer[inner + column]
            put(buffer, inner, w_down[5][layer], active, row, steps[0], steps[1])
        product(active, rows, w_down[0][layer], w_down[1].shape[1], products)
        _add(
            hidden,
            rows,
            width,
            first,
            norm_2[layer],
            bias_2[layer],
            eps[1],
            rms,
            active,
            products,
            w_down,
            layer,
            steps,
            buffer,
        )
    for index in range(len(wanted)):
        for column in range(width):
            buffer[column] = hidden[wanted[index], column]
        if has_norm:
            norm(buffer, width, norm_3[0], bias_3[0], eps[2], rms)
        put(buffer, width, w_head[5][0], given, index, steps[0], steps[1])
    product(given, len(wanted), w_head[0][0], w_head[1].shape[1], logits)
    for index in range(len(wanted)):
        take(given, logits, index, vocab_size, w_head, 0, index, steps[0], steps[1], buffer)
        for column in range(vocab_size):
            logits[index, column] = buffer[column]
        best[index], sound[index] = _best(buffer, vocab_size)


keep_compiled(_step)
