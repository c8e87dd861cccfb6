"""Compatible routes against the native ones: the same numbers in other shapes, and errors in other words."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.metrics import total
from tests.contract.replies import close, describe, served
from tests.contract.routes import LONG, TEXTS
from tests.contract.server import Server, free_port, launch, write_config

QUERY = "who walks to Paris?"
CONTENT = {"content-type": "application/json"}


def good(reply: httpx.Response) -> Any:
    assert reply.status_code == 200, describe(reply)
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["server-timing"]
    return reply.json()


def native(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    return served(client.post(path, json=body))


def embeddings(client: httpx.Client, model: str, inputs: Any, **options: Any) -> np.ndarray:
    entries = native(client, "/embed", model=model, inputs=inputs, **options)
    return np.array([entry["embedding"] for entry in entries])


def ids_of(client: httpx.Client, model: str, *texts: str) -> list[list[int]]:
    return [entry["ids"] for entry in native(client, "/tokenize", model=model, inputs=list(texts))]


@pytest.fixture(scope="module")
def official(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as official:
        yield official


class TestOpenAI:
    def embed(self, client: httpx.Client, **body: Any) -> Any:
        return good(client.post("/v1/embeddings", json=body))

    @pytest.mark.parametrize("model", ["st-mean", "st-dense", "st-last", "st-mpnet"])
    def test_the_official_package(self, official: openai.OpenAI, client: httpx.Client, model: str) -> None:
        expected = native(client, "/embed", model=model, inputs=list(TEXTS))
        for encoding_format in ({}, {"encoding_format": "float"}):
            reply = official.embeddings.create(model=model, input=list(TEXTS), user="me", **encoding_format)  # type: ignore[arg-type]
            assert (reply.object, reply.model) == ("list", model)
            assert [entry.index for entry in reply.data] == [0, 1, 2]
            close([entry.embedding for entry in reply.data], [entry["embedding"] for entry in expected], 1e-6)
            assert reply.usage.prompt_tokens == sum(entry["tokens"] for entry in expected) == reply.usage.total_tokens

    def test_one_text_and_dimensions(self, official: openai.OpenAI, client: httpx.Client) -> None:
        reply = official.embeddings.create(model="st-mean", input=TEXTS[0], dimensions=7)
        close([reply.data[0].embedding], embeddings(client, "st-mean", TEXTS[0], dimensions=7), 1e-6)
        assert np.linalg.norm(reply.data[0].embedding) == pytest.approx(1, abs=1e-5)

    @pytest.mark.parametrize("model", ["st-mean", "st-dense", "st-last", "st-mpnet"])
    def test_token_ids_give_what_their_text_gives(
        self, official: openai.OpenAI, client: httpx.Client, model: str
    ) -> None:
        ids, expected = ids_of(client, model, *TEXTS), embeddings(client, model, list(TEXTS))
        several = official.embeddings.create(model=model, input=ids)
        close([entry.embedding for entry in several.data], expected, 1e-5)
        assert several.usage.prompt_tokens == sum(map(len, ids))
        one = official.embeddings.create(model=model, input=ids[1])
        close([entry.embedding for entry in one.data], expected[1:2], 1e-5)

    @pytest.mark.parametrize("side", ["right", "left"])
    @pytest.mark.parametrize("model", ["st-mean", "st-dense"])
    def test_long_token_ids_are_cut_as_their_text(self, client: httpx.Client, model: str, side: str) -> None:
        text = f"{' '.join(TEXTS)} [MASK] {LONG} {TEXTS[1]}"
        options = {"truncate": True, "truncation_side": side}
        found = self.embed(client, model=model, input=ids_of(client, model, text), **options)
        assert found["usage"]["prompt_tokens"] == 128
        close([found["data"][0]["embedding"]], embeddings(client, model, text, **options), 1e-5)

    def test_base64_on_the_wire(self, client: httpx.Client) -> None:
        entry = self.embed(client, model="st-mean", input=TEXTS[0], encoding_format="base64")["data"][0]
        close([np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")], embeddings(client, "st-mean", TEXTS[0]))

    def test_the_default_model(self, client: httpx.Client) -> None:
        assert self.embed(client, input="a")["model"] == "st-mean"

    def test_models(self, official: openai.OpenAI, client: httpx.Client) -> None:
        names = [model["name"] for model in client.get("/models").json()["models"]]
        assert [model.id for model in official.models.list()] == names
        assert official.models.retrieve("st-dense").id == "st-dense"

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            ({"input": []}, 400, "empty_inputs"),
            ({"input": [[]]}, 400, "empty_input"),
            ({"input": [[5], []]}, 400, "empty_input"),
            ({"input": [10**8]}, 400, "invalid_field"),
            ({"input": [[5], [10**8]]}, 400, "invalid_field"),
            ({"input": LONG}, 400, "context_length_exceeded"),
            ({"input": ["a", LONG]}, 400, "context_length_exceeded"),
            ({"input": [5] * 129}, 400, "context_length_exceeded"),
            ({"input": "a", "dimensions": 33}, 400, "invalid_field"),
            ({"input": [5], "dimensions": 33}, 400, "invalid_field"),
            ({"input": "a", "model": "bert-cls"}, 400, "wrong_task"),
            ({"input": "a", "model": "text-embedding-3-small"}, 404, "model_not_found"),
            ({}, 400, "invalid_field"),
        ],
    )
    def test_errors(self, client: httpx.Client, body: dict[str, Any], status: int, code: str) -> None:
        reply = client.post("/v1/embeddings", json={"model": "st-mean"} | body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), describe(reply)
        assert reply.json()["error"]["type"] == "invalid_request_error"

    def test_errors_of_the_official_package(self, official: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="st-mean"):
            official.embeddings.create(model="none", input="a")
        with pytest.raises(openai.BadRequestError, match="128"):
            official.embeddings.create(model="st-mean", input=LONG)
        with pytest.raises(openai.NotFoundError):
            official.models.retrieve("none")
        with pytest.raises(openai.NotFoundError, match="/v1/moderations"):
            official.moderations.create(input="a")


class TestRerank:
    def rerank(self, client: httpx.Client, **body: Any) -> Any:
        return good(client.post("/v1/rerank", json={"query": QUERY} | body))

    @pytest.mark.parametrize("model", ["bert-cross", "roberta-cross", "st-mean", "st-dense"])
    def test_scores_are_the_native_ones(self, client: httpx.Client, model: str) -> None:
        expected = native(client, "/rerank", model=model, query=QUERY, documents=list(TEXTS))
        found = self.rerank(client, model=model, documents=list(TEXTS), rank_fields=["text"])
        assert found["model"] == model
        assert [result["index"] for result in found["results"]] == [entry["index"] for entry in expected]
        close([result["relevance_score"] for result in found["results"]], [entry["score"] for entry in expected])
        assert found["usage"]["total_tokens"] > 0

    def test_documents(self, client: httpx.Client) -> None:
        documents = [{"text": text} for text in TEXTS]
        results = self.rerank(client, model="bert-cross", documents=documents, top_n=2, return_documents=True)[
            "results"
        ]
        assert len(results) == 2
        assert all(result["document"] == documents[result["index"]] for result in results)

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            ({"documents": []}, 400, "empty_inputs"),
            ({"documents": ["a", LONG], "top_n": 1}, 400, "context_length_exceeded"),
            ({"documents": [{}]}, 400, "invalid_field"),
            ({"documents": ["a"], "model": "bert-mlm"}, 400, "wrong_task"),
            ({"documents": ["a"], "model": "none"}, 404, "model_not_found"),
        ],
    )
    def test_errors(self, client: httpx.Client, body: dict[str, Any], status: int, code: str) -> None:
        reply = client.post("/v1/rerank", json={"query": QUERY, "model": "bert-cross"} | body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), describe(reply)

    def test_a_document_that_gives_nan_fails_the_request(self, client: httpx.Client) -> None:
        body = {"model": "poison-cross", "query": QUERY, "documents": ["a slow engine", "a kernel"]}
        reply = client.post("/v1/rerank", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "nonfinite_output"), describe(reply)


class TestTei:
    def ask(self, client: httpx.Client, route: str, **body: Any) -> Any:
        return good(client.post(f"/tei/{route}", json=body))

    @pytest.mark.parametrize("normalize", [True, False])
    def test_embed(self, client: httpx.Client, normalize: bool) -> None:
        found = self.ask(client, "embed", inputs=list(TEXTS), normalize=normalize)
        close(found, embeddings(client, "st-mean", list(TEXTS), normalize=normalize), 1e-6)
        close(self.ask(client, "embed", inputs=TEXTS[0], normalize=normalize), found[:1], 1e-5)

    def test_options_of_embed(self, client: httpx.Client) -> None:
        found = self.ask(client, "embed", inputs=LONG, truncate=True, truncation_direction="Left", prompt_name="query")
        options = {"truncate": True, "truncation_side": "left", "prompt_name": "query"}
        close(found, embeddings(client, "st-mean", LONG, **options), 1e-6)
        close(self.ask(client, "embed", inputs="a", dimensions=5), embeddings(client, "st-mean", "a", dimensions=5))
        close(self.ask(client, "embed", inputs=ids_of(client, "st-mean", "a")), embeddings(client, "st-mean", "a"))

    @pytest.mark.parametrize("model", ["bert-cls", "bert-multi", "bert-cross"])
    @pytest.mark.parametrize("raw_scores", [False, True])
    def test_predict(self, client: httpx.Client, model: str, raw_scores: bool) -> None:
        pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
        activation = "none" if raw_scores else "auto"
        expected = native(client, "/classify", model=model, inputs=[TEXTS[2], pair], activation=activation)
        options = {"model": model, "raw_scores": raw_scores}
        many = self.ask(client, "predict", inputs=[[TEXTS[2]], list(TEXTS[:2])], **options)
        assert many == [_labels(entry) for entry in expected]
        for inputs, entry in ((TEXTS[2], expected[0]), (list(TEXTS[:2]), expected[1])):
            alone = self.ask(client, "predict", inputs=inputs, **options)
            close([each["score"] for each in alone], [each["score"] for each in entry["labels"]])

    @pytest.mark.parametrize("model", ["bert-cross", "st-dense"])
    @pytest.mark.parametrize("raw_scores", [False, True])
    def test_rerank(self, client: httpx.Client, model: str, raw_scores: bool) -> None:
        activation = "none" if raw_scores else "auto"
        options = {"query": QUERY, "documents": list(TEXTS), "activation": activation}
        expected = native(client, "/rerank", model=model, **options)
        found = self.ask(
            client, "rerank", model=model, query=QUERY, texts=list(TEXTS), raw_scores=raw_scores, return_text=True
        )
        assert [rank["index"] for rank in found] == [entry["index"] for entry in expected]
        assert all(rank["text"] == TEXTS[rank["index"]] for rank in found)
        close([rank["score"] for rank in found], [entry["score"] for entry in expected])

    def test_similarity(self, client: httpx.Client) -> None:
        given = {"source": TEXTS[0], "sentences": list(TEXTS)}
        [expected] = native(client, "/similarity", inputs=given)
        found = self.ask(client, "similarity", inputs={"source_sentence": TEXTS[0], "sentences": list(TEXTS)})
        close(found, expected["scores"])
        assert found[0] == pytest.approx(1, abs=1e-5)

    @pytest.mark.parametrize("model", ["bert-cls", "roberta-cls", "xlmr-cls", "modernbert-cls"])
    @pytest.mark.parametrize("text", [TEXTS[0], "Zoë läuft 5 km — 東京 😀!", "  a  [SEP] b </s>", ""])
    def test_tokenize(self, client: httpx.Client, model: str, text: str) -> None:
        [expected] = native(client, "/tokenize", model=model, inputs=text)
        [found] = self.ask(client, "tokenize", model=model, inputs=text)
        assert [token["id"] for token in found] == expected["ids"]
        assert [token["special"] for token in found].count(True) == 2
        assert (found[0]["special"], found[-1]["special"]) == (True, True)
        for token, name, (start, stop) in zip(found, expected["tokens"], expected["offsets"], strict=True):
            if token["special"]:
                assert (token["text"], token["start"], token["stop"]) == (name, None, None)
            else:
                assert token["text"] == text[start:stop]
                assert text.encode()[token["start"] : token["stop"]].decode() == text[start:stop]
        [bare] = self.ask(client, "tokenize", model=model, inputs=text, add_special_tokens=False)
        assert bare == found[1:-1]

    def test_tokenize_is_of_the_model_that_embeds(self, client: httpx.Client) -> None:
        found = self.ask(client, "tokenize", inputs=["music", "winter"], prompt_name="query")
        ids = ids_of(client, "st-mean", "find this: music", "find this: winter")
        assert [[token["id"] for token in tokens] for tokens in found] == ids

    def test_info_and_health(self, client: httpx.Client) -> None:
        info = client.get("/tei/info").json()
        assert (info["served_model_name"], info["model_type"]) == ("st-mean", {"embedding": {"pooling": "mean"}})
        assert info["max_input_length"] == 128
        assert "reranker" in client.get("/tei/info", params={"model": "bert-cross"}).json()["model_type"]
        assert "classifier" in client.get("/tei/info", params={"model": "bert-cls"}).json()["model_type"]
        assert client.get("/tei/health").status_code == 200

    @pytest.mark.parametrize(
        ("route", "body", "status", "error_type"),
        [
            ("embed", {"inputs": []}, 400, "Empty"),
            ("embed", {"inputs": LONG}, 422, "Validation"),
            ("embed", {"inputs": ["a", LONG]}, 422, "Validation"),
            ("embed", {"inputs": "a", "prompt_name": "none"}, 422, "Validation"),
            ("embed", {"inputs": [5], "prompt_name": "query"}, 422, "Validation"),
            ("embed", {"inputs": "a", "model": "bert-cls"}, 424, "Backend"),
            ("embed", {"inputs": "a", "model": "none"}, 404, "Validation"),
            ("predict", {"inputs": LONG}, 422, "Validation"),
            ("predict", {"inputs": "a", "model": "st-mean"}, 424, "Backend"),
            ("predict", {"inputs": ["a", "b", "c"]}, 422, "Validation"),
            ("rerank", {"query": "q", "texts": []}, 400, "Empty"),
            ("rerank", {"query": "q", "texts": ["a", LONG]}, 422, "Validation"),
            ("rerank", {"query": "q", "texts": ["kernel"], "model": "poison-cross"}, 424, "Backend"),
            ("similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}, 422, "Validation"),
            ("tokenize", {"inputs": []}, 400, "Empty"),
            ("tokenize", {"inputs": "a", "model": "none"}, 404, "Validation"),
        ],
    )
    def test_errors(self, client: httpx.Client, route: str, body: dict[str, Any], status: int, error_type: str) -> None:
        reply = client.post(f"/tei/{route}", json=body)
        assert reply.status_code == status, describe(reply)
        assert set(reply.json()) == {"error", "error_type"}
        assert reply.json()["error_type"] == error_type


def _labels(entry: dict[str, Any]) -> list[Any]:
    return [{"label": each["label"], "score": pytest.approx(each["score"], abs=1e-5)} for each in entry["labels"]]


class TestKserve:
    def infer(self, client: httpx.Client, model: str, texts: Any, **body: Any) -> dict[str, dict[str, Any]]:
        tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
        found = good(client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor], **body}))
        assert found["model_name"] == model
        described = {each["name"]: each for each in client.get(f"/v2/models/{model}").json()["outputs"]}
        for output in found["outputs"]:
            assert output["datatype"] == described[output["name"]]["datatype"]
            assert len(output["data"]) == np.prod(output["shape"])
            if not body:
                assert output["shape"] == [len(texts), *described[output["name"]]["shape"][1:]]
        return {output["name"]: output for output in found["outputs"]}

    def test_embeddings(self, client: httpx.Client) -> None:
        output = self.infer(client, "st-dense", TEXTS)["embedding"]
        assert (output["datatype"], output["shape"]) == ("FP32", [3, 24])
        close(np.reshape(output["data"], output["shape"]), embeddings(client, "st-dense", list(TEXTS)), 1e-6)
        options = {"dimensions": 5, "normalize": False}
        output = self.infer(client, "st-dense", TEXTS, parameters=options)["embedding"]
        close(np.reshape(output["data"], (3, 5)), embeddings(client, "st-dense", list(TEXTS), **options), 1e-6)

    @pytest.mark.parametrize("model", ["bert-cls", "bert-multi", "bert-cross"])
    def test_labels(self, client: httpx.Client, model: str) -> None:
        expected = [entry["labels"] for entry in native(client, "/classify", model=model, inputs=list(TEXTS))]
        found = self.infer(client, model, TEXTS)
        assert found["labels"]["data"] == [each["label"] for labels in expected for each in labels]
        close(found["scores"]["data"], [each["score"] for labels in expected for each in labels])

    def test_pairs(self, client: httpx.Client) -> None:
        pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
        [expected] = native(client, "/classify", model="bert-cls", inputs=[pair], activation="none", top_k=2)
        tensors = [
            {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}
            for name, text in zip(pair, TEXTS, strict=False)
        ]
        body = {"inputs": tensors, "parameters": {"activation": "none", "top_k": 2}, "outputs": [{"name": "scores"}]}
        [scores] = good(client.post("/v2/models/bert-cls/infer", json=body))["outputs"]
        assert scores["shape"] == [1, 2]
        close(scores["data"], [each["score"] for each in expected["labels"]])

    @pytest.mark.parametrize(
        ("model", "texts", "parameters", "status"),
        [
            ("none", ["a"], {}, 404),
            ("bert-mlm", ["a"], {}, 400),
            ("bert-cls", ["a", LONG], {}, 400),
            ("bert-cls", [], {}, 400),
            ("bert-cls", [5], {}, 400),
            ("st-mean", ["a"], {"dimensions": 33}, 400),
            ("st-mean", ["a"], {"prompt_name": "none"}, 400),
            ("poison-cross", ["kernel"], {}, 500),
        ],
    )
    def test_errors(
        self, client: httpx.Client, model: str, texts: list[Any], parameters: dict[str, Any], status: int
    ) -> None:
        tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
        reply = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor], "parameters": parameters})
        assert reply.status_code == status, describe(reply)
        assert set(reply.json()) == {"error"}

    def test_server_and_health(self, client: httpx.Client) -> None:
        assert client.get("/v2").json()["name"] == "padserve"
        assert client.get("/v2/health/live").json() == {"live": True}
        assert client.get("/v2/health/ready").json() == {"ready": True}
        assert client.get("/v2/models/bert-cls/ready").json() == {"ready": True, "name": "bert-cls"}
        assert client.get("/v2/models/none/ready").status_code == 404


TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["winter"]}
REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "/v1/embeddings": ("embed", "st-mean", {"input": ["winter", "music"]}),
    "/v1/rerank": ("rerank", "st-mean", {"query": "a", "documents": ["winter", "music"]}),
    "/tei/embed": ("embed", "st-mean", {"inputs": ["winter", "music"]}),
    "/tei/predict": ("classify", "bert-cls", {"inputs": [["winter"], ["music", "winter"]]}),
    "/tei/rerank": ("rerank", "st-mean", {"query": "a", "texts": ["winter"]}),
    "/tei/similarity": ("similarity", "st-mean", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    "/tei/tokenize": ("tokenize", "st-mean", {"inputs": ["winter"], "add_special_tokens": False}),
    "/v2/models/bert-cls/infer": ("classify", "bert-cls", {"inputs": [TENSOR]}),
    "/v2/models/st-mean/infer": ("embed", "st-mean", {"inputs": [TENSOR], "parameters": {"normalize": False}}),
}
every_route = pytest.mark.parametrize("path", REQUESTS)


@every_route
def test_a_request_counts_once_under_its_task(client: httpx.Client, path: str) -> None:
    task, model, body = REQUESTS[path]
    labels = {"task": task, "model": model, "status": "200"}
    before = total(client, "padserve_requests_total", **labels)
    good(client.post(path, json=body))
    assert total(client, "padserve_requests_total", **labels) - before == 1


@every_route
def test_a_deadline_that_passes(client: httpx.Client, path: str) -> None:
    """With enough to do that a millisecond is too short."""
    body = json.loads(json.dumps(REQUESTS[path][2]).replace('"winter"', ", ".join(['"winter"'] * 900)))
    if path.startswith("/v2"):
        body["inputs"][0]["shape"] = [900]
    if path == "/tei/predict":
        body["inputs"] = [["winter"]] * 900
    if path == "/tei/similarity":
        body["inputs"]["sentences"] = ["winter"] * 900
    reply = client.post(path, json=body, headers={"X-Request-Timeout-Ms": "1"})
    assert reply.status_code == 504, describe(reply)
    assert "deadline" in reply.text


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "name", "data"]), inner),
    max_leaves=6,
)


@every_route
def test_no_body_makes_a_server_error(client: httpx.Client, path: str) -> None:
    base = REQUESTS[path][2]
    names = [*base, "model", "truncate", "dimensions", "parameters", "outputs", "top_n", "prompt_name", "timeout_ms"]

    @settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(st.sampled_from(names), json_values, max_size=3), st.binary(max_size=4), st.integers(0, 60))
    def fuzz(changes: dict[str, Any], noise: bytes, place: int) -> None:
        body = json.dumps(base | changes).encode()
        for content in (body, body[:place] + noise + body[place:]):
            reply = client.post(path, content=content, headers=CONTENT)
            assert reply.status_code < 500 or reply.status_code == 504, describe(reply)
            if reply.status_code != 200:
                assert "error" in reply.json(), describe(reply)

    fuzz()


def test_the_document_describes_what_is_answered(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path in (*REQUESTS, "/v1/models", "/tei/info", "/tei/health", "/v2", "/v2/health/live", "/v2/health/ready"):
        template = path.replace("bert-cls", "{name}").replace("st-mean", "{name}")
        assert "responses" in paths[template]["post" if path in REQUESTS else "get"]


@pytest.fixture(scope="module")
def guarded(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_text("right-key\n")
    port = free_port()
    settings = {"host": "127.0.0.1", "port": port, "api_keys_file": folder / "keys"}
    models = [{"name": name, "source": folders[name]} for name in ("st-mean", "bert-cls")]
    running = launch(folder, write_config(folder / "padserve.toml", settings, models), port=port)
    try:
        running.headers["Authorization"] = "Bearer right-key"
        yield running.wait_ready()
    finally:
        running.terminate()


class TestKeys:
    def test_the_official_package(self, guarded: Server) -> None:
        with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="right-key") as official:
            assert official.embeddings.create(model="st-mean", input="a").data[0].embedding
        with (
            openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong-key") as stranger,
            pytest.raises(openai.AuthenticationError) as caught,
        ):
            stranger.embeddings.create(model="st-mean", input="a")
        assert caught.value.code == "invalid_api_key"

    def test_every_route(self, guarded: Server) -> None:
        with httpx.Client(base_url=guarded.url) as stranger, guarded.client() as known:
            for path, (_, _, body) in REQUESTS.items():
                refused = stranger.post(path, json=body)
                assert refused.status_code == 401, describe(refused)
                assert "error" in refused.json()
                good(known.post(path, json=body))
            for path in ("/tei/health", "/v2/health/live", "/v2/health/ready"):
                assert stranger.get(path).status_code == 200
