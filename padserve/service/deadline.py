"""When a request must be done: the smaller of its field and its header."""

from padserve.tasks.base import TaskRequest


def deadline_of(request: TaskRequest, received_at: float, header_ms: int | None) -> float:
    """`time.perf_counter` seconds; infinity when neither is given."""
    limits = [limit for limit in (request.timeout_ms, header_ms) if limit is not None]
    return received_at + min(limits) / 1000 if limits else float("inf")
