"""Which models may speculate, and where their guesses may come from."""

from pathlib import Path

import pytest
import torch
import transformers

from padserve.config.structs import ModelConfig, SpeculationConfig
from padserve.errors import ConfigError
from padserve.models.checkpoint import read_checkpoint
from padserve.models.generators.load import load_generator
from padserve.models.load import load_model
from tests.generate.models import SEQ2SEQ
from tests.models.conftest import train_tokenizer

CPU, NGRAM = torch.device("cpu"), SpeculationConfig(method="ngram", max_draft_tokens=5)


def test_an_encoder_does_not_speculate() -> None:
    with pytest.raises(ConfigError, match="only models that generate text"):
        load_model(ModelConfig(source="anywhere", name="one", speculation=NGRAM), CPU)


@pytest.mark.parametrize("shared", [True, False])
def test_a_source_of_another_vocabulary_is_not_looked_up(tmp_path: Path, shared: bool) -> None:
    """Its ids may be none of the decoder's."""
    sizes = {"share_encoder_decoder_embeddings": shared, "tie_word_embeddings": shared}
    config = transformers.AutoConfig.for_model("marian", **SEQ2SEQ["marian"], **sizes)
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    train_tokenizer(128).save_pretrained(tmp_path)
    model = ModelConfig(source=str(tmp_path), name="one", speculation=NGRAM)
    generation = load_generator(model, read_checkpoint(model), CPU).spec.generation
    assert generation is not None
    assert generation.speculation is not None
    assert (generation.speculation.max_draft_tokens, generation.speculation.reads_source) == (5, shared)
