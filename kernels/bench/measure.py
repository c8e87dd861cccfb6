"""Timing on a GPU: every contender is first held against the op's definition, and only what agrees is timed."""

import importlib.util
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.spec import Case, Contender, Shape, Spec
from padserve_kernels.dispatch import interpreting

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Absolute and relative: wide enough for contenders that round between their steps."""
Row = dict[str, Any]


def why_not() -> str | None:
    """Why nothing can be timed here, None where it can."""
    if not torch.cuda.is_available():
        return "no GPU: kernels are timed on a GPU only, nothing was measured or written"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: there is no kernel to time, nothing was measured or written"
    if interpreting():
        return "TRITON_INTERPRET=1 runs kernels in Python: unset it, nothing was measured or written"
    return None


def measure_op(op: str, spec: Spec, dtypes: list[torch.dtype], repeat: int) -> dict[str, Any]:
    """All shapes and dtypes of one op, ready to be written."""
    device = torch.device("cuda")
    rows: list[Row] = []
    for dtype in dtypes:
        for shape in spec.shapes:
            torch.compiler.reset()
            contenders = measure_case(spec.prepare(shape, dtype, device), dtype, repeat)
            rows.append({"shape": shape, "dtype": str(dtype).removeprefix("torch."), "contenders": contenders})
    return {"op": op, "hardware": hardware(), "versions": versions(), "measured_at": now(), "rows": rows}


def measure_case(case: Case, dtype: torch.dtype, repeat: int) -> dict[str, Row]:
    """Milliseconds of each contender; contenders take turns, so that a drift of the clock meets all of them."""
    want = case.definition()
    rows = {name: agreement(contender, want, dtype) for name, contender in case.contenders.items()}
    times: dict[str, list[float]] = {name: [] for name, row in rows.items() if "error" not in row}
    for _ in range(repeat):
        for name, samples in times.items():
            samples.extend(times_ms(case.contenders[name].call))
    for name, samples in times.items():
        rows[name] |= summary(samples)
    return rows


def agreement(contender: Contender, want: Tensor, dtype: torch.dtype) -> Row:
    """The largest difference from the definition, or the error that keeps a contender from being timed."""
    try:
        got = contender.layout(contender.call())
    except Exception as fault:
        return {"error": f"{type(fault).__name__}: {fault}"[:300]}
    if got.shape != want.shape:
        return {"error": f"differs from the definition: shape {tuple(got.shape)}, not {tuple(want.shape)}"}
    apart = (got.float() - want.float()).abs()
    largest = apart.max().item() if apart.numel() else 0.0
    if not bool((apart <= TOLERANCE[dtype] * (1 + want.float().abs())).all()):
        return {"error": f"differs from the definition by {largest:.3g}"}
    return {"max_error": largest}


def times_ms(call: Callable[[], Tensor]) -> list[float]:
    """Milliseconds of each run, the L2 cache cleared before it."""
    from triton.testing import do_bench

    samples: list[float] = do_bench(call, return_mode="all")
    return samples


def summary(samples: list[float]) -> Row:
    """Quantiles in milliseconds over all rounds."""
    p20, p50, p80 = torch.tensor(samples, dtype=torch.float64).quantile(
        torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    )
    return {"p20_ms": p20.item(), "p50_ms": p50.item(), "p80_ms": p80.item(), "samples": len(samples)}


def hardware() -> dict[str, Any]:
    """The GPU and the processor that feeds it."""
    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name,
        "capability": f"{gpu.major}.{gpu.minor}",
        "memory_gib": round(gpu.total_memory / 2**30, 1),
        "multiprocessors": gpu.multi_processor_count,
        "machine": platform.machine(),
    }


def versions() -> dict[str, str | None]:
    """Of everything that has a say in the figures."""
    import triton

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def table(row: Row) -> str:
    """One shape as lines of text, the first contender's time over each other's as its speed-up."""
    shape: Shape = row["shape"]
    lines = [f"{row['dtype']}  " + "  ".join(f"{name}={size}" for name, size in shape.items())]
    ours = next(iter(row["contenders"].values())).get("p50_ms")
    for name, figures in row["contenders"].items():
        if "error" in figures:
            lines.append(f"    {name:24} {figures['error']}")
            continue
        ratio = "" if ours is None else f"  {figures['p50_ms'] / ours:5.2f}x"
        lines.append(
            f"    {name:24} {figures['p20_ms']:8.4f} {figures['p50_ms']:8.4f} {figures['p80_ms']:8.4f} ms{ratio}"
        )
    return "\n".join(lines)
