"""Compiled decoders against their definition, in whatever parts and company a sequence comes."""

from typing import Any

import numpy as np
import pytest
import torch

from padserve_kernels.decoder import (
    CrossWeights,
    DecoderLayerWeights,
    DecoderWeights,
    Kind,
    Norm,
    Weight,
    can_compile,
    compile_decoder,
    reference,
)
from padserve_kernels.int8_rows import QuantizedWeight

KINDS: tuple[Kind, ...] = ("float32", "bfloat16", "int8_weights")
pytestmark = pytest.mark.skipif(not can_compile("float32"), reason="the processor has no AVX-512")
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.15, "int8_weights": 0.15}
VOCAB = 70
LLAMA = {"rms": True, "norm_first": True, "gated": True, "activation": "silu"}
BART = {"rms": False, "norm_first": False, "gated": False, "activation": "gelu"}
M2M = {"rms": False, "norm_first": True, "gated": False, "activation": "relu"}
T5 = {"rms": True, "norm_first": True, "gated": False, "activation": "relu"}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": LLAMA | {"heads": (6, 2, 24), "turned": True},
    "llama, wide groups": LLAMA | {"heads": (8, 1, 16), "turned": True},
    "no groups": LLAMA | {"heads": (3, 3, 20), "turned": True},
    "bart": BART | {"heads": (4, 4, 12), "cross": True},
    "m2m": M2M | {"heads": (2, 2, 72), "cross": True},
    "t5": T5 | {"heads": (4, 4, 8), "cross": True, "biased": True},
}


def weight(kind: Kind, outputs: int, inputs: int) -> Weight | QuantizedWeight:
    values, bias = torch.randn(outputs, inputs) / inputs**0.5, torch.randn(outputs) * 0.1
    if kind != "int8_weights":
        return Weight(values.to(getattr(torch, kind)), bias)
    scale = values.abs().amax(1) / 127
    rounded = (values / scale[:, None]).round()
    return QuantizedWeight(rounded.to(torch.int8), scale, scale * rounded.sum(1), bias, torch.ones(inputs))


def make(kind: Kind, shape: str, width: int = 36, inner: int = 50) -> DecoderWeights:
    if not can_compile(kind):
        pytest.skip(f"the processor has no {kind} products")
    torch.manual_seed(len(shape))
    given = SHAPES[shape]
    heads, kv_heads, head_dim = given["heads"]

    def norm() -> Norm:
        return Norm(torch.rand(width) + 0.5, None if given["rms"] else torch.randn(width) * 0.1, 1e-6)

    def layer() -> DecoderLayerWeights:
        cross = None
        if given.get("cross"):
            cross = CrossWeights(weight(kind, heads * head_dim, width), weight(kind, width, heads * head_dim), norm())
        return DecoderLayerWeights(
            weight(kind, (heads + 2 * kv_heads) * head_dim, width),
            weight(kind, width, heads * head_dim),
            weight(kind, inner * (2 if given["gated"] else 1), width),
            weight(kind, width, inner),
            norm(),
            norm(),
            cross,
        )

    return DecoderWeights(
        kind,
        (layer(), layer()),
        weight(kind, VOCAB, width),
        norm() if given["norm_first"] else None,
        heads,
        kv_heads,
        head_dim,
        head_dim**-0.5,
        given["activation"],
        given["gated"],
        given["norm_first"],
        given["rms"],
        cross_scale=head_dim**-0.5,
        bias=torch.randn(heads, 9) if given.get("biased") else None,
    )


