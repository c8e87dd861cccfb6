"""Working space of compiled functions."""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Space(threading.local):
    """A thread's arrays between calls; what they hold then means nothing."""

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        kept = self._kept.get(name)
        if kept is None or kept.nbytes < size:
            kept = self._kept[name] = np.empty(size, np.uint8)
        shaped: Array = kept[:size].view(dtype).reshape(shape)
        return shaped


SPACE = Space()
