"""The libraries' own calls on whatever waits, 32 requests at most."""

from loadtests.peers.servers.batcher import Batcher
from loadtests.peers.servers.libraries import loaded
from loadtests.peers.servers.options import options
from loadtests.peers.servers.web import asynchronous, serve

BATCH_SIZE = 32


def main() -> None:
    given = options()
    run = loaded(given.task, given.model, given.dtype, BATCH_SIZE)
    serve(asynchronous(given.task, Batcher(run, BATCH_SIZE)), given.port)


if __name__ == "__main__":
    main()