class Sequence:
    """Embeddings, where they stand in the cache, and what its logits are by the definition."""

    def __init__(self, weights: DecoderWeights, shape: str, length: int, first_block: int) -> None:
        given, (heads, _, head_dim) = SHAPES[shape], SHAPES[shape]["heads"]
        self.hidden = torch.randn(length, 36)
        self.blocks = [first_block + 2 * index for index in range(-(-length // 16))]
        angles = torch.arange(length)[:, None] * torch.rand(head_dim // 2)
        self.turns = (torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin())
        self.turns = self.turns if given.get("turned") else None
        self.source = torch.randn(2, 2, heads, 1 + length % 21, head_dim) if given.get("cross") else None
        self.logits = reference.decode(weights, self.hidden, self.turns, self.source)
        self.done = 0

    def kept(self, head_width: int) -> Any:
        from padserve_kernels.decoder.compiled import KeptSource

        assert self.source is not None
        layers, _, heads, length, head_dim = self.source.shape
        keys = np.full((layers, heads, head_dim, -(-length // 16) * 16), np.nan, np.float32)
        values = np.full((layers, heads, length, head_width), np.nan, np.float32)
        keys[..., :length] = self.source[:, 0].transpose(2, 3).numpy()
        values[..., :head_dim] = self.source[:, 1].numpy()
        return KeptSource(keys, values, length)


def step(decoder: Any, parts: list[tuple[Sequence, int]], keys: Any, values: Any) -> Any:
    """Run the next ``count`` tokens of each sequence; logits after every one of them, by sequence."""
    from padserve_kernels.decoder.compiled import NOTHING, Rows

    starts, blocks, places, at = [], [], [], 0
    for sequence, count in parts:
        starts.append(at)
        places.append(len(blocks))
        blocks += sequence.blocks[: -(-(sequence.done + count) // 16)]
        at += count
    hidden = torch.cat([one.hidden[one.done : one.done + count] for one, count in parts]).numpy().copy()
    cos, sin = NOTHING, NOTHING
    if parts[0][0].turns is not None:
        cos, sin = (
            torch.cat([one.turns[index][one.done : one.done + count] for one, count in parts]).numpy()  # type: ignore[index]
            for index in range(2)
        )
    sources = [(one.kept(decoder.head_width), count) for one, count in parts if one.source is not None]
    ints = [np.array(x, np.int64) for x in (starts, [c for _, c in parts], [s.done for s, _ in parts], blocks, places)]
    logits = decoder(hidden, Rows(*ints, sources), np.arange(at), keys, values, cos, sin)
    np.testing.assert_array_equal(logits.best, logits.values.argmax(1))
    for sequence, count in parts:
        sequence.done += count
    return np.split(logits.values, np.cumsum([count for _, count in parts])[:-1]), logits


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_it_is_defined_to_be_in_any_parts_and_company(kind: Kind, shape: str) -> None:
    weights = make(kind, shape)
    decoder = compile_decoder(weights)
    crowd = [Sequence(weights, shape, length, 1 + 20 * index) for index, length in enumerate((40, 3, 17, 33))]
    keys, values = decoder.new_keys(90), decoder.new_values(90)
    keys[:], values[:] = np.nan, np.nan  # what nobody has written must not be read
    found: list[list[Any]] = [[] for _ in crowd]
    rng = np.random.default_rng(0)
    while left := [index for index, one in enumerate(crowd) if one.done < len(one.hidden)]:
        parts = [(crowd[i], int(min(rng.choice([1, 1, 2, 7, 20]), len(crowd[i].hidden) - crowd[i].done))) for i in left]
        for index, logits in zip(left, step(decoder, parts, keys, values)[0], strict=True):
            found[index].append(logits)
    for index, (sequence, parts_found) in enumerate(zip(crowd, found, strict=True)):
        together = np.concatenate(parts_found)
        assert np.abs(together - sequence.logits.numpy()).max() < TOLERANCE[kind]
        sequence.done, alone = 0, []
        keys[:], values[:] = np.nan, np.nan
        for _ in range(len(sequence.hidden)):
            alone.append(step(decoder, [(sequence, 1)], keys, values)[0][0])
        assert np.array_equal(np.concatenate(alone), together), index


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_told_and_stays_with_its_row(kind: Kind) -> None:
    weights = make(kind, "llama")
    decoder = compile_decoder(weights)
    pair = [Sequence(weights, "llama", 5, 1), Sequence(weights, "llama", 5, 30)]
    clean = step(decoder, [(pair[1], 5)], decoder.new_keys(60), decoder.new_values(60))[0][0]
    for value in (np.nan, np.inf):
        pair[0].hidden[0, 3] = value
        pair[0].done = pair[1].done = 0
        (_, good), logits = step(decoder, [(one, 5) for one in pair], decoder.new_keys(60), decoder.new_values(60))
        assert logits.sound.tolist() == [False] * 5 + [True] * 5
        np.testing.assert_array_equal(good, clean)


def test_what_memory_held_before_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    from padserve_kernels.x86 import space

    original = space.Space.array

    def poison(self: Any, *arguments: Any) -> Any:
        array = original(self, *arguments)
        array.reshape(-1).view(np.uint8)[:] = 0xFF  # NaN in float32 and in bfloat16
        return array

    for kind in KINDS:
        weights = make(kind, "t5")
        decoder = compile_decoder(weights)
        sequence = Sequence(weights, "t5", 19, 1)
        clean = step(decoder, [(sequence, 19)], decoder.new_keys(60), decoder.new_values(60))[0][0]
        sequence.done = 0
        with monkeypatch.context() as patch:
            patch.setattr(space.Space, "array", poison)
            again = step(decoder, [(sequence, 19)], decoder.new_keys(60), decoder.new_values(60))[0][0]
        np.testing.assert_array_equal(again, clean)
