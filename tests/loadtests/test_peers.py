"""How each peer is asked, and which of them a comparison takes. None is installed or started."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.bench import PEERS, chosen, parsed, serving
from loadtests.generating import Passage
from loadtests.measuring import fault
from loadtests.models import bert
from loadtests.peers.base import TRANSLATING, Peer, cohere_rerank, openai_embed, top
from loadtests.peers.infinity import Infinity
from loadtests.peers.ours import Padserve
from loadtests.peers.small import Onnxruntime
from loadtests.peers.vllm_cpu import VllmCpu
from loadtests.tasks import TASKS, Ranking

ASKED: dict[str, Any] = {
    "embed": "a text\nof two lines",
    "classify": "a text",
    "fill-mask": "a [MASK]",
    "rerank": Ranking("q", ("first", "second", "third")),
    "generate": Passage("a prompt", 64),
    **dict.fromkeys(TRANSLATING, Passage("a source", 40, 4)),
}
EVERY: dict[str, Peer] = {"padserve": Padserve(), **{name: make() for name, make in PEERS.items()}}
# One reply of each shape: the second label, token or document is the best.
REPLIES: dict[str, dict[str, Any]] = {
    "padserve": {
        "embed": {"results": [{"embedding": [0.6, 0.8]}]},
        "classify": {"results": [{"labels": [{"label": "B", "score": 0.7}, {"label": "A", "score": 0.3}]}]},
        "fill-mask": {"results": [{"masks": [[{"token": 7, "score": 0.7}, {"token": 3, "score": 0.2}]]}]},
        "rerank": {"results": [{"index": 1}, {"index": 0}, {"index": 2}]},
        "generate": {"results": [{"outputs": [{"text": "ab", "token_ids": [5, 6]}]}]},
    },
    "infinity": {
        "embed": {"data": [{"embedding": [0.6, 0.8]}]},
        "classify": {"data": [[{"label": "A", "score": 0.3}, {"label": "B", "score": 0.7}]]},
        "rerank": {"results": [{"index": at, "relevance_score": s} for at, s in enumerate((0.2, 0.9, 0.1))]},
    },
    "vllm": {
        "embed": {"data": [{"embedding": [0.6, 0.8]}]},
        "classify": {"data": [{"label": "B", "probs": [0.3, 0.7]}]},
        "rerank": {"results": [{"index": at, "relevance_score": s} for at, s in enumerate((0.2, 0.9, 0.1))]},
        "generate": {"choices": [{"text": "ab", "token_ids": [5, 6]}]},
    },
    "llamacpp": {"generate": {"content": "ab", "tokens": [5, 6]}},
    "ctranslate2": {"translate": {"tokens": [5, 6]}},
    "naive": {
        "embed": {"embedding": [0.6, 0.8]},
        "classify": {"labels": [{"label": "B", "score": 0.7}, {"label": "A", "score": 0.3}]},
        "fill-mask": {"tokens": [{"token": 7, "score": 0.7}, {"token": 3, "score": 0.2}]},
        "rerank": {"results": [{"index": 1}, {"index": 0}, {"index": 2}]},
    },
}
ANSWERS: dict[str, Any] = {"embed": [0.6, 0.8], "classify": ("B", 0.7), "fill-mask": (7, 0.7), "rerank": [1, 0, 2]}
ANSWERS |= {"generate": [5, 6], "translate": [5, 6]}


@pytest.mark.parametrize(("name", "task"), [(name, task) for name, replies in REPLIES.items() for task in replies])
def test_the_main_numbers_of_a_reply_are_found(name: str, task: str) -> None:
    assert EVERY[name].asks[task].answer(REPLIES[name][task]) == ANSWERS[task]


@pytest.mark.parametrize("peer", EVERY.values(), ids=EVERY)
def test_a_request_is_one_line_of_json_that_holds_what_is_asked(peer: Peer) -> None:
    assert peer.asks
    for task, ask in peer.asks.items():
        body = ask.encoded(ASKED[task])
        assert b"\n" not in body
        asked = ASKED[task]
        wanted = asked.documents if task == "rerank" else [asked.text if isinstance(asked, Passage) else asked]
        for text in wanted:
            assert json.dumps(text) in json.dumps(json.loads(body))
        assert ask.path.startswith("/")


@pytest.mark.parametrize("peer", EVERY.values(), ids=EVERY)
def test_a_server_listens_on_the_loopback_interface_and_the_given_port(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    for task in peer.asks:
        command = peer.command(task, tmp_path, "float32", 4567)
        assert "4567" in command
        small = any(word.startswith("loadtests.peers.servers.") for word in command)
        assert small or "127.0.0.1" in command
    if peer is EVERY["mosec"]:
        assert peer.environment()["MOSEC_ADDRESS"] == "127.0.0.1"


def test_a_peer_is_what_its_protocol_says() -> None:
    names = [peer.name for peer in EVERY.values()]
    assert len(set(names)) == len(names)
    for peer in EVERY.values():
        assert set(peer.asks) <= set(TASKS)
        assert set(peer.dtypes) <= {"float32", "bfloat16"}
        assert peer.ready.startswith("/")


@pytest.mark.parametrize("peer", EVERY.values(), ids=EVERY)
def test_a_passage_is_made_of_as_many_tokens_as_asked_for(peer: Peer) -> None:
    for task in {"generate", *TRANSLATING} & set(peer.asks):
        body = json.loads(peer.asks[task].encoded(ASKED[task], {"stream": True}))
        assert ASKED[task].new_tokens in body.values()
        assert task == "generate" or 4 in body.values()
        assert body["stream"]


def test_only_the_quantized_peers_may_give_other_answers() -> None:
    other = {name for name, peer in EVERY.items() if not peer.exact}
    quantized = {"onnxruntime-int8", "llamacpp-int8", "llamacpp-int4", "ctranslate2-int8"}
    assert other == quantized | {"padserve-bfloat16", "padserve-int8"}


def test_the_peers_of_a_task_are_those_that_serve_it() -> None:
    every = {name for task in TASKS for name in serving(task, "float32")}
    assert every == set(PEERS)
    assert set(serving("translate-beams", "float32")) == {
        *(
            "naive",
            "pipeline",
            "ctranslate2",
            "ctranslate2-int8",
            "ctranslate2-one",
            "padserve-bfloat16",
            "padserve-int8",
        )
    }
    assert {"vllm", "llamacpp", "continuous"} <= set(serving("generate", "bfloat16"))
    assert not {"infinity", "vllm", "infinity-optimum"} & set(serving("fill-mask", "float32"))
    assert "infinity-optimum" not in serving("rerank", "float32")
    assert not {"onnxruntime", "onnxruntime-int8", "infinity-optimum"} & set(serving("embed", "bfloat16"))


def test_peers_are_chosen_by_name_or_all_or_the_usual_ones() -> None:
    assert [peer.name for peer in chosen("vllm,infinity", "embed", "float32")] == [VllmCpu().name, Infinity().name]
    assert len(chosen("all", "fill-mask", "float32")) == len(serving("fill-mask", "float32"))
    assert {peer.name for peer in chosen(None, "translate", "float32")} == {
        EVERY["pipeline"].name,
        EVERY["ctranslate2"].name,
    }
    assert len(chosen(None, "embed", "float32")) == 3
    assert chosen(None, "fill-mask", "bfloat16")
    assert chosen("", "embed", "float32") == []


@pytest.mark.parametrize(
    ("names", "task", "words"),
    [("vlm", "embed", "'vlm' is no peer"), ("vllm", "fill-mask", "'vllm' does not serve fill-mask in float32")],
)
def test_a_peer_that_cannot_be_had_is_named_with_those_that_can(names: str, task: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"{words}.* naive"):
        chosen(names, task, "float32")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dtype", "bfloat16", "--task", "t5-beams"],
        ["--task", "tts"],
        ["--peers", "vlm"],
        ["--latency", "--task", "rerank"],
        ["--seconds", "400"],
    ],
)
def test_a_wrong_option_ends_it_before_anything_starts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_the_options_are_those_of_embed_on_mixed_lengths_unless_given() -> None:
    options = parsed([])
    assert (options.task, options.mix, options.rounds, options.clients) == ("embed", "lognormal", 5, [32])


def test_an_exported_model_is_made_anew_for_a_checkpoint_that_changed(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1")
    before = Onnxruntime().command("embed", tmp_path, "float32", 1)
    weights.write_bytes(b"22")
    assert Onnxruntime().command("embed", tmp_path, "float32", 1) != before


def test_answers_are_asked_at_once_and_each_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(url: str, body: bytes) -> dict[str, Any]:
        assert url == "http://x/embed"
        return {"embedding": [1.0, 0.0] if json.loads(body)["text"] == "good" else [0.0, 1.0]}

    monkeypatch.setattr("loadtests.measuring.post", reply)
    peer, task, alone = EVERY["naive"], TASKS["embed"], [1.0, 0.0]
    assert fault("http://x", peer, task, [("good", alone)] * 3, 0.02) is None
    found = fault("http://x", peer, task, [("good", alone), ("bad", alone), ("bad", alone)], 0.02)
    assert found is not None
    assert found.startswith("2 of 3 answers differ, the first: cosine 0.0")


def test_the_shapes_that_several_servers_share() -> None:
    assert openai_embed("/e").body("x")["input"] == "x"
    assert cohere_rerank("/r").body(ASKED["rerank"])["documents"] == ("first", "second", "third")
    assert top([{"label": "a", "score": 0.1}, {"label": "b", "score": 0.9}], "label") == ("b", 0.9)
    assert bert(12, 768, 12)["intermediate_size"] == 3072
