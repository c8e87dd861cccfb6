"""How a way of running is chosen, checked and refused, and what stays in memory."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from padserve.core import Batch, Encoding, Output
from padserve.errors import ConfigError
from padserve.models.families import modernbert, roberta, stock
from padserve.models.families.base import Family
from padserve.models.families.table import FAMILIES, find_family
from padserve.models.pack import pack
from padserve.models.probe import Probe

CLASSIFIER: Any = "sequence-classification"


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_family_with_wrong_positions_is_found_out(
    offset: int, monkeypatch: Any, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    folder = checkpoint("roberta", CLASSIFIER)
    monkeypatch.setattr(roberta.Roberta, "position_offset", lambda self, config: offset)
    model, reference = load(folder), stock(folder, CLASSIFIER)
    assert (model.runner.kind, model.spec.batching) == ("padded", "padded")
    assert "packed, fused deviates" in model.why
    encodings = random_encodings([3, 128, 40], CLASSIFIER)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, CLASSIFIER, encoding), rtol=0, atol=1e-4)
    with pytest.raises(ConfigError, match="no way of running RobertaForSequenceClassification"):
        load(folder, batching="packed")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head", ["embedding", "masked-lm"])
def test_a_family_with_wrong_positions_is_found_out_in_every_dtype(
    head: Any, dtype: str, monkeypatch: Any, checkpoint: Any, load: Any
) -> None:
    monkeypatch.setattr(roberta.Roberta, "position_offset", lambda self, config: 1)
    assert load(checkpoint("roberta", head), dtype=dtype).runner.kind == "padded"


def test_a_window_that_is_not_honoured_is_found_out(monkeypatch: Any, checkpoint: Any, load: Any) -> None:
    """ModernBERT's local layers see 8 tokens to each side; a packed attention that sees all of them is wrong."""
    from padserve.attention import packed

    original = packed.packed_attention
    monkeypatch.setattr(packed, "packed_attention", lambda *arguments: original(*arguments[:5], None))
    changes = {"local_attention": 16, "global_attn_every_n_layers": 2}
    assert load(checkpoint("modernbert", "embedding", **changes)).runner.kind == "padded"


def test_a_head_that_is_given_too_little_is_found_out(monkeypatch: Any, checkpoint: Any, load: Any) -> None:
    monkeypatch.setattr(modernbert.ModernBert, "first_token_head", True)
    folder = checkpoint("modernbert", CLASSIFIER, local_attention=16, classifier_pooling="mean")
    assert load(folder).runner.kind == "padded"


def test_fused_layers_that_go_wrong_leave_the_stock_module_whole(monkeypatch: Any, checkpoint: Any, load: Any) -> None:
    from padserve.models import fused

    monkeypatch.setitem(fused.ACTIVATIONS, "gelu", "relu")
    model = load(checkpoint("bert", CLASSIFIER))
    assert model.runner.kind == "packed"
    assert "packed, fused deviates" in model.why


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("fnet", {}), ("roformer", {"embedding_size": 32}), ("deberta-v2", {"relative_attention": False})],
)
def test_packed_is_refused_where_no_family_packs(model_type: str, changes: Any, checkpoint: Any, load: Any) -> None:
    with pytest.raises(ConfigError, match=r"models\.m: no way of running .* with batching = 'packed'"):
        load(checkpoint(model_type, "embedding", **changes), batching="packed")


