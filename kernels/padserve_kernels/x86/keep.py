"""Compiled functions that outlive the process.

Compiling takes seconds, loading what was compiled takes tens of milliseconds. numba looks at one file to see whether a
kept function is still good; here the folder is named after all the sources, so that a change to any of them counts.
"""

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import numba

from padserve_kernels.x86.features import TILES, tiled

PACKAGE = Path(__file__).resolve().parent.parent


def keep_compiled(function: Any) -> None:
    """Let ``function``, which numba compiles, be kept in the user's cache folder, if that can be written."""
    before = numba.config.CACHE_DIR
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        numba.config.CACHE_DIR = str(folder)
        function.enable_caching()
    except (OSError, RuntimeError):
        return
    finally:
        numba.config.CACHE_DIR = before


@cache
def _folder() -> Path:
    """Errors: `RuntimeError` where there is no home."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(PACKAGE.rglob("*.py")):
        digest.update(source.read_bytes())
    digest.update(bytes(tiled(kind) for kind in TILES))  # what the system permits, numba does not look at
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "padserve" / f"compiled-{digest.hexdigest()[:16]}"
