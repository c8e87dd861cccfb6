"""fill-mask, classify, zero-shot, token-classify against transformers' pipelines."""

import warnings
from typing import Any

import pytest

from padserve.errors import InputTooLong, InvalidField, NoMask

from .conftest import BIO, CORPUS, KINDS, MakeServed, labels, pipe

NEAR = pytest.approx
EPS = 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_fill_mask_equals_the_pipeline(make: MakeServed, kind: str, mask: str) -> None:
    served = make(kind, "AutoModelForMaskedLM")
    oracle = pipe("fill-mask", served)
    own = oracle.tokenizer.mask_token
    for text in ("The capital of {} is Lisbon.", "My name is {} and I live in {}."):
        (result,) = served.results("fill-mask", inputs=text.replace("{}", mask), top_k=4)
        want = oracle(text.replace("{}", own), top_k=4)
        want = [want] if isinstance(want[0], dict) else want
        assert len(result["masks"]) == len(want) == text.count("{}")
        for got_mask, want_mask in zip(result["masks"], want, strict=True):
            assert [c["token"] for c in got_mask] == [c["token"] for c in want_mask]
            assert [c["token_str"] for c in got_mask] == [c["token_str"] for c in want_mask]
            assert [c["sequence"] for c in got_mask] == [c["sequence"] for c in want_mask]
            assert [c["score"] for c in got_mask] == NEAR([c["score"] for c in want_mask], abs=EPS)


def test_fill_mask_targets_equal_the_pipeline_and_unknown_ones_are_named(make: MakeServed) -> None:
    served = make("wordpiece", "AutoModelForMaskedLM")
    (result,) = served.results("fill-mask", inputs="the [MASK] office", targets=["the", "of", "the"])
    want = pipe("fill-mask", served)("the [MASK] office", targets=["the", "of"])
    assert [(c["token"], c["score"]) for c in result["masks"][0]] == [
        (c["token"], NEAR(c["score"], abs=EPS)) for c in want
    ]
    with pytest.raises(InvalidField, match="unbelievablyzz"):
        served.results("fill-mask", inputs="the [MASK]", targets=["unbelievablyzz"])


def test_fill_mask_edges(make: MakeServed) -> None:
    served = make("wordpiece", "AutoModelForMaskedLM")
    (result,) = served.results("fill-mask", inputs="a [MASK]", top_k=100_000)
    assert len(result["masks"][0]) == served.spec.vocab_size
    with pytest.raises(NoMask):
        served.results("fill-mask", inputs="no mask here")
    with pytest.raises(NoMask, match="truncation"):
        served.results("fill-mask", inputs="paris " * 90 + "[MASK]", truncate=True)
    (left,) = served.results("fill-mask", inputs="paris " * 90 + "[MASK]", truncate=True, truncation_side="left")
    assert left["truncated"]
    assert left["tokens"] == 64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("problem", [None, "multi_label_classification", "regression"])
def test_classify_equals_the_pipeline(make: MakeServed, kind: str, problem: str | None) -> None:
    names = labels(["joy", "anger", "fear", "hope"])
    served = make(kind, "AutoModelForSequenceClassification", problem_type=problem, **names)
    oracle = pipe("text-classification", served, top_k=None)
    pair = {"text": CORPUS[0], "text_pair": CORPUS[3]}
    results = served.results("classify", inputs=[*CORPUS[:2], pair])
    for result, given in zip(results, [*CORPUS[:2], pair], strict=True):
        want = oracle(given)
        want = want[0] if isinstance(want[0], list) else want
        assert [entry["label"] for entry in result["labels"]] == [entry["label"] for entry in want]
        assert [entry["score"] for entry in result["labels"]] == NEAR([entry["score"] for entry in want], abs=EPS)


@pytest.mark.parametrize(("activation", "function"), [("softmax", "softmax"), ("sigmoid", "sigmoid"), ("none", "none")])
def test_classify_activations_and_top_k(make: MakeServed, activation: str, function: str) -> None:
    served = make("wordpiece", "AutoModelForSequenceClassification", **labels(["a", "b", "c"]))
    (result,) = served.results("classify", inputs=CORPUS[0], activation=activation, top_k=2)
    want = pipe("text-classification", served, top_k=2, function_to_apply=function)(CORPUS[0])
    want = want[0] if isinstance(want[0], list) else want
    assert [entry["score"] for entry in result["labels"]] == NEAR([entry["score"] for entry in want], abs=EPS)


