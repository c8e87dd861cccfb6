"""What every small server is told on its command line."""

import argparse

TRANSLATING = tuple(name + kind for name in ("translate", "t5", "bart") for kind in ("", "-beams"))
TASKS = ("embed", "classify", "fill-mask", "rerank", "generate", *TRANSLATING)


def options(**more: type) -> argparse.Namespace:
    """``more``: further options that a server needs, by name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--port", type=int, required=True)
    for name, kind in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, required=True)
    return parser.parse_args()
