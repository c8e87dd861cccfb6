"""Addresses are had at once or refused in one line."""

import socket
from pathlib import Path

import pytest

from padserve.errors import ConfigError
from padserve.http.listen import bound


def test_a_free_port() -> None:
    with bound("127.0.0.1", 0, "") as sockets:
        assert len(sockets) == 1
        sockets[0].listen()
        with socket.create_connection(sockets[0].getsockname(), timeout=5):
            pass
    assert sockets[0].fileno() == -1


def test_a_taken_port() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use")
        with refused, bound("127.0.0.1", port, ""):
            pass


def test_a_name_listens_on_each_of_its_addresses_that_exist() -> None:
    with bound("localhost", 0, "") as sockets:
        assert {each.getsockname()[0] for each in sockets} <= {"127.0.0.1", "::1"}
        assert sockets


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7", "a" * 70 + ".invalid"])
def test_an_address_of_nobody_here(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"), bound(host, 0, ""):
        pass


def test_a_path_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "padserve.sock"
    with bound("ignored", 1, str(path)) as sockets:
        assert path.is_socket()
        assert path.stat().st_mode & 0o777 == 0o666
        assert sockets[0].getsockname() == str(path)
    assert not path.exists()


def test_a_dead_servers_path_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "padserve.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    with bound("", 0, str(path)) as sockets:
        assert len(sockets) == 1


def test_a_living_servers_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "padserve.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(ConfigError, match="another server"), bound("", 0, str(path)):
            pass
    assert path.is_socket()


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(ConfigError, match="no socket"), bound("", 0, str(path)):
        pass
    assert path.read_text() == "keep me"


@pytest.mark.parametrize("path", ["missing/folder/sock", "x" * 200])
def test_a_path_that_cannot_be(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"), bound("", 0, str(tmp_path / path)):
        pass
