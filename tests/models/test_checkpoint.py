"""What a configuration alone says of a checkpoint: its head, labels and limits, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from padserve.config.structs import ModelConfig
from padserve.errors import ConfigError
from padserve.models.checkpoint import max_length, read_checkpoint, rerank_activation


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """``folder(model_type, architecture, **config)``: a configuration without weights."""

    def write(model_type: str, architecture: str | None, modules: bool = False, **config: Any) -> Path:
        content = {"model_type": model_type} | ({"architectures": [architecture]} if architecture else {}) | config
        (tmp_path / "config.json").write_text(json.dumps(content))
        if modules:
            (tmp_path / "modules.json").write_text("[]")
        return tmp_path

    return write


def read(folder: Path, *tasks: str) -> Any:
    return read_checkpoint(ModelConfig(name="m", source=str(folder), tasks=tasks))


@pytest.mark.parametrize(
    ("model_type", "architecture", "tasks", "head"),
    [
        ("bert", "BertForMaskedLM", (), "masked-lm"),
        ("bert", "BertForPreTraining", (), "masked-lm"),
        ("bert", "BertForMaskedLM", ("fill-mask", "tokenize"), "masked-lm"),
        ("bert", "BertForMaskedLM", ("embed", "rerank"), "embedding"),
        ("bert", "BertForSequenceClassification", (), "sequence-classification"),
        ("bert", "BertForSequenceClassification", ("zero-shot",), "sequence-classification"),
        ("bert", "BertForSequenceClassification", ("similarity",), "embedding"),
        ("bert", "BertForTokenClassification", ("token-classify",), "token-classification"),
        ("bert", "BertModel", (), "embedding"),
        ("bert", None, (), "embedding"),
        ("bert", "BertForQuestionAnswering", ("embed",), "embedding"),
        ("xlm", "XLMWithLMHeadModel", (), "masked-lm"),
        ("gpt2", "GPT2ForSequenceClassification", (), "sequence-classification"),
        ("qwen3", "Qwen3Model", (), "embedding"),
        ("bart", "BartForSequenceClassification", (), "sequence-classification"),
        ("t5", "T5EncoderModel", ("embed",), "embedding"),
    ],
)
def test_head(model_type: str, architecture: str | None, tasks: tuple[str, ...], head: str, folder: Any) -> None:
    checkpoint = read(folder(model_type, architecture), *tasks)
    assert checkpoint.head == head
    assert not checkpoint.sentence_modules


@pytest.mark.parametrize(
    ("architecture", "head"),
    [("BertModel", "embedding"), ("BertForMaskedLM", "embedding"), ("BertForSequenceClassification",) * 2],
)
def test_sentence_modules_embed_unless_they_are_a_cross_encoder(architecture: str, head: str, folder: Any) -> None:
    """A reranker read as an embedder would score 0.0 with no error."""
    checkpoint = read(folder("bert", architecture, modules=True))
    assert checkpoint.sentence_modules
    assert checkpoint.head == head.replace("BertForSequenceClassification", "sequence-classification")


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3Model"])
def test_a_decoder_may_embed(architecture: str, folder: Any) -> None:
    """Embedding models grown from a decoder keep its architecture's name."""
    assert read(folder("qwen3", architecture), "embed").head == "embedding"
    assert read(folder("qwen3", architecture, modules=True)).head == "embedding"


@pytest.mark.parametrize(
    ("model_type", "architecture", "head"),
    [
        ("gpt2", "GPT2LMHeadModel", "causal-lm"),
        ("llama", "LlamaForCausalLM", "causal-lm"),
        ("qwen3", "Qwen3ForCausalLM", "causal-lm"),
        ("t5", "T5ForConditionalGeneration", "seq2seq-lm"),
        ("bart", "BartForConditionalGeneration", "seq2seq-lm"),
        ("marian", "MarianMTModel", "seq2seq-lm"),
        ("m2m_100", "M2M100ForConditionalGeneration", "seq2seq-lm"),
    ],
)
def test_what_generates(model_type: str, architecture: str, head: str, folder: Any) -> None:
    path = folder(model_type, architecture)
    assert read(path).head == head
    assert read(path, "generate").head == head
    with pytest.raises(ConfigError, match=r"has no sequence-classification head; it generates text"):
        read(path, "classify")


