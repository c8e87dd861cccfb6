"""Int8 weights of decoders: near float32, the same alone and in a crowd, refused where nothing compiles."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from padserve.attention.cached import Span
from padserve.config.structs import ModelConfig
from padserve.errors import ConfigError
from padserve.models import agreement
from padserve.models.checkpoint import read_checkpoint
from padserve.models.generators.base import Step
from padserve.models.generators.load import LoadedGenerator, load_generator
from padserve_kernels.decoder import can_compile
from tests.contract.vocabularies import ROBERTA, byte_bpe, wrap
from tests.generate.models import CAUSAL, SEQ2SEQ, randomize

needs_products = pytest.mark.skipif(not can_compile("int8_weights"), reason="the processor has no bfloat16 products")


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of width 32 with random weights do not all reach the bounds, which are not what these tests are about."""
    monkeypatch.setattr(agreement, "BOUNDS", {"cosine": 0.9, "top-1": 0.5, "correlation": 0.9})


def save(folder: Path, model_type: str) -> Path:
    seq2seq = model_type in SEQ2SEQ
    tokenizer = wrap(byte_bpe(ROBERTA), ROBERTA, 128)
    settings = (SEQ2SEQ if seq2seq else CAUSAL)[model_type] | {"vocab_size": len(tokenizer)}
    config = transformers.AutoConfig.for_model(model_type, **settings)
    auto = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
    model = auto.from_config(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path, model_type: str, dtype: str = "int8") -> LoadedGenerator:
    save(folder, model_type)
    served = ModelConfig(name="m", source=str(folder), dtype=dtype)  # type: ignore[arg-type]
    return load_generator(served, read_checkpoint(served), torch.device("cpu"))


def logits(loaded: LoadedGenerator, sequences: list[list[int]]) -> list[torch.Tensor]:
    """After the last token of each, all in one step."""
    generator, blocks = loaded.generator, 8
    store, spans, ids, wanted = generator.new_store(1 + blocks * len(sequences), 16), [], [], []
    for index, tokens in enumerate(sequences):
        own = range(1 + index * blocks, 1 + (index + 1) * blocks)
        spans.append(Span(len(ids), len(tokens), 0, own, 16))
        ids += tokens
        wanted.append(len(ids) - 1)
    sources: Any = ()
    if loaded.spec.generation is not None and loaded.spec.generation.is_seq2seq:
        encoded = [generator.encode([tokens])[0] for tokens in sequences]
        sources = tuple((one, len(tokens)) for one, tokens in zip(encoded, sequences, strict=True))
    positions = torch.cat([torch.arange(len(tokens)) for tokens in sequences])
    step = Step(torch.tensor(ids), positions, store, spans, torch.tensor(wanted), sources)
    return list(generator.step(step).logits)


@needs_products
@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "bart", "m2m_100", "t5"])
def test_near_float32_and_the_same_bits_in_a_crowd(model_type: str, tmp_path: Path) -> None:
    int8, float32 = load(tmp_path / "int8", model_type), load(tmp_path / "float32", model_type, "float32")
    assert int8.spec.dtype == "int8"
    assert int8.agreement is not None
    rng = torch.Generator().manual_seed(0)
    sequences = [torch.randint(5, 100, (n,), generator=rng).tolist() for n in (1, 7, 40, 100, 2, 16)]
    crowd = logits(int8, sequences)
    for tokens, found, want in zip(sequences, crowd, logits(float32, sequences), strict=True):
        assert torch.nn.functional.cosine_similarity(found, want, 0) > 0.98
        assert torch.equal(logits(int8, [tokens])[0], found)


@needs_products
def test_a_checkpoint_that_int8_does_not_suit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "BOUNDS", {"cosine": 1.1, "top-1": 1.1, "correlation": 1.1})
    with pytest.raises(ConfigError, match=r"models\.m: .*best tokens agree in"):
        load(tmp_path, "llama")


def test_int8_needs_a_compiled_decoder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.m: .*no compiled decoder|no instructions"):
        load(tmp_path, "gpt2")
