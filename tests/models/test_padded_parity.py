"""Encoders that no packed family covers: exact, padded or, where padding changes results, by equal lengths."""

from typing import Any

import numpy as np
import pytest

from padserve.models.pack import pack

EVERY = ("masked-lm", "sequence-classification", "token-classification", "embedding")
NO_MASKED_LM = EVERY[1:]
PADDED, EQUAL = "padded", "equal-length"
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 4}
MOBILE = {"intra_bottleneck_size": 16, "true_hidden_size": 16, "num_feedforward_networks": 2}
BART = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
CASES: list[tuple[str, tuple[str, ...], str | None, dict[str, Any]]] = [
    ("deberta", EVERY, PADDED, DEBERTA),
    ("longformer", EVERY, PADDED, {"attention_window": [8, 8]}),
    ("squeezebert", EVERY, PADDED, {"embedding_size": 32}),
    ("roformer", EVERY, PADDED, {"embedding_size": 32}),
    ("fnet", EVERY, EQUAL, {}),
    ("convbert", EVERY, EQUAL, {"embedding_size": 32, "conv_kernel_size": 3}),
    ("nystromformer", EVERY, EQUAL, {"num_landmarks": 64, "segment_means_seq_len": 64}),
    ("mobilebert", EVERY, EQUAL, {"embedding_size": 16, **MOBILE}),
    ("xlm", ("masked-lm", "sequence-classification"), PADDED, XLM | {"mask_token_id": 4}),
    ("xlnet", NO_MASKED_LM, None, {"d_model": 32, "n_layer": 2, "n_head": 4, "max_position_embeddings": None}),
    ("big_bird", NO_MASKED_LM, PADDED, {"attention_type": "original_full"}),
    ("canine", ("token-classification",), EQUAL, {}),
    ("funnel", ("token-classification",), EQUAL, {"block_sizes": [1, 1], "n_head": 4, "num_hidden_layers": None}),
    ("bart", ("sequence-classification",), PADDED, {"d_model": 32, "num_hidden_layers": None, **BART}),
    ("gpt2", NO_MASKED_LM, PADDED, {"n_positions": 128}),
]
PARAMETERS = [
    pytest.param(model_type, head, kind, changes, id=f"{model_type}-{head}")
    for model_type, heads, kind, changes in CASES
    for head in heads
]


@pytest.mark.parametrize(("model_type", "head", "kind", "changes"), PARAMETERS)
def test_alone_equals_crowd_equals_stock(
    model_type: str,
    head: Any,
    kind: str | None,
    changes: dict[str, Any],
    checkpoint: Any,
    load: Any,
    stock: Any,
    alone: Any,
    random_encodings: Any,
) -> None:
    folder = checkpoint(model_type, head, **changes)
    model, reference = load(folder), stock(folder, head)
    assert model.runner.kind == kind or (kind is None and model.runner.kind in (PADDED, EQUAL)), model.why
    assert model.spec.batching == "padded"
    shortest = 8 if model_type in ("canine", "funnel") else 2
    lengths = [shortest, 16, 17, 63, 128, 9, 32, 100, 17, shortest + 1, 128, 41]
    encodings = random_encodings(lengths, head)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        want = alone(reference, head, encoding)
        (single,) = model.run(pack([encoding]))
        np.testing.assert_allclose(output, want, rtol=0, atol=1e-4, err_msg=f"crowd, length {len(encoding)}")
        np.testing.assert_allclose(single, want, rtol=0, atol=1e-4, err_msg=f"alone, length {len(encoding)}")


@pytest.mark.parametrize("head", EVERY)
def test_a_packable_family_may_be_asked_to_pad(
    head: Any, checkpoint: Any, load: Any, stock: Any, alone: Any, random_encodings: Any
) -> None:
    folder = checkpoint("roberta", head)
    model, reference = load(folder, batching="padded"), stock(folder, head)
    assert (model.runner.kind, model.spec.batching) == (PADDED, "padded")
    encodings = random_encodings([1, 128, 17, 3], head)
    for encoding, output in zip(encodings, model.run(pack(encodings)), strict=True):
        np.testing.assert_allclose(output, alone(reference, head, encoding), rtol=0, atol=1e-4)
