"""One server with every checkpoint for the whole session, clients for it, and the oracles to compare with."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from tests.contract.checkpoints import CHECKPOINTS, build_all
from tests.contract.oracles import Oracles
from tests.contract.server import Server, free_port, launch, write_config


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_all(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    models = [{"name": each.name, "source": folders[each.name], **each.serve} for each in CHECKPOINTS]
    config = write_config(folder / "padserve.toml", {"host": "127.0.0.1", "port": port}, models)
    running = launch(folder, config, port=port)
    try:
        yield running.wait_ready()
    finally:
        code = running.terminate()
    assert code == 0, f"SIGTERM ended the idle server with {code}:\n{running.output[-4000:]}"


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as session:
        yield session


@pytest.fixture(scope="session")
def oracles(folders: dict[str, Path]) -> Oracles:
    torch.set_num_threads(1)
    return Oracles(folders)


@pytest.fixture(scope="module")
def socket_folder() -> Iterator[Path]:
    """A folder with a short name, since the path of a Unix socket is limited to about a hundred bytes."""
    folder = Path(tempfile.mkdtemp(prefix="ps-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
