"""Compiled encoders against their definition, and that nothing but a sequence itself decides about its result."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from padserve_kernels.int8_rows import QuantizedWeight
from padserve_kernels.post_norm_encoder import (
    Embeddings,
    EncoderWeights,
    Kind,
    LayerWeights,
    Norm,
    Weight,
    can_compile,
    compile_encoder,
    reference,
)

KINDS: tuple[Kind, ...] = ("float32", "bfloat16", "int8")
pytestmark = pytest.mark.skipif(not can_compile("float32"), reason="the processor has no AVX-512")
SHAPES = {"narrow": (36, 50, 3), "even": (64, 128, 4), "wide heads": (160, 96, 2), "whole panels": (128, 256, 2)}
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "int8": 5e-3}


def weight(kind: Kind, outputs: int, inputs: int) -> Weight | QuantizedWeight:
    values, bias = torch.randn(outputs, inputs) / inputs**0.5, torch.randn(outputs) * 0.1
    if kind != "int8":
        return Weight(values.to(getattr(torch, kind)), bias)
    scale = values.abs().amax(1) / 127
    rounded = (values / scale[:, None]).round()
    smooth = torch.rand(inputs) + 0.5
    return QuantizedWeight(rounded.to(torch.int8), scale, scale * rounded.sum(1), bias, smooth)


def make(kind: Kind, width: int, inner: int, heads: int, layers: int = 1, activation: Any = "gelu") -> EncoderWeights:
    if not can_compile(kind):
        pytest.skip(f"the processor has no {kind} products")
    torch.manual_seed(width + layers)

    def norm() -> Norm:
        return Norm(torch.rand(width) + 0.5, torch.randn(width) * 0.1, 1e-6)

    made = [
        LayerWeights(
            weight(kind, 3 * width, width),
            weight(kind, width, width),
            weight(kind, inner, width),
            weight(kind, width, inner),
            norm(),
            norm(),
        )
        for _ in range(layers)
    ]
    tables = [
        torch.randn(rows, width).to(torch.bfloat16 if kind == "bfloat16" else torch.float32) for rows in (40, 90, 2)
    ]
    return EncoderWeights(kind, tuple(made), heads, activation, Embeddings(*tables, norm()))


def ends_of(lengths: Any) -> Any:
    return np.cumsum([0, *lengths])


@pytest.mark.parametrize("lengths", [(1,), (7,), (1, 6, 64, 5, 16), (65, 3), (129,)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_it_is_defined_to_be(kind: Kind, shape: str, lengths: tuple[int, ...]) -> None:
    weights = make(kind, *SHAPES[shape])
    hidden = torch.randn(sum(lengths), SHAPES[shape][0])
    got = compile_encoder(weights)(hidden.numpy(), ends_of(lengths))
    want = reference.encode(weights, hidden, lengths).numpy()
    off = np.abs(got - want)
    assert off.mean() < TOLERANCE[kind] / 4, off.mean()
    if kind != "int8":  # there a value between two steps may be rounded either way
        assert off.max() < TOLERANCE[kind], off.max()


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("kind", KINDS)
def test_activations(kind: Kind, activation: Any) -> None:
    weights = make(kind, 64, 128, 4, activation=activation)
    hidden = torch.randn(20, 64)
    got = compile_encoder(weights)(hidden.numpy(), ends_of((20,)))
    assert np.abs(got - reference.encode(weights, hidden, (20,)).numpy()).mean() < TOLERANCE[kind] / 4


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_embedded(kind: Kind) -> None:
    from padserve_kernels.post_norm_encoder.compiled import Tokens

    weights = make(kind, 64, 128, 4)
    encoder, tables = compile_encoder(weights), weights.embeddings
    assert tables is not None
    assert tables.types is not None
    ids, positions = np.arange(30) * 7 % 40, np.arange(30)
    types = np.arange(30) % 2
    for given_types, used in ((types, types), (None, types * 0)):
        summed = tables.words[ids].float() + tables.positions[positions].float() + tables.types[used].float()
        hidden = torch.nn.functional.layer_norm(summed, (64,), tables.norm.weight, tables.norm.bias, tables.norm.eps)
        got = encoder(Tokens(ids, positions, given_types), ends_of((10, 20)))
        assert np.abs(got - encoder(hidden.numpy(), ends_of((10, 20)))).mean() < TOLERANCE[kind] / 4
    for wrong in (
        Tokens(ids + 30, positions),
        Tokens(ids, positions + 80),
        Tokens(ids, positions, types + 1),
        Tokens(ids - 1, positions),
    ):
        with pytest.raises(IndexError, match="outside"):
            encoder(wrong, ends_of((10, 20)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6), picked=st.integers(0, 5), seed=st.integers(0, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_is_the_same_bits_alone_and_among_others(
    kind: Kind, lengths: list[int], picked: int, seed: int
) -> None:
    encoder = compile_encoder(make(kind, 64, 128, 4, layers=2))
    ends, index = ends_of(lengths), picked % len(lengths)
    hidden = np.random.default_rng(seed).standard_normal((sum(lengths), 64)).astype(np.float32)
    together, own = encoder(hidden, ends), slice(ends[index], ends[index + 1])
    alone = encoder(hidden[own], ends_of((lengths[index],)))
    np.testing.assert_array_equal(alone, together[own])
    hidden[[row for row in range(len(hidden)) if not own.start <= row < own.stop]] = np.nan
    np.testing.assert_array_equal(encoder(hidden, ends)[own], alone)


@pytest.mark.parametrize("kind", KINDS)
def test_wanted_rows_and_means(kind: Kind) -> None:
    lengths = (3, 130, 1, 8)
    encoder = compile_encoder(make(kind, 64, 128, 4, layers=2))
    hidden = np.random.default_rng(0).standard_normal((sum(lengths), 64)).astype(np.float32)
    ends = ends_of(lengths)
    whole = encoder(hidden, ends)
    for rows in ([0], [0, 3, 133], [141, 5, 5, 2], list(range(142)) * 2, []):
        np.testing.assert_array_equal(encoder(hidden, ends, np.array(rows, dtype=np.int64)), whole[rows])
    means = np.stack([whole[start:stop].mean(0) for start, stop in pairwise(ends)])
    np.testing.assert_allclose(encoder(hidden, ends, mean=True), means, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_memory_held_before_does_not_matter(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    from padserve_kernels.x86 import space

    encoder = compile_encoder(make(kind, 36, 50, 3, layers=2))
    hidden = np.random.default_rng(0).standard_normal((77, 36)).astype(np.float32)
    clean = encoder(hidden, ends_of((70, 7)))
    original, poisoned = space.Space.array, []

    def poison(self: Any, *arguments: Any) -> Any:
        array = original(self, *arguments)
        array.reshape(-1).view(np.uint8)[:] = 0xFF  # NaN in float32 and in bfloat16
        poisoned.append(array)
        return array

    monkeypatch.setattr(space.Space, "array", poison)
    np.testing.assert_array_equal(encoder(hidden, ends_of((70, 7))), clean)
    assert len(poisoned) == 12


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_stays_so(kind: Kind, value: float) -> None:
    encoder = compile_encoder(make(kind, 64, 128, 4, layers=2))
    hidden = np.random.default_rng(0).standard_normal((30, 64)).astype(np.float32)
    hidden[3, 5] = value
    got = encoder(hidden, ends_of((10, 20)))
    assert np.isnan(got[:10]).any(1).all()
    assert np.isfinite(got[10:]).all()


def test_threads_share_an_encoder() -> None:
    from concurrent.futures import ThreadPoolExecutor

    encoder = compile_encoder(make("float32", 64, 128, 4))
    batches = [np.random.default_rng(n).standard_normal((40 + n, 64)).astype(np.float32) for n in range(8)]
    want = [encoder(batch, ends_of((len(batch),))) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for got, expected in zip(pool.map(lambda b: encoder(b, ends_of((len(b),))), batches), want, strict=True):
                np.testing.assert_array_equal(got, expected)