@pytest.mark.parametrize("head", ["masked-lm", CLASSIFIER, "token-classification"])
def test_a_head_without_weights_is_refused(head: Any, checkpoint: Any, load: Any, tmp_path: Path) -> None:
    """transformers would make them up at random and warn."""
    folder = Path(copytree(checkpoint("bert", "embedding"), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    suffix = {"masked-lm": "MaskedLM", CLASSIFIER: "SequenceClassification"}.get(head, "TokenClassification")
    config["architectures"] = [f"BertFor{suffix}"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"models\.m: .* has no weights for .* not trained for a {head} head"):
        load(folder)


def test_a_folder_without_weights_is_refused(checkpoint: Any, load: Any, tmp_path: Path) -> None:
    for head in ("embedding", CLASSIFIER):
        folder = Path(copytree(checkpoint("bert", head), tmp_path / head))
        (folder / "model.safetensors").unlink()
        with pytest.raises(ConfigError, match=r"models\.m: cannot load"):
            load(folder)


def test_a_folder_without_a_tokenizer_is_refused(checkpoint: Any, load: Any, tmp_path: Path) -> None:
    folder = Path(copytree(checkpoint("bert", CLASSIFIER), tmp_path / "model"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ConfigError, match=r"models\.m: cannot load the tokenizer"):
        load(folder)


def test_a_model_that_fails_on_a_plain_sentence_is_refused(checkpoint: Any, load: Any) -> None:
    """Nyströmformer with fewer landmarks than its segments takes one length only."""
    folder = checkpoint("nystromformer", "embedding", num_landmarks=8, segment_means_seq_len=128)
    with pytest.raises(ConfigError, match=r"models\.m: NystromformerModel does not run on a plain sentence"):
        load(folder)


def test_a_tokenizer_with_token_types_serves_a_model_without(checkpoint: Any, load: Any, tmp_path: Path) -> None:
    settings = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    for model_type, changes, typed in (("distilbert", settings, False), ("bert", {}, True)):
        folder = Path(copytree(checkpoint(model_type, "embedding", **changes), tmp_path / model_type))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        model = load(folder)
        assert model.runner.kind in ("packed, compiled", "packed, fused")
        encoding = model.tokenizer.encoding("a lazy dog", max_length=128)
        assert (encoding.token_type_ids is not None) == typed


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_dtype_that_is_not_served_names_those_that_are(dtype: str, checkpoint: Any, load: Any) -> None:
    with pytest.raises(ConfigError, match=r"models\.m\.dtype: .* float32, bfloat16"):
        load(checkpoint("bert", "embedding"), dtype=dtype)


def test_the_fused_path_gives_the_stock_weights_back(checkpoint: Any, load: Any, monkeypatch: Any) -> None:
    from padserve.models import load as loading

    bases: list[nn.Module] = []
    original = loading.load_stock

    def keep(*arguments: Any) -> Any:
        stock = original(*arguments)
        bases.append(stock.base)
        return stock

    monkeypatch.setattr(loading, "load_stock", keep)
    model = load(checkpoint("bert", "masked-lm"))
    assert model.runner.kind in ("packed, compiled", "packed, fused")
    matrices = [m for m in bases[0].encoder.modules() if isinstance(m, nn.Linear)]  # type: ignore[operator,union-attr]
    assert len(matrices) == 12
    assert all(matrix.weight.numel() == 0 for matrix in matrices)


def test_a_reply_does_not_depend_on_an_earlier_batch(checkpoint: Any, load: Any, random_encodings: Any) -> None:
    for model_type in ("bert", "albert", "modernbert"):
        model = load(checkpoint(model_type, "embedding"))
        short, long = random_encodings([5], "embedding"), random_encodings([128, 128], "embedding")
        (first,) = model.run(pack(short))
        kept = first.copy()
        model.run(pack(long))
        np.testing.assert_array_equal(model.run(pack(short))[0], kept)
        np.testing.assert_array_equal(first, kept, "an output is a view of a buffer that was used again")


def test_facts_of_a_classifier(checkpoint: Any, load: Any) -> None:
    spec = load(checkpoint("roberta", CLASSIFIER, problem_type="multi_label_classification"), default=True).spec
    assert (spec.name, spec.head, spec.family) == ("m", CLASSIFIER, "roberta")
    assert spec.architecture == "RobertaForSequenceClassification"
    assert spec.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert (spec.dtype, spec.device) == ("float32", "cpu")
    assert (spec.max_length, spec.vocab_size, spec.problem_type) == (128, 120, "multi_label_classification")
    assert spec.default


def test_a_batch_always_holds_the_longest_input(checkpoint: Any, load: Any) -> None:
    assert load(checkpoint("bert", "embedding"), max_batch_tokens=16).spec.max_batch_tokens == 128


def test_every_family_of_the_table_can_be_imported() -> None:
    assert all(isinstance(find_family(model_type), Family) for model_type in FAMILIES)
    assert find_family("longformer") is None
    assert stock.FAMILY.position_offset(None) == 0


class Fixed:
    """A runner that returns what it is told."""

    kind = "fixed"

    def __init__(self, *outputs: list[float]) -> None:
        self.outputs: list[Output] = [np.array(output, dtype=np.float32) for output in outputs]

    def run(self, batch: Batch) -> list[Output]:
        return self.outputs[: batch.num_seqs]


@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        (([1, 2], [3, -4]), 0.0),
        (([1, 2], [3, -4.4]), 0.1),
        (([1, 2.4], [3, -4]), 0.1),
        (([1, 2], [3, float("nan")]), float("inf")),
        (([1, 2], [float("inf"), -4]), float("inf")),
        (([1, 2], [3]), float("inf")),
    ],
)
def test_deviation_is_relative_to_the_greatest_magnitude(outputs: Any, error: float) -> None:
    encodings = tuple(Encoding(np.arange(1, 3)) for _ in range(2))
    probe = Probe(encodings, tuple(np.array(values, dtype=np.float32) for values in ([1, 2], [3, -4])))
    assert probe.error(Fixed(*outputs)) == pytest.approx(error)


def test_small_outputs_are_held_to_their_own_scale() -> None:
    """An embedding of small components, wrong by a third, must not pass as a small absolute difference."""
    probe = Probe((Encoding(np.arange(1, 3)),), (np.array([0.03, -0.3], dtype=np.float32),))
    assert probe.error(Fixed([0.03, -0.2])) > 0.3


def test_the_model_stays_on_its_device_and_dtype(checkpoint: Any, load: Any, random_encodings: Any) -> None:
    model = load(checkpoint("bert", "embedding"), dtype="bfloat16")
    outputs = model.run(pack(random_encodings([4, 9], "embedding")))
    assert all(output.dtype == np.float32 for output in outputs)
    assert torch.get_default_dtype() == torch.float32
