"""Every metric, each with one method named by its event. Called where the thing happens, once.

Labels are bounded: tasks and models come from the configuration. What a client makes up becomes ``other`` or ``""``.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
RATIOS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 0.9)
OTHER_TASK = "other"


class Metrics:
    """``models`` and ``tasks``: the names that may stand in labels. Safe to call from any thread."""

    def __init__(self, models: Iterable[str] = (), tasks: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._models = frozenset(models)
        self._tasks = frozenset(tasks)
        ProcessCollector(registry=self.registry)
        self._requests = self._counter("requests", "Requests answered.", "task", "model", "status")
        self._durations = self._histogram("request_duration_seconds", "First byte in to last out.", SECONDS, "task")
        self._depth = self._gauge("queue_depth", "Sequences waiting.")
        self._queued_tokens = self._gauge("queue_tokens", "Tokens waiting.")
        self._queue_s = self._histogram("queue_seconds", "Wait of a sequence for its batch.", SECONDS)
        self._batch_size = self._histogram("batch_size", "Sequences in a batch.", SEQUENCES)
        self._batch_tokens = self._histogram("batch_tokens", "Tokens in a batch, no padding.", TOKENS)
        self._waste = self._histogram("padding_waste_ratio", "Share of a batch that is padding.", RATIOS)
        self._tokenize_s = self._histogram("tokenize_seconds", "Tokenizing a request.", SECONDS)
        self._run_s = self._histogram("run_seconds", "Running a batch.", SECONDS)
        self._post_s = self._histogram("post_seconds", "Turning outputs into results.", SECONDS)
        self._tokens_in = self._counter("tokens_in", "Input tokens run.", "model")
        self._tokens_out = self._counter("tokens_out", "Tokens generated.", "model")
        labels = ("model", "method")
        self._drafted = self._counter("speculation_drafted", "Tokens guessed and run.", *labels)
        self._accepted = self._counter("speculation_accepted", "Guessed tokens that came true.", *labels)
        self._speculation_steps = self._counter("speculation_steps", "Steps of sequences that guess.", *labels)
        self._rejected = self._counter("rejected", "Requests refused, by reason.", "reason")
        self._cancelled = self._counter("cancelled", "Requests cancelled after they were queued.", "model")
        self._failed_items = self._counter("failed_items", "Sequences that ended in an error.", "model")
        self._restarts = self._counter("worker_restarts", "Device workers started again after a death.")

    def render(self) -> bytes:
        """The exposition that Prometheus reads, of media type `MEDIA_TYPE`."""
        return generate_latest(self.registry)

    def request_finished(self, task: str, model: str, status: int, duration_s: float) -> None:
        known_task = task if task in self._tasks else OTHER_TASK
        self._requests.labels(known_task, self._known(model), str(status)).inc()
        self._durations.labels(known_task).observe(duration_s)

    def batch_ran(self, model: str, num_seqs: int, total_tokens: int, padded_tokens: int, run_s: float) -> None:
        """``padded_tokens``: what the device ran, ``total_tokens`` and padding."""
        known = self._known(model)
        self._batch_size.labels(known).observe(num_seqs)
        self._batch_tokens.labels(known).observe(total_tokens)
        self._waste.labels(known).observe(1.0 - total_tokens / max(padded_tokens, 1))
        self._run_s.labels(known).observe(run_s)

    def queue_waited(self, model: str, queue_s: float) -> None:
        self._queue_s.labels(self._known(model)).observe(queue_s)

    def set_queue(self, model: str, depth: int, tokens: int) -> None:
        """``depth``: sequences that wait, ``tokens``: their tokens."""
        known = self._known(model)
        self._depth.labels(known).set(depth)
        self._queued_tokens.labels(known).set(tokens)

    def tokenized(self, model: str, tokenize_s: float) -> None:
        self._tokenize_s.labels(self._known(model)).observe(tokenize_s)

    def postprocessed(self, model: str, post_s: float) -> None:
        self._post_s.labels(self._known(model)).observe(post_s)

    def tokens_in(self, model: str, tokens: int) -> None:
        self._tokens_in.labels(self._known(model)).inc(tokens)

    def tokens_out(self, model: str, tokens: int) -> None:
        self._tokens_out.labels(self._known(model)).inc(tokens)

    def speculated(self, model: str, method: str, drafted: int, accepted: int) -> None:
        """A sequence's step, with a draft or none."""
        labels = self._known(model), method
        self._drafted.labels(*labels).inc(drafted)
        self._accepted.labels(*labels).inc(accepted)
        self._speculation_steps.labels(*labels).inc()

    def rejected(self, reason: str) -> None:
        """``reason``: an error's code, never a client's words."""
        self._rejected.labels(reason).inc()

    def cancelled(self, model: str) -> None:
        self._cancelled.labels(self._known(model)).inc()

    def items_failed(self, model: str, count: int) -> None:
        self._failed_items.labels(self._known(model)).inc(count)

    def worker_restarted(self) -> None:
        self._restarts.inc()

    def _known(self, model: str) -> str:
        return model if model in self._models else ""

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"padserve_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"padserve_{name}", text, ("model",), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], label: str = "model") -> Histogram:
        return Histogram(f"padserve_{name}", text, (label,), buckets=buckets, registry=self.registry)
