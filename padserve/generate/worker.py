"""The thread that steps one model's engine. It waits while there is nothing to do."""

import logging
import threading
from collections.abc import Callable

from padserve.errors import EngineDown, PadserveError
from padserve.generate.engine import Generation, GenerationEngine

logger = logging.getLogger(__name__)


class GenerationWorker:
    """``prepare`` runs first in the thread; ``on_step(tokens)`` after every step."""

    def __init__(
        self, name: str, engine: GenerationEngine, prepare: Callable[[], None], on_step: Callable[[int], None]
    ) -> None:
        self.engine = engine
        self._prepare, self._on_step = prepare, on_step
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"padserve-generate-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, generation: Generation) -> None:
        self.engine.submit(generation)
        self._wake()

    def abort(self, generation: Generation) -> None:
        self.engine.abort(generation)
        self._wake()

    def stop(self, error: PadserveError, timeout_s: float) -> None:
        """End the thread after its step; what is not finished ends with ``error``."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self.engine.drain(error)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        self._prepare()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self.engine.ready)
                if self._closed:
                    return
            try:
                self._on_step(self.engine.step())
            except Exception as error:
                logger.critical("the generation engine failed", exc_info=error)
                self.engine.drain(EngineDown("the generation engine failed; try again"))
