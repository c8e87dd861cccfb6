"""Int8: the same results alone and in a crowd, near float32, refused where they are not, and `dtype = "auto"`."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from padserve.errors import ConfigError
from padserve.models import agreement, fastest
from padserve.models.agreement import Agreement, compare
from padserve.models.int8 import quantize_linears
from padserve.models.pack import pack
from padserve_kernels import int8_rows
from padserve_kernels.post_norm_encoder import can_compile
from tests.models.test_packed_parity import COMPILED, DEBERTA, EDGES, FAMILIES, FUSED, HEADS, crowd_lengths

QUANTIZED = [name for name, (kind, _) in FAMILIES.items() if kind in (COMPILED, FUSED)]
COMPILE = {True: "packed, compiled, int8", False: "packed, fused, int8"}


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of width 32 with random weights do not all reach the bounds, which are not what these tests are about."""
    monkeypatch.setattr(agreement, "BOUNDS", {"cosine": 0.9, "top-1": 0.5, "correlation": 0.9})


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("model_type", QUANTIZED)
@pytest.mark.parametrize("compiled", [True, False])
def test_alone_equals_crowd_and_is_near_float32(
    compiled: bool,
    model_type: str,
    head: Any,
    checkpoint: Any,
    load: Any,
    stock: Any,
    alone: Any,
    random_encodings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if compiled and (FAMILIES[model_type][0] == FUSED or not can_compile("int8")):
        pytest.skip("nothing of it is compiled here")
    monkeypatch.setattr("padserve.models.compiled.can_compile", lambda kind: compiled)
    folder = checkpoint(model_type, head, **FAMILIES[model_type][1])
    model, reference = load(folder, dtype="int8"), stock(folder, head)
    assert (model.runner.kind, model.spec.dtype) == (COMPILE[compiled], "int8")
    assert model.agreement is not None
    encodings = random_encodings(crowd_lengths(), head)
    crowd = model.run(pack(encodings))
    wanted = [alone(reference, head, encoding) for encoding in encodings]
    for encoding, output, want in zip(encodings, crowd, wanted, strict=True):
        assert output.dtype == np.float32
        scale = max(float(np.abs(want).max()), 0.1)
        assert np.abs(output - want).max() < 0.2 * scale
        if len(encoding) in EDGES:
            (single,) = model.run(pack([encoding]))
            np.testing.assert_allclose(single, output, rtol=0, atol=1e-5 * scale, err_msg=f"length {len(encoding)}")
    assert (
        np.corrcoef(np.concatenate([one.ravel() for one in crowd]), np.concatenate([one.ravel() for one in wanted]))[
            0, 1
        ]
        > 0.98
    )


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("layers", [1, 2])
def test_the_convolution_of_deberta(
    layers: int, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    changes = DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu", "num_hidden_layers": layers}
    folder = checkpoint("deberta-v2", "sequence-classification", **changes)
    model, reference = load(folder, dtype="int8"), stock(folder, "sequence-classification")
    encodings = random_encodings([1, 9, 128, 50], "sequence-classification")
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        want = alone(reference, "sequence-classification", encoding)
        assert np.abs(output - want).max() < 0.1 * max(float(np.abs(want).max()), 0.1)


@pytest.mark.parametrize("model_type", ["albert", "modernbert", "xlm"])
def test_what_has_no_int8_encoder_is_refused(model_type: str, checkpoint: Any, load: Any) -> None:
    folder = checkpoint(model_type, "embedding", **FAMILIES.get(model_type, ("", {}))[1])
    with pytest.raises(ConfigError, match=r"models\.\S+\.dtype: int8 runs packed and fused encoders only"):
        load(folder, dtype="int8")


def test_int8_cannot_be_padded(checkpoint: Any, load: Any) -> None:
    with pytest.raises(ConfigError, match="int8 runs packed"):
        load(checkpoint("bert", "embedding"), dtype="int8", batching="padded")


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
@pytest.mark.usefixtures("lenient")
def test_activations(act: str, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any) -> None:
    folder = checkpoint("bert", "embedding", hidden_act=act)
    model = load(folder, dtype="int8")
    (encoding,) = random_encodings([40], "embedding")
    want, (got,) = alone(stock(folder, "embedding"), "embedding", encoding), model.run(pack([encoding]))
    assert np.corrcoef(want, got)[0, 1] > 0.99


def test_a_checkpoint_that_suffers_is_refused(checkpoint: Any, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "BOUNDS", {"cosine": 1.5, "top-1": 1.5, "correlation": 1.5})
    with pytest.raises(ConfigError, match=r"int8 does not suit this checkpoint: cosine with float32 is 0\.\d+, 1\.5"):
        load(checkpoint("bert", "embedding"), dtype="int8")


def test_float16_is_for_gpus(checkpoint: Any, load: Any) -> None:
    with pytest.raises(ConfigError, match="float16 is not served on cpu; choose from float32, bfloat16, int8, auto"):
        load(checkpoint("bert", "embedding"), dtype="float16")


def test_bfloat16_tells_how_near_it_is(checkpoint: Any, load: Any) -> None:
    model = load(checkpoint("bert", "embedding"), dtype="bfloat16")
    assert model.agreement is not None
    assert 0.99 < model.agreement.value <= 1.0001
    assert load(checkpoint("bert", "embedding")).agreement is None


@pytest.mark.parametrize("quickest", ["float32", "bfloat16", "int8"])
@pytest.mark.usefixtures("lenient")
def test_auto_is_the_fastest(quickest: str, checkpoint: Any, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest, "run_seconds", lambda loaded: 0.5 if loaded.spec.dtype == quickest else 1.0)
    assert load(checkpoint("bert", "embedding"), dtype="auto").spec.dtype == quickest


def test_auto_leaves_out_what_does_not_agree(checkpoint: Any, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "BOUNDS", {"cosine": 1.5, "top-1": 1.5, "correlation": 1.5})
    monkeypatch.setattr(fastest, "run_seconds", lambda loaded: 2.0 if loaded.spec.dtype == "float32" else 1.0)
    assert load(checkpoint("bert", "embedding"), dtype="auto").spec.dtype == "float32"


def test_auto_runs_what_it_times(checkpoint: Any, load: Any) -> None:
    assert load(checkpoint("bert", "masked-lm"), dtype="auto").spec.dtype in ("float32", "bfloat16", "int8")


@pytest.mark.parametrize(
    ("head", "got", "measure", "value"),
    [
        ("embedding", [[2.0, 0.0], [0.0, 3.0]], "cosine", 1.0),
        ("embedding", [[1.0, 0.0], [1.0, 0.0]], "cosine", 0.5),
        ("sequence-classification", [[5.0, 4.0], [-1.0, 9.0]], "top-1", 1.0),
        ("sequence-classification", [[5.0, 4.0], [9.0, -1.0]], "top-1", 0.5),
        ("token-classification", [[0.0, 4.0], [9.0, -1.0]], "top-1", 0.0),
        ("embedding", [[np.nan, 0.0], [0.0, 1.0]], "cosine", -1.0),
        ("masked-lm", [[np.inf, 0.0], [0.0, 1.0]], "top-1", -1.0),
    ],
)
def test_agreement(head: Any, got: list[list[float]], measure: str, value: float) -> None:
    expected = [np.array([[1.0, 0.0]], np.float32), np.array([[0.0, 1.0]], np.float32)]
    found = compare(head, expected, [np.array([row], np.float32) for row in got])
    assert (found.measure, found.value) == (measure, pytest.approx(value))


def test_agreement_of_one_label_is_the_correlation() -> None:
    expected = [np.array([value], np.float32) for value in (0.0, 1.0, 2.0, 3.0)]
    same = compare("sequence-classification", expected, [2 * one + 1 for one in expected])
    assert (same.measure, same.value) == ("correlation", pytest.approx(1.0))
    assert not compare("sequence-classification", expected, expected[::-1]).passes


def test_near_ties_are_no_disagreement() -> None:
    expected = [np.array([1.0, 0.99, -1.0], np.float32)]
    assert compare("sequence-classification", expected, [np.array([0.98, 1.0, -1.0], np.float32)]).value == 1.0


def test_agreement_passes_at_its_bound() -> None:
    assert Agreement("cosine", 0.999).passes
    assert not Agreement("cosine", 0.99899).passes
    assert not Agreement("cosine", float("nan")).passes


@torch.inference_mode()
def test_rounding_columns_by_the_inputs_beats_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs whose channels go together: the error of the products, not of the weights, is what becomes small."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(600, 8, generator=generator) @ torch.randn(8, 96, generator=generator)
    inputs += 0.3 * torch.randn(600, 96, generator=generator)
    linear = nn.Linear(96, 64)
    nn.init.normal_(linear.weight, generator=generator)
    want = linear(inputs)

    def error() -> float:
        weight = quantize_linears((linear,), inputs)
        exact = (inputs * weight.smooth) @ (weight.values * weight.scale[:, None]).T + weight.bias
        return float((exact - want).norm() / want.norm())

    careful = error()
    monkeypatch.setattr("padserve.models.int8._round_columns", lambda w, s, x: (w / s[:, None]).round())
    assert careful < 0.8 * error()


@torch.inference_mode()
def test_a_channel_that_samples_did_not_show_does_no_harm() -> None:
    """Smoothing by what was seen must not blow up what was not."""
    inputs = torch.randn(50, 16, generator=torch.Generator().manual_seed(1))
    inputs[:, 3] = 0
    linear = nn.Linear(16, 8)
    weight = quantize_linears((linear,), inputs)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(2))
    got = int8_rows.linear(int8_rows.quantize(x, weight.smooth), weight)
    assert ((got - linear(x)).norm() / linear(x).norm()) < 0.1


@torch.inference_mode()
def test_a_layer_of_zeros() -> None:
    linear = nn.Linear(16, 8)
    nn.init.zeros_(linear.weight)
    weight = quantize_linears((linear,), torch.zeros(4, 16))
    got = int8_rows.linear(int8_rows.quantize(torch.randn(3, 16), weight.smooth), weight)
    torch.testing.assert_close(got, linear.bias.expand(3, 8))