@pytest.mark.parametrize(
    ("model_type", "architecture", "message"),
    [
        ("flaubert", "FlaubertForCausalLM", "flaubert generates text; of such models are served: bart, "),
        ("bert", "BertLMHeadModel", "bert generates text"),
        ("xlnet", "XLNetLMHeadModel", "xlnet generates text"),
        ("t5", "T5Model", "no language-modelling head"),
        ("bart", "BartModel", "no language-modelling head"),
    ],
)
def test_what_generates_and_is_not_served(model_type: str, architecture: str, message: str, folder: Any) -> None:
    with pytest.raises(ConfigError, match=rf"models\.m: .*{message}"):
        read(folder(model_type, architecture))


def test_an_unknown_head_names_the_known_ones_and_a_way_out(folder: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read(folder("bert", "BertForQuestionAnswering"))
    for word in ("BertForQuestionAnswering", "ForMaskedLM", "ForTokenClassification", '["embed"]'):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "tasks", "message"),
    [
        ("BertForSequenceClassification", ("fill-mask",), "has no masked-lm head"),
        ("BertForMaskedLM", ("classify",), "has no sequence-classification head"),
        ("BertModel", ("token-classify",), "has no token-classification head"),
        ("BertForMaskedLM", ("fill-mask", "embed"), "list the source twice"),
    ],
)
def test_tasks_that_do_not_fit(architecture: str, tasks: tuple[str, ...], message: str, folder: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        read(folder("bert", architecture), *tasks)


def test_labels_follow_their_ids_not_the_order_in_the_file(folder: Any) -> None:
    names = {"10": "k", "2": "c", "0": "a", "1": "b", **{str(index): f"x{index}" for index in range(3, 10)}}
    labels = read(folder("bert", "BertForSequenceClassification", id2label=names)).labels
    assert labels == ("a", "b", "c", *(f"x{index}" for index in range(3, 10)), "k")


def test_only_classifiers_have_labels(folder: Any) -> None:
    assert read(folder("bert", "BertForMaskedLM", id2label={"0": "a"})).labels == ()


@pytest.mark.parametrize("source", ["/no/such/folder", "./nothing", "~/nowhere", "a/b/c"])
def test_a_missing_folder_is_named(source: str) -> None:
    with pytest.raises(ConfigError, match=rf"models\.m: no folder '{source}'"):
        read_checkpoint(ModelConfig(name="m", source=source))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": "no-such-type"}'])
def test_a_broken_configuration_names_the_model(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"models\.m: cannot read the configuration"):
        read(tmp_path)


def test_an_empty_folder_names_the_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.m: cannot read the configuration"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({}, None),
        ({"sentence_transformers": None}, None),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"sbert_ce_default_activation_function": "my.own.Thing"}, None),
    ],
)
def test_rerank_activation(config: dict[str, Any], activation: str | None) -> None:
    assert rerank_activation(SimpleNamespace(**config)) == activation


@pytest.mark.parametrize(
    ("positions", "tokenizer_max", "offset", "expected"),
    [
        (512, 512, 0, 512),
        (514, 10**30, 2, 512),
        (514, 512, 2, 512),
        (512, 128, 0, 128),
        (8192, 512, 0, 512),
        (-1, 384, 0, 384),
        (None, 10**30, 0, 512),
        (0, 0, 0, 512),
    ],
)
def test_max_length(positions: int | None, tokenizer_max: int, offset: int, expected: int) -> None:
    assert max_length(SimpleNamespace(max_position_embeddings=positions), tokenizer_max, offset) == expected


def test_a_cross_encoder_is_not_served_as_an_embedder(folder: Any) -> None:
    path = folder("bert", "BertForSequenceClassification", id2label={"0": "LABEL_0"})
    assert read(path, "rerank").head == "sequence-classification"
    with pytest.raises(ConfigError, match=r'cross-encoder; .* tasks = \["rerank"\]'):
        read(path, "embed")
