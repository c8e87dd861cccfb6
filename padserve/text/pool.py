"""Threads for tokenizing and postprocessing, so that the event loop never does either."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class TokenizerPool:
    """``threads``: how many run at once; tokenizers release the interpreter's lock while they work."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="padserve-tokenizer")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call in a thread of the pool. A caller that is cancelled does not wait for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Let what runs finish and drop what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)
