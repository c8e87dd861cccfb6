"""API keys."""

from pathlib import Path

import httpx
import pytest

from padserve.errors import ConfigError
from padserve.http.auth import read_api_keys


def test_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team a\nalpha\n\n  beta  \n   # old\n#gamma\nde#lta\n")
    assert read_api_keys(str(path)) == ("alpha", "beta", "de#lta")


@pytest.mark.parametrize("content", ["", "# only a comment\n", "\n\n"])
def test_key_file_without_keys_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"api_keys_file.*no key"):
        read_api_keys(str(path))


def test_missing_key_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"api_keys_file.*absent"):
        read_api_keys(str(tmp_path / "absent"))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer   first-key"},
        {"X-API-Key": "first-key"},
        {"X-API-Key": "sécond".encode()},
        {"Authorization": b"Bearer " + "sécond".encode()},
        {"Authorization": "Basic eDp5", "X-API-Key": "first-key"},
    ],
)
async def test_right_key(keyed: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await keyed.post("/echo", json={"inputs": "a"}, headers=headers)).status_code == 200
    assert (await keyed.get("/models", headers=headers)).status_code == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer first-ke"},
        {"Authorization": "Bearer first-key-"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "first-key"},
        {"X-API-Key": ""},
        {"X-API-Key": b"\xff\xfe"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/echo"),
        ("GET", "/models"),
        ("GET", "/models/tiny"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/"),
    ],
)
async def test_wrong_key_is_a_clean_401(
    keyed: httpx.AsyncClient, headers: dict[str, str], method: str, path: str
) -> None:
    reply = await keyed.request(method, path, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz", "/metrics"])
async def test_probes_need_no_key(keyed: httpx.AsyncClient, path: str) -> None:
    assert (await keyed.get(path)).status_code == 200
    assert (await keyed.head(path)).status_code == 200
