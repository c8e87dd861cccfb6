"""Time kernels on a GPU against torch's own ways, and write ``results/<op>.json``; see results/README.md.

python kernels/bench/run.py
python kernels/bench/run.py varlen_attention mean_pool_normalize --dtype bfloat16 float16 --repeat 5
"""

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import measure_op, table, why_not
from bench.spec import OURS, load_spec, op_names

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main(argv: list[str] | None = None) -> int:
    """1 without a GPU, and where a kernel failed or its result was wrong; else 0."""
    arguments = parser().parse_args(argv)
    reason = why_not()
    if reason is not None:
        sys.stderr.write(reason + "\n")
        return 1
    correct = True
    for op in arguments.ops or op_names():
        results = measure_op(op, load_spec(op), [DTYPES[name] for name in arguments.dtype], arguments.repeat)
        sys.stdout.write("\n".join([f"{op}  p20 p50 p80", *map(table, results["rows"])]) + "\n")
        correct = correct and all("error" not in row["contenders"][OURS] for row in results["rows"])
        arguments.results.mkdir(parents=True, exist_ok=True)
        (arguments.results / f"{op}.json").write_text(json.dumps(results, indent=2) + "\n")
    return 0 if correct else 1


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run.py", description="Time kernels on a GPU against torch's own ways.")
    parser.add_argument("ops", nargs="*", type=known_op, metavar="op", help=f"of {', '.join(op_names())}; default all")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=["bfloat16"])
    parser.add_argument("--repeat", type=int, default=3, help="rounds of do_bench over all contenders (default 3)")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", help="folder to write to")
    return parser


def known_op(name: str) -> str:
    if name not in op_names():
        raise argparse.ArgumentTypeError(f"no benchmark of {name!r}, there are {', '.join(op_names())}")
    return name


if __name__ == "__main__":
    sys.exit(main())
