"""The load test: starts a server, runs Locust without its web page, writes CSV and HTML, and judges.

    python loadtests/run.py --users 16 --duration 30 --shape ramp --p99-ms 2000

Ends with a status other than 0 on any failed request, when p99 is over the bound, or when the server does not end well.
"""

import argparse
import contextlib
import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from loadtests.peers.base import free_port, wait_ready

RESULTS = ROOT / "loadtests/results"


@contextlib.contextmanager
def served(config: str | None, log: Path) -> Iterator[str]:
    """A server of our own on a free port. Errors: `SystemExit` when it does not end with status 0."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("padserve")), "serve", *([config] if config else [])]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=output)
    try:
        wait_ready(process, f"http://127.0.0.1:{port}/readyz", 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        status = process.wait(60)
    if status != 0:
        raise SystemExit(f"the server ended with status {status}; see {log}")


def run_locust(server: str, folder: Path, options: argparse.Namespace) -> None:
    environment = {
        **os.environ,
        "LOADTEST_SHAPE": options.shape,
        "LOADTEST_USERS": str(options.users),
        "LOADTEST_DURATION_S": str(options.duration),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "locust", "--locustfile", str(ROOT / "loadtests/locustfile.py"), "--headless"]
    command += ["--host", server, "--csv", str(folder / "load"), "--html", str(folder / "report.html")]
    command += ["--only-summary", "--exit-code-on-error", "0"]
    subprocess.run(command, check=True, env=environment)


def judge(folder: Path, p99_ms: float) -> int:
    """0 when nothing failed and p99 is within the bound."""
    with (folder / "load_stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    total = next(row for row in rows if row["Name"] == "Aggregated")
    failures, slow = int(total["Failure Count"]), float(total["99%"])
    print(f"{total['Request Count']} requests, {failures} failed, p99 {slow:.0f} ms (bound {p99_ms:.0f}); {folder}")
    if int(total["Request Count"]) == 0 or failures or slow > p99_ms:
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--duration", type=float, default=30.0)
    parser.add_argument("--shape", choices=["steady", "ramp"], default="steady")
    parser.add_argument("--p99-ms", type=float, default=2000.0)
    parser.add_argument("--server", help="the URL of a running server, in place of one of our own")
    parser.add_argument("--config", help="configuration of our own server; the starter set when absent")
    options = parser.parse_args()
    folder = RESULTS / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    own = contextlib.nullcontext(options.server) if options.server else served(options.config, folder / "server.log")
    with own as server:
        run_locust(server, folder, options)
    return judge(folder, options.p99_ms)


if __name__ == "__main__":
    sys.exit(main())
