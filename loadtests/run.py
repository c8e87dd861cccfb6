"""The load test: starts a server, runs Locust without its web page, writes CSV and HTML, and judges.

    python loadtests/run.py --users 16 --duration 30 --shape ramp --p99-ms 1000

Ends with a status other than 0 on any failed request, when p99 is over the bound, or when the server does not end well.
"""

import argparse
import contextlib
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from loadtests.cases import CASES
from loadtests.servers import Server, free_port, running

RESULTS = ROOT / "loadtests/results"


def own_server(config: str | None, log: Path) -> contextlib.AbstractContextManager[Server]:
    port = free_port()
    script = str(Path(sys.executable).with_name("padserve"))
    command = [script, "serve", *([config] if config else []), "--host", "127.0.0.1", "--port", str(port)]
    return running(command, port, "/readyz", log)


def run_locust(base: str, folder: Path, options: argparse.Namespace) -> int:
    """Returns Locust's exit status: other than 0 when it could not run, whatever became of the requests."""
    environment = {
        **os.environ,
        "LOADTEST_SHAPE": options.shape,
        "LOADTEST_USERS": str(options.users),
        "LOADTEST_DURATION_S": str(options.duration),
        "LOADTEST_TOLERANCE": str(options.tolerance),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "locust", "--locustfile", str(ROOT / "loadtests/locustfile.py"), "--headless"]
    command += ["--host", base, "--csv", str(folder / "load"), "--html", str(folder / "report.html")]
    command += ["--exit-code-on-error", "0", "--stop-timeout", "30"]
    with (folder / "locust.log").open("wb") as log:
        return subprocess.run(command, env=environment, stdout=log, stderr=log).returncode


def rows(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open() as opened:
        return list(csv.DictReader(opened))


def show(stats: list[dict[str, str]], failures: list[dict[str, str]]) -> None:
    print(f"{'route':<18}{'requests':>9}{'failed':>8}{'per s':>8}{'p50 ms':>8}{'p90 ms':>8}{'p99 ms':>8}")
    for row in stats:
        counts = f"{row['Request Count']:>9}{row['Failure Count']:>8}{float(row['Requests/s']):>8.1f}"
        print(f"{row['Name']:<18}{counts}{row['50%']:>8}{row['90%']:>8}{row['99%']:>8}")
    for row in failures:
        print(f"  {row['Occurrences']} x {row['Name']}: {row['Error']}")


def faults(folder: Path, p99_ms: float) -> list[str]:
    """What is wrong with a run, from the files that Locust left."""
    stats = {row["Name"]: row for row in rows(folder / "load_stats.csv")}
    total = stats.get("Aggregated")
    if total is None or int(total["Request Count"]) == 0:
        return ["no request was made"]
    found = [f"no request to /{route}" for route in CASES if f"/{route}" not in stats]
    if int(total["Failure Count"]):
        found.append(f"{total['Failure Count']} of {total['Request Count']} requests failed")
    if rows(folder / "load_exceptions.csv"):
        found.append("the load test itself raised; see load_exceptions.csv")
    if float(total["99%"]) > p99_ms:
        found.append(f"p99 of {float(total['99%']):.0f} ms is over the bound of {p99_ms:.0f} ms")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=16, help="one at least for each of the eight tasks")
    parser.add_argument("--duration", type=float, default=30.0, help="seconds")
    parser.add_argument("--shape", choices=["steady", "ramp"], default="steady")
    parser.add_argument("--p99-ms", type=float, default=1000.0, help="bound on the p99 of all requests")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="between a reply under load and alone")
    parser.add_argument("--server", help="the URL of a running server, in place of one of our own")
    parser.add_argument("--config", help="configuration of our own server; the starter set when absent")
    options = parser.parse_args()
    if options.users < len(CASES):
        parser.error(f"--users {options.users}: give {len(CASES)} at least, one for each task")
    folder = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir(parents=True)
    given = contextlib.nullcontext(Server((options.server or "").rstrip("/"), 0, 0))
    with given if options.server else own_server(options.config, folder / "server.log") as server:
        status = run_locust(server.base, folder, options)
    found = faults(folder, options.p99_ms)
    if status != 0:
        found.append(f"Locust ended with status {status}; see locust.log")
    if server.status != 0:
        found.append(f"the server ended with status {server.status}; see server.log")
    show(rows(folder / "load_stats.csv"), rows(folder / "load_failures.csv"))
    print(f"{folder}: " + ("; ".join(found) or f"good, p99 within {options.p99_ms:.0f} ms"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
