"""Every packed family and head: alone, in a crowd of 64 mixed lengths, and by stock transformers alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from padserve.models.pack import pack
from padserve_kernels.post_norm_encoder import can_compile
from tests.models.conftest import MAX_LENGTH, randomize, train_tokenizer

HEADS = ("masked-lm", "sequence-classification", "token-classification", "embedding")
EDGES = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128)
FUSED, STOCK = "packed, fused", "packed"
COMPILED = "packed, compiled" if can_compile("float32") else FUSED
TYPED = ("bert", "electra", "albert", "ernie")
DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "type_vocab_size": 0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": (COMPILED, {}),
    "roberta": (COMPILED, {}),
    "xlm-roberta": (COMPILED, {}),
    "camembert": (COMPILED, {}),
    "data2vec-text": (COMPILED, {}),
    "distilbert": (COMPILED, {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}),
    "electra": (COMPILED, {"embedding_size": 16}),
    "albert": (STOCK, {"embedding_size": 16}),
    "modernbert": (STOCK, {"local_attention": 16, "global_attn_every_n_layers": 2}),
    "deberta-v2": (FUSED, DEBERTA),
    "mpnet": (FUSED, {}),
    "ernie": (STOCK, {}),
    "roberta-prelayernorm": (STOCK, {}),
    "xlm-roberta-xl": (STOCK, {}),
}


def crowd_lengths() -> list[int]:
    """64 of them: every bucket edge and its neighbours, one token, the maximum, and a mix, shuffled."""
    rng = np.random.default_rng(3)
    lengths = np.array([*EDGES, *rng.integers(1, 129, 64 - len(EDGES))])
    rng.shuffle(lengths)
    return [int(length) for length in lengths]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("model_type", FAMILIES)
def test_alone_equals_crowd_equals_stock(
    model_type: str, head: Any, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    kind, changes = FAMILIES[model_type]
    folder = checkpoint(model_type, head, **changes)
    model, reference = load(folder), stock(folder, head)
    assert (model.runner.kind, model.spec.batching) == (kind, "packed"), model.why
    assert model.spec.max_length == 128
    encodings = random_encodings(crowd_lengths(), head, types=model_type in TYPED)
    crowd = model.run(pack(encodings))
    for index, (encoding, output) in enumerate(zip(encodings, crowd, strict=True)):
        want = alone(reference, head, encoding)
        assert output.dtype == np.float32
        np.testing.assert_allclose(output, want, rtol=0, atol=1e-4, err_msg=f"crowd, length {len(encoding)}")
        if len(encoding) in EDGES or index % 4 == 0:
            (single,) = model.run(pack([encoding]))
            np.testing.assert_allclose(single, want, rtol=0, atol=1e-4, err_msg=f"alone, length {len(encoding)}")
            if (
                kind == "packed, compiled" and head == "embedding" and model_type != "electra"
            ):  # which projects by torch
                np.testing.assert_array_equal(single, output)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("model_type", [name for name, (kind, _) in FAMILIES.items() if kind == COMPILED])
def test_fused_where_nothing_compiles(
    model_type: str,
    head: Any,
    checkpoint: Any,
    load: Any,
    stock: Any,
    alone: Any,
    random_encodings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("padserve.models.compiled.can_compile", lambda kind: False)
    folder = checkpoint(model_type, head, **FAMILIES[model_type][1])
    model, reference = load(folder), stock(folder, head)
    assert model.runner.kind == FUSED, model.why
    encodings = random_encodings(crowd_lengths()[:12], head, types=model_type in TYPED)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, head, encoding), rtol=0, atol=1e-4)


MORE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "nomic_bert": (HEADS, {}),
    "eurobert": (HEADS, {}),
    "jina_embeddings_v3": (HEADS, {}),
    "roc_bert": (HEADS, {}),
    "layoutlm": (("embedding",), {}),
    "gte": (("embedding",), {}),
    "esmc": (("embedding",), {}),
}


@pytest.mark.parametrize(
    ("model_type", "head"), [(model_type, head) for model_type, (heads, _) in MORE.items() for head in heads]
)
def test_more_families(
    model_type: str, head: Any, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    folder = checkpoint(model_type, head, **MORE[model_type][1])
    model, reference = load(folder), stock(folder, head)
    assert model.runner.kind == STOCK, model.why
    encodings = random_encodings(crowd_lengths()[:24], head)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, head, encoding), rtol=0, atol=1e-4)


T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
T5 |= {"relative_attention_max_distance": 20, "vocab_size": 120, "pad_token_id": 1, "tie_word_embeddings": False}


@pytest.mark.parametrize("projection", ["relu", "gated-gelu"])
@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5"])
def test_encoders_of_t5(
    model_type: str, projection: str, tmp_path: Path, load: Any, alone: Any, random_encodings: Any
) -> None:
    """Sentence-T5 and its kin: the encoder alone, distances beyond the linear buckets and beyond the last one."""
    config = transformers.AutoConfig.for_model(model_type, **T5, feed_forward_proj=projection)
    auto = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}[model_type]
    reference = getattr(transformers, auto)(config).eval()
    randomize(reference, 5)
    reference.save_pretrained(tmp_path)
    train_tokenizer(MAX_LENGTH).save_pretrained(tmp_path)
    model = load(tmp_path, tasks=("embed",))
    assert model.runner.kind == STOCK, model.why
    encodings = random_encodings(crowd_lengths()[:24], "embedding")
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, "embedding", encoding), rtol=0, atol=1e-4)


def test_a_head_that_reads_the_decoder_is_padded(tmp_path: Path, load: Any) -> None:
    config = transformers.AutoConfig.for_model("t5", **T5, num_labels=3, decoder_start_token_id=1, eos_token_id=2)
    reference = transformers.T5ForSequenceClassification(config).eval()
    reference.save_pretrained(tmp_path)
    train_tokenizer(MAX_LENGTH).save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.spec.batching == "padded"
    assert "the head reads the decoder" in model.why


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_activations_are_not_mixed_up(
    act: str, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    """gelu by erf and by tanh are two functions; one that the fused encoder does not know runs the stock module."""
    folder = checkpoint("bert", "embedding", hidden_act=act)
    model = load(folder)
    assert model.runner.kind == (STOCK if act == "silu" else COMPILED)
    (encoding,) = random_encodings([40], "embedding")
    want = alone(stock(folder, "embedding"), "embedding", encoding)
    np.testing.assert_allclose(model.run(pack([encoding]))[0], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        (DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"}, FUSED),
        (DEBERTA | {"position_buckets": -1, "max_relative_positions": 24}, FUSED),
        (DEBERTA | {"share_att_key": False, "pos_att_type": ["c2p"]}, FUSED),
        (DEBERTA | {"position_biased_input": True, "norm_rel_ebd": "none", "type_vocab_size": 2}, FUSED),
        ({"relative_attention": False, "position_biased_input": True}, "padded"),
    ],
    ids=["conv", "linear", "one-term", "absolute-too", "not-relative"],
)
def test_variants_of_deberta(
    changes: Any, kind: str, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    folder = checkpoint("deberta-v2", "embedding", **changes)
    model, reference = load(folder), stock(folder, "embedding")
    assert model.runner.kind == kind, model.why
    encodings = random_encodings(crowd_lengths()[:24], "embedding", types=changes.get("type_vocab_size") == 2)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, "embedding", encoding), rtol=0, atol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_classifier_pools_as_configured(
    pooling: str, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    head: Any = "sequence-classification"
    folder = checkpoint("modernbert", head, local_attention=16, classifier_pooling=pooling)
    model, reference = load(folder), stock(folder, head)
    encodings = random_encodings([1, 9, 128, 50], head)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, head, encoding), rtol=0, atol=1e-4)


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta-xl"])
def test_a_padding_token_within_the_text_takes_no_position(
    model_type: str, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    """A client may write ``<pad>``: the stock module leaves it at padding_idx and counts on after it."""
    head: Any = "token-classification"
    folder = checkpoint(model_type, head)
    encodings = random_encodings([12, 9, 30], head)
    for encoding, places in zip(encodings, ([4, 5], [], [0, 28]), strict=True):
        encoding.input_ids[places] = 1
    model, reference = load(folder), stock(folder, head)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, head, encoding), rtol=0, atol=1e-4)


def test_sequences_with_and_without_token_types_share_a_batch(
    checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    head: Any = "token-classification"
    folder = checkpoint("bert", head)
    encodings = [*random_encodings([7, 20], head, types=True), *random_encodings([11], head)]
    model, reference = load(folder), stock(folder, head)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, head, encoding), rtol=0, atol=1e-4)


@pytest.mark.parametrize("model_type", ["bert", "albert"])
def test_gathers_of_unlike_sizes_return_to_their_own_sequence(
    model_type: str, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    from dataclasses import replace

    head: Any = "masked-lm"
    folder = checkpoint(model_type, head, **FAMILIES[model_type][1])
    gathers = ((), (0,), (5, 2, 2), tuple(range(20)))
    encodings = [
        replace(encoding, gather=gather)
        for encoding, gather in zip(random_encodings([5, 1, 8, 20], head), gathers, strict=True)
    ]
    model, reference = load(folder), stock(folder, head)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        want = alone(reference, head, encoding)
        assert output.shape == want.shape
        np.testing.assert_allclose(output, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "deberta-v2", "mpnet"])
@pytest.mark.parametrize("head", HEADS)
def test_bfloat16_alone_is_close_to_the_crowd_and_to_float32(
    head: Any, model_type: str, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    folder = checkpoint(model_type, head, **FAMILIES[model_type][1])
    model, reference = load(folder, dtype="bfloat16"), stock(folder, head)
    assert model.spec.dtype == "bfloat16"
    assert model.spec.batching == "packed", model.why
    encodings = random_encodings(crowd_lengths()[:24], head)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        want = alone(reference, head, encoding)
        (single,) = model.run(pack([encoding]))
        assert output.dtype == np.float32
        scale = max(float(np.abs(want).max()), 1.0)
        assert np.abs(output - single).max() < 0.03 * scale
        assert np.abs(output - want).max() < 0.1 * scale
