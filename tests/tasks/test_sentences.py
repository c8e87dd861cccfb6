"""embed, rerank, similarity against sentence-transformers; tokenize against the tokenizer."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from padserve.errors import EmptyInputs, InputTooLong, InvalidField

from .conftest import CORPUS, KINDS, MakeServed, Served, labels, save

NEAR = pytest.approx
EPS = 1e-4


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers model with prompts, a dense layer and a Normalize at its end."""
    base, folder = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("sentence")
    save(base, "wordpiece", "AutoModel", {})
    torch.manual_seed(5)
    modules = [Transformer(str(base)), Pooling(32, "mean"), Dense(32, 24), Normalize()]
    prompts = {"query": "find the ", "document": "text of ", "topic": "about "}
    SentenceTransformer(modules=modules, prompts=prompts, default_prompt_name="topic", device="cpu").save(str(folder))
    return folder


@pytest.fixture(scope="session")
def served(folder: Path) -> Served:
    return Served(folder)


@pytest.fixture(scope="session")
def oracle(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


def embedded(served: Served, **fields: Any) -> np.ndarray[Any, Any]:
    return np.array([result["embedding"] for result in served.results("embed", **fields)])


def test_embed_equals_encode(served: Served, oracle: SentenceTransformer) -> None:
    np.testing.assert_allclose(embedded(served, inputs=CORPUS), oracle.encode(CORPUS), atol=EPS)


def test_embed_prompts(served: Served, oracle: SentenceTransformer) -> None:
    named = embedded(served, inputs=CORPUS, prompt_name="query")
    np.testing.assert_allclose(named, oracle.encode(CORPUS, prompt_name="query"), atol=EPS)
    given = embedded(served, inputs=CORPUS, prompt="the post ")
    np.testing.assert_allclose(given, oracle.encode(CORPUS, prompt="the post "), atol=EPS)
    with pytest.raises(InvalidField, match="document, query, topic"):
        served.results("embed", inputs="a", prompt_name="nothing")


def test_embed_dimensions_and_normalization(served: Served, oracle: SentenceTransformer) -> None:
    cut = embedded(served, inputs=CORPUS, dimensions=10)
    np.testing.assert_allclose(cut, oracle.encode(CORPUS, truncate_dim=10, normalize_embeddings=True), atol=EPS)
    bare = SentenceTransformer(
        modules=list(oracle)[:-1], device="cpu", prompts=oracle.prompts, default_prompt_name="topic"
    )
    np.testing.assert_allclose(embedded(served, inputs=CORPUS, normalize=False), bare.encode(CORPUS), atol=EPS)
    with pytest.raises(InvalidField, match="dimensions"):
        served.results("embed", inputs="a", dimensions=25)


def test_embed_precisions(served: Served, oracle: SentenceTransformer) -> None:
    unit = oracle.encode(CORPUS)
    int8 = embedded(served, inputs=CORPUS, precision="int8")
    assert np.abs(int8 - np.rint(127 * unit)).max() <= 1
    assert (int8 == np.rint(127 * unit)).mean() > 0.97
    np.testing.assert_array_equal(
        embedded(served, inputs=CORPUS, precision="binary"), oracle.encode(CORPUS, precision="binary")
    )


def test_embed_base64(served: Served) -> None:
    for precision, dtype in (("float32", "<f4"), ("int8", "i1"), ("binary", "i1")):
        (written,) = served.results("embed", inputs=CORPUS[0], encoding="base64", precision=precision)
        numbers = np.frombuffer(base64.b64decode(written["embedding"]), dtype)
        np.testing.assert_allclose(numbers, embedded(served, inputs=CORPUS[0], precision=precision)[0], rtol=1e-6)


@pytest.mark.parametrize("mode", Pooling.POOLING_MODES)
def test_embed_pooling_override(served: Served, oracle: SentenceTransformer, mode: str) -> None:
    modules = [oracle[0], Pooling(32, mode), *list(oracle)[2:]]
    want = SentenceTransformer(modules=modules, device="cpu", prompts=oracle.prompts, default_prompt_name="topic")
    np.testing.assert_allclose(embedded(served, inputs=CORPUS, pooling=mode), want.encode(CORPUS), atol=EPS)


def test_similarity_and_zero_shot_are_cosines(served: Served, oracle: SentenceTransformer) -> None:
    vectors = oracle.encode(CORPUS)
    (result,) = served.results("similarity", inputs={"source": CORPUS[0], "sentences": CORPUS[1:]})
    assert result["scores"] == NEAR((vectors[1:] @ vectors[0]).tolist(), abs=EPS)
    (zero,) = served.results("zero-shot", inputs=CORPUS[2], labels=["sports", "science"])
    texts = oracle.encode(["This example is sports.", "This example is science."])
    want = dict(zip(["sports", "science"], (texts @ vectors[2]).tolist(), strict=True))
    assert {entry["label"]: entry["score"] for entry in zero["labels"]} == NEAR(want, abs=EPS)
    assert zero["method"] == "similarity"


def test_rerank_by_cosine_uses_the_prompts_of_both_roles(served: Served, oracle: SentenceTransformer) -> None:
    results = served.results("rerank", query="renew a passport", documents=CORPUS, return_documents=True)
    scores = oracle.encode_document(CORPUS) @ oracle.encode_query("renew a passport")
    assert [result["index"] for result in results] == np.argsort(-scores, kind="stable").tolist()
    assert [result["score"] for result in results] == NEAR(np.sort(scores)[::-1].tolist(), abs=EPS)
    assert all(result["document"] == CORPUS[result["index"]] for result in results)


@pytest.mark.parametrize("kind", KINDS)
def test_rerank_equals_the_cross_encoder(make: MakeServed, kind: str) -> None:
    served = make(kind, "AutoModelForSequenceClassification", **labels(["relevant"]))
    want = CrossEncoder(served.folder, device="cpu").rank("renew a passport", CORPUS)
    results = served.results("rerank", query="renew a passport", documents=CORPUS)
    assert [result["index"] for result in results] == [one["corpus_id"] for one in want]
    assert [result["score"] for result in results] == NEAR([float(one["score"]) for one in want], abs=EPS)
    assert len(served.results("rerank", query="passport", documents=CORPUS, top_k=2)) == 2


def test_rerank_cuts_the_document_only_and_puts_failures_last(make: MakeServed) -> None:
    served = make("wordpiece", "AutoModelForSequenceClassification", **labels(["relevant"]))
    long = " ".join(CORPUS)
    results = served.results("rerank", query="passport", documents=[long, "the post office"])
    assert [result["index"] for result in results] == [1, 0]
    assert results[1]["error"]["code"] == "input_too_long"
    cut = served.results("rerank", query="passport", documents=[long], truncate=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(served.folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(served.folder).eval()
    encoded = tokenizer("passport", long, truncation="only_second", max_length=64, return_tensors="pt")
    with torch.inference_mode():
        assert cut[0]["score"] == NEAR(model(**encoded).logits.sigmoid().item(), abs=EPS)
    with pytest.raises(InputTooLong):
        served.results("rerank", query=long, documents=["a"], truncate=True)
    with pytest.raises(EmptyInputs):
        served.results("rerank", query="a", documents=[])


def test_a_classifier_of_two_labels_is_no_reranker(make: MakeServed) -> None:
    assert "rerank" not in make("wordpiece", "AutoModelForSequenceClassification", **labels(["a", "b"])).spec.tasks


@pytest.mark.parametrize("kind", KINDS)
def test_tokenize_equals_the_tokenizer(make: MakeServed, kind: str) -> None:
    served = make(kind, "AutoModelForMaskedLM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(served.folder)
    for special in (True, False):
        (result,) = served.results("tokenize", inputs=CORPUS[1], add_special_tokens=special)
        want = tokenizer(CORPUS[1], add_special_tokens=special, return_offsets_mapping=True)
        assert result["ids"] == want["input_ids"]
        assert result["tokens"] == tokenizer.convert_ids_to_tokens(want["input_ids"])
        assert [tuple(pair) for pair in result["offsets"]] == [tuple(pair) for pair in want["offset_mapping"]]
