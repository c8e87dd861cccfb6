"""sentence-transformers folders: their own pooling, dense and prompts, against `SentenceTransformer.encode`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from padserve.core import Encoding
from padserve.errors import ConfigError
from padserve.models.pack import pack

TEXTS = [
    "a lazy dog",
    "the quick brown fox jumps over a lazy dog while seven wizards mix their potion in an old iron pot",
    "fox",
    "",
    "every sequence attends within itself " * 9,
]
PROMPT = "the query "
MODES = ["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens", ("mean", "max")]
Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def sentence_folder(tmp_path_factory: pytest.TempPathFactory, checkpoint: Any) -> Folder:
    """``sentence_folder(model_type, mode, dense, normalize, include_prompt)`` -> a saved folder."""

    def make(
        model_type: str = "bert",
        mode: Any = "mean",
        dense: bool = False,
        normalize: bool = False,
        include_prompt: bool = True,
        max_seq_length: int = 100,
    ) -> Path:
        changes = {"embedding_size": 32} if model_type == "roformer" else {}
        encoder = Transformer(str(checkpoint(model_type, "embedding", **changes)), max_seq_length=max_seq_length)
        pooling = Pooling(32, pooling_mode=mode, include_prompt=include_prompt)
        modules: list[Any] = [encoder, pooling]
        if dense:
            torch.manual_seed(1)
            modules.append(Dense(pooling.get_embedding_dimension(), 12, activation_function=torch.nn.Tanh()))
        if normalize:
            modules.append(Normalize())
        model = SentenceTransformer(modules=modules, prompts={"query": PROMPT}, device="cpu")
        folder = tmp_path_factory.mktemp("sentence")
        model.save_pretrained(str(folder), create_model_card=False)
        return folder

    return make


def encodings_of(model: SentenceTransformer, texts: list[str], prompt: str = "", **settings: Any) -> list[Encoding]:
    ids = model.tokenizer([prompt + text for text in texts], truncation=True, max_length=model.max_seq_length)
    return [Encoding(np.array(row, dtype=np.int64), **settings) for row in ids["input_ids"]]


@pytest.mark.parametrize("model_type", ["bert", "roformer"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_pooling_modes(mode: Any, model_type: str, sentence_folder: Folder, load: Any) -> None:
    folder = sentence_folder(model_type, mode)
    model, reference = load(folder), SentenceTransformer(str(folder), device="cpu")
    assert model.spec.head == "embedding"
    assert model.spec.max_length == 100
    assert model.spec.embedding.pooling == (mode if isinstance(mode, str) else "mean+max")
    assert model.spec.embedding.dimensions == reference.get_embedding_dimension()
    outputs = model.run(pack(encodings_of(reference, TEXTS)))
    for text, output in zip(TEXTS, outputs, strict=True):
        np.testing.assert_allclose(output, reference.encode(text), rtol=0, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_dense_follows_pooling_and_normalize_is_left_to_the_task(
    normalize: bool, sentence_folder: Folder, load: Any
) -> None:
    folder = sentence_folder(dense=True, normalize=normalize)
    model, reference = load(folder), SentenceTransformer(str(folder), device="cpu")
    assert model.spec.embedding.dimensions == 12
    outputs = np.stack(model.run(pack(encodings_of(reference, TEXTS))))
    if normalize:
        assert np.abs(np.linalg.norm(outputs, axis=1) - 1).max() > 0.05
        outputs /= np.linalg.norm(outputs, axis=1, keepdims=True)
    np.testing.assert_allclose(outputs, np.stack([reference.encode(text) for text in TEXTS]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "weightedmean", "lasttoken"])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompt_tokens_are_pooled_only_if_the_model_says_so(
    include_prompt: bool, mode: str, sentence_folder: Folder, load: Any
) -> None:
    folder = sentence_folder(mode=mode, include_prompt=include_prompt)
    model, reference = load(folder), SentenceTransformer(str(folder), device="cpu")
    assert model.spec.embedding.prompts["query"] == PROMPT
    assert model.spec.embedding.include_prompt is include_prompt
    count = len(reference.tokenizer(PROMPT)["input_ids"]) - 1
    texts = ["a lazy dog", "fox", "an old iron pot"]
    prompted = encodings_of(reference, texts, PROMPT, prompt_tokens=count)
    plain = encodings_of(reference, texts)
    outputs = model.run(pack([prompted[0], plain[0], prompted[1], plain[1], plain[2], prompted[2]]))
    want = [reference.encode(text, prompt=PROMPT) for text in texts], [reference.encode(text) for text in texts]
    for output, expected in zip(
        outputs, (want[0][0], want[1][0], want[0][1], want[1][1], want[1][2], want[0][2]), strict=True
    ):
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


def test_a_request_may_ask_for_another_pooling_within_a_batch(sentence_folder: Folder, load: Any) -> None:
    modes = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
    folder = sentence_folder(mode="cls")
    model = load(folder)
    base = SentenceTransformer(str(folder), device="cpu")
    encodings = [encodings_of(base, [text], pooling=mode)[0] for text in TEXTS[:3] for mode in (*modes, None)]
    outputs = iter(model.run(pack(encodings)))
    references = {
        mode: SentenceTransformer(modules=[base[0], Pooling(32, pooling_mode=mode)], device="cpu") for mode in modes
    }
    for text in TEXTS[:3]:
        for mode in (*modes, "cls"):
            np.testing.assert_allclose(next(outputs), references[mode].encode(text), rtol=0, atol=1e-5)


def test_a_plain_transformers_folder_embeds_by_mean(checkpoint: Any, load: Any) -> None:
    folder = checkpoint("bert", "masked-lm")
    model = load(folder, tasks=("embed",))
    assert (model.spec.head, model.spec.embedding.pooling) == ("embedding", "mean")
    reference = SentenceTransformer(str(folder), device="cpu")
    outputs = model.run(pack(encodings_of(reference, TEXTS)))
    for text, output in zip(TEXTS, outputs, strict=True):
        np.testing.assert_allclose(output, reference.encode(text), rtol=0, atol=1e-5)


def test_modules_that_cannot_be_served_are_named(tmp_path: Path, load: Any, checkpoint: Any) -> None:
    from sentence_transformers.sentence_transformer.modules import CNN

    encoder = Transformer(str(checkpoint("bert", "embedding")))
    SentenceTransformer(modules=[encoder, CNN(32, 16), Pooling(48)], device="cpu").save_pretrained(
        str(tmp_path), create_model_card=False
    )
    with pytest.raises(ConfigError, match=r"models\.m: modules Transformer, CNN, Pooling"):
        load(tmp_path)
