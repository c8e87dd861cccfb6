"""/tokenize against the checkpoint's own tokenizer."""

from typing import Any

import httpx
import pytest

from tests.contract.oracles import Oracles
from tests.contract.replies import envelope, only, problem, served

MODELS = pytest.mark.parametrize(
    "model", ["bert-cls", "roberta-cls", "xlmr-cls", "modernbert-cls", "albert-cls", "st-mean"]
)
TEXTS = [
    "Anna walks to Paris.",
    "",
    " ",
    "naïve café — “quotes” … 5.975,74 €",
    "cafe\u0301 (decomposed)",
    "日本語のテキスト and 한국어",
    "emoji 👩‍👩‍👧 and 🏳️‍🌈",
    "tab\tnewline\nnull\u0000 soft\u00adhyphen zero\u200bwidth",
    "العربية עברית हिन्दी",
    "[MASK] [CLS] <mask> </s>",
]


@MODELS
@pytest.mark.parametrize("special", [True, False, None])
def test_ids_tokens_and_offsets(client: httpx.Client, oracles: Oracles, model: str, special: bool | None) -> None:
    extra = {} if special is None else {"add_special_tokens": special}
    reply = client.post("/tokenize", json={"model": model, "inputs": TEXTS, **extra})
    tokenizer = oracles.tokenizer(model)
    for text, entry in zip(TEXTS, served(reply, len(TEXTS)), strict=True):
        twin = tokenizer(text, add_special_tokens=special is not False, return_offsets_mapping=True)
        assert entry["ids"] == twin["input_ids"]
        assert entry["tokens"] == tokenizer.convert_ids_to_tokens(twin["input_ids"])
        assert entry["offsets"] == [list(span) for span in twin["offset_mapping"]]


def test_usage_is_the_number_of_ids(client: httpx.Client) -> None:
    body = envelope(client.post("/tokenize", json={"model": "bert-cls", "inputs": TEXTS}))
    assert body["usage"]["input_tokens"] == sum(len(entry["ids"]) for entry in body["results"])


@MODELS
def test_a_text_over_the_limit_is_counted_whole_or_refused(client: httpx.Client, oracles: Oracles, model: str) -> None:
    text = "river " * 300
    reply = client.post("/tokenize", json={"model": model, "inputs": text})
    if reply.status_code == 200:
        assert only(reply)["ids"] == oracles.tokenizer(model)(text)["input_ids"]
    else:
        problem(reply, 422, "input_too_long")


@MODELS
@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation(client: httpx.Client, oracles: Oracles, model: str, side: str) -> None:
    text = "a river and a bridge " * 80
    body = {"model": model, "inputs": text, "truncate": True, "truncation_side": side}
    entry = only(client.post("/tokenize", json=body))
    tokenizer = oracles.fresh_tokenizer(model, truncation_side=side)
    assert entry["ids"] == tokenizer(text, truncation=True, max_length=128)["input_ids"]
    assert entry["truncated"] is True


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_add_special_tokens_is_a_strict_boolean(client: httpx.Client, wrong: Any) -> None:
    body = {"model": "bert-cls", "inputs": "a", "add_special_tokens": wrong}
    problem(client.post("/tokenize", json=body), 422, "invalid_field")
