"""What ``padserve models`` and ``padserve doctor`` print."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from padserve.batching.placement import plan_placement
from padserve.config.structs import Config
from padserve.service.catalog import ModelFacts, describe

PACKAGES = (
    "padserve",
    "torch",
    "transformers",
    "tokenizers",
    "sentence-transformers",
    "litestar",
    "msgspec",
    "uvicorn",
)
FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm")


def models_table(config: Config) -> str:
    """One line a model, from its configuration alone."""
    rows: list[tuple[str, ...]] = [("NAME", "SOURCE", "ARCHITECTURE", "TASKS", "MAX LENGTH", "DTYPE", "BATCHING")]
    for model in config.models:
        facts = describe(model)
        rows.append(
            (
                model.name,
                model.source,
                facts.architecture,
                ",".join(facts.tasks),
                str(facts.max_length),
                facts.dtype,
                facts.batching,
            )
        )
    return aligned(rows)


def aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def doctor_report(config: Config) -> str:
    placement = plan_placement(config.server)
    lines = ["versions", f"  python {platform.python_version()}", *(f"  {name} {_version(name)}" for name in PACKAGES)]
    lines += ["processor", f"  {_cpu_name()}", f"  features: {', '.join(_cpu_features()) or 'none known'}"]
    lines += [f"  CPUs usable: {placement.cpus:g}", f"  memory: {_memory()}", f"  GPU: {_gpu()}"]
    lines += ["workers", f"  {placement.workers} workers x {placement.threads} threads: {placement.why}"]
    lines += ["models"]
    for model in config.models:
        lines += _model_lines(model.name, describe(model))
    return "\n".join(lines)


def _model_lines(name: str, facts: ModelFacts) -> list[str]:
    return [
        f"  {name}: {facts.architecture}, {facts.head}, {facts.dtype}, {facts.batching}",
        f"    tasks: {', '.join(facts.tasks)}; at most {facts.max_length} tokens",
        f"    {facts.why}",
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_features() -> list[str]:
    for line in _cpuinfo():
        if line.startswith(("flags", "Features")):
            flags = line.partition(":")[2].split()
            return [feature for feature in FEATURES if feature in flags]
    return []


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    return f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB free"


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
