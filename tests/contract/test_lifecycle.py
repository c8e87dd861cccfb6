"""Start, overload, keys, sockets, shutdown: each on a server of its own."""

import asyncio
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from .conftest import Start
from .test_envelope import problem

CROWD = {"inputs": ["Passports are renewed at the post office."] * 60, "truncate": True}


async def test_a_flood_is_refused_and_leaves_the_server_well(start: Start, folders: dict[str, Path]) -> None:
    with start("--model", f"embed={folders['vectors']}", "--max-queue-tokens", "1000") as server:
        problem(server.post("/embed", {"inputs": CROWD["inputs"] * 4}), 413, "too_many_tokens")
        process = psutil.Process(server.process.pid)
        seen: set[int] = set()
        sizes = []
        async with httpx.AsyncClient(base_url=server.base, timeout=60) as client:
            for _ in range(4):
                replies = await asyncio.gather(*(client.post("/embed", json=CROWD) for _ in range(60)))
                seen |= {reply.status_code for reply in replies}
                sizes.append(process.memory_info().rss)
                for reply in replies:
                    if reply.status_code == 429:
                        problem(reply, 429, "queue_full")
                        assert int(reply.headers["retry-after"]) >= 1
        assert seen == {200, 429}
        assert sizes[-1] - sizes[0] < 100e6
        assert server.post("/embed", {"inputs": "well"}).status_code == 200
        assert server.client.get("/readyz").status_code == 200


def test_health_answers_before_the_models_are_there(start: Start, folders: dict[str, Path]) -> None:
    with start("--model", f"embed={folders['vectors']}", wait=False) as server:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                live = server.client.get("/livez")
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            break
        assert live.status_code == 200
        reply = server.post("/embed", {"inputs": "early"})
        if reply.status_code != 200:
            problem(reply, 503, "starting")
            assert int(reply.headers["retry-after"]) >= 1
        server.wait_ready()
        assert server.post("/embed", {"inputs": "late"}).status_code == 200


def test_sigterm_finishes_what_was_accepted(start: Start, folders: dict[str, Path]) -> None:
    with start("--model", f"token-classify={folders['ner']}") as server, ThreadPoolExecutor(4) as pool:
        body = {"inputs": CROWD["inputs"] * 12, "stride": 4}
        running = [pool.submit(httpx.post, f"{server.base}/token-classify", json=body, timeout=60) for _ in range(4)]
        until = time.monotonic() + 30
        while not server.metric("padserve_queue_depth") and time.monotonic() < until:
            time.sleep(0.005)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        try:
            found = problem(server.client.get("/readyz"), 503, "unavailable")
            assert any("drain" in reason for reason in found["reasons"])
        except httpx.TransportError:
            assert all(one.done() for one in running)
        statuses = [one.result().status_code for one in running]
        assert statuses.count(200) >= 1
        for one in running:
            if one.result().status_code != 200:  # it came after the signal
                problem(one.result(), 503, "draining")


def test_keys(start: Start, folders: dict[str, Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# team a\nalpha\n\nbeta\n")
    with start("--model", f"embed={folders['vectors']}", "--api-keys-file", str(keys)) as server:
        problem(server.post("/embed", {"inputs": "a"}), 401, "unauthorized")
        problem(server.post("/embed", {"inputs": "a"}, headers={"Authorization": "Bearer alph"}), 401, "unauthorized")
        assert server.post("/embed", {"inputs": "a"}, headers={"Authorization": "Bearer beta"}).status_code == 200
        for route in ("/livez", "/readyz", "/startupz", "/metrics"):
            assert server.client.get(route).status_code == 200


def test_unix_socket(start: Start, folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [sys.executable, "-m", "padserve", "serve", "--model", f"embed={folders['vectors']}", "--uds", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://padserve") as client:
            until = time.monotonic() + 60
            while not path.exists() and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.3)
            while client.get("/readyz").status_code != 200 and time.monotonic() < until:
                time.sleep(0.1)
            assert client.post("/embed", json={"inputs": "a"}).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prot", "1"], "did you mean --port"),
        (["--port", "eighty"], "port"),
        (["--model", "embed=/no/such/folder"], "no folder"),
        (["no-such.toml"], "no-such.toml"),
        (["--dtype", "int8"], "not supported yet"),
    ],
)
def test_wrong_configurations_end_with_one_line_and_status_2(arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "padserve", "serve", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("padserve: ")
    assert says in last
    assert "Traceback" not in done.stderr