def test_labels_follow_their_ids_whatever_the_order_of_the_file(make: MakeServed) -> None:
    mixed = {"id2label": {"2": "c", "0": "a", "1": "b"}, "label2id": {"c": 2, "a": 0, "b": 1}}
    assert make("wordpiece", "AutoModelForSequenceClassification", **mixed).spec.labels == ("a", "b", "c")


NLI = [
    ["contradiction", "neutral", "entailment"],
    ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"],
    ["not_entailed", "entailed"],
]


@pytest.mark.parametrize("names", NLI, ids="-".join)
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("candidates", [["sport", "politics, law", "{science}"], ["sport"]], ids=["three", "one"])
def test_zero_shot_equals_the_pipeline(
    make: MakeServed, names: list[str], multi_label: bool, candidates: list[str]
) -> None:
    served = make("wordpiece", "AutoModelForSequenceClassification", **labels(names))
    (result,) = served.results("zero-shot", inputs=CORPUS[2], labels=candidates, multi_label=multi_label)
    want = pipe("zero-shot-classification", served)(CORPUS[2], candidates, multi_label=multi_label)
    got = {entry["label"]: entry["score"] for entry in result["labels"]}
    assert got == NEAR(dict(zip(want["labels"], want["scores"], strict=True)), abs=EPS)
    assert [entry["score"] for entry in result["labels"]] == sorted(got.values(), reverse=True)
    assert result["method"] == "nli"


def test_zero_shot_cuts_the_premise_only(make: MakeServed) -> None:
    served = make("wordpiece", "AutoModelForSequenceClassification", **labels(NLI[0]))
    long = " ".join(CORPUS)
    (result,) = served.results("zero-shot", inputs=long, labels=["sport"], truncate=True)
    want = pipe("zero-shot-classification", served)(long, ["sport"])
    assert result["labels"][0]["score"] == NEAR(want["scores"][0], abs=EPS)
    assert result["truncated"]
    with pytest.raises(InputTooLong):
        served.results("zero-shot", inputs="short", labels=["sport " * 80], truncate=True)
    with pytest.raises(InvalidField, match="hypothesis_template"):
        served.results("zero-shot", inputs="a", labels=["b"], hypothesis_template="no place")


def test_a_classifier_without_entailment_is_no_zero_shot_model(make: MakeServed) -> None:
    assert "zero-shot" not in make("wordpiece", "AutoModelForSequenceClassification", **labels(["a", "b"])).spec.tasks


TEXTS = [CORPUS[1], "  Zoë 🎉 lives\n in São Paulo.", "5.975,74"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_token_classify_equals_the_pipeline(make: MakeServed, kind: str, aggregation: str) -> None:
    served = make(kind, "AutoModelForTokenClassification", **labels(BIO))
    oracle = pipe("token-classification", served, aggregation_strategy=aggregation)
    for text in TEXTS:
        (result,) = served.results("token-classify", inputs=text, aggregation=aggregation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            want = oracle(text)
        found = [(entity["label"], NEAR(entity["score"], abs=EPS)) for entity in result["entities"]]
        assert [(one.get("entity_group", one.get("entity")), one["score"]) for one in want] == found
        for entity, one in zip(result["entities"], want, strict=True):
            assert entity["text"] == text[entity["start"] : entity["end"]] == text[one["start"] : one["end"]].strip()


def test_token_classify_long_texts_take_each_token_from_its_deepest_window(make: MakeServed) -> None:
    served = make("wordpiece", "AutoModelForTokenClassification", **labels(BIO))
    text = " ".join(CORPUS)
    with pytest.raises(InputTooLong):
        served.results("token-classify", inputs=text)
    (result,) = served.results("token-classify", inputs=text, stride=20, aggregation="none")
    want = deepest(served, text, 20)
    assert [(entity["start"], entity["label"]) for entity in result["entities"]] == want
    with pytest.raises(InvalidField, match="stride"):
        served.results("token-classify", inputs=text, stride=62)


def deepest(served: Any, text: str, stride: int) -> list[tuple[int, str]]:
    """The same by brute force: overflowing windows of the tokenizer, the stock model on each alone."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(served.folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(served.folder).eval()
    encoded = tokenizer(
        text, truncation=True, max_length=64, stride=stride, return_overflowing_tokens=True, return_offsets_mapping=True
    )
    best: dict[tuple[int, int], tuple[int, str]] = {}
    for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        with torch.inference_mode():
            rows = model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
        for place in range(1, len(ids) - 1):
            depth, span = min(place, len(ids) - 1 - place), tuple(offsets[place])
            if depth > best.get(span, (-1, ""))[0]:
                best[span] = (depth, BIO[rows[place]])
    return [(span[0], label) for span, (_, label) in sorted(best.items()) if label != "O"]
