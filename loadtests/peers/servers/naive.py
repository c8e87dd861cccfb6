"""What many teams run: a function behind FastAPI that calls the library for one request, under a lock.

The lock is there because the tokenizers' settings are changed by each call: two at a time raise ``Already borrowed``.
"""

import threading
from typing import Any

from loadtests.peers.servers.libraries import loaded
from loadtests.peers.servers.options import options
from loadtests.peers.servers.web import serve, with_health


def main() -> None:
    given = options()
    run = loaded(given.task, given.model, given.dtype, batch_size=32)
    app, lock = with_health(), threading.Lock()

    @app.post(f"/{given.task}")
    def ask(body: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return run([body])[0]

    serve(app, given.port)


if __name__ == "__main__":
    main()
