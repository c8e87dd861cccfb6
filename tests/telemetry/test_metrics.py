"""Metrics: one call, one count; labels that a client cannot grow."""

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from padserve.telemetry.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(models=("a", "b"), tasks=("embed",))


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"padserve_{name}", labels)


def test_request(metrics: Metrics) -> None:
    metrics.request_finished("embed", "a", 200, 0.02)
    metrics.request_finished("embed", "made-up", 404, 0.02)
    metrics.request_finished("made-up", "a", 404, 0.02)
    assert value(metrics, "requests_total", task="embed", model="a", status="200") == 1
    assert value(metrics, "requests_total", task="embed", model="", status="404") == 1
    assert value(metrics, "requests_total", task="other", model="a", status="404") == 1
    assert value(metrics, "request_duration_seconds_count", task="embed") == 2
    assert value(metrics, "request_duration_seconds_sum", task="embed") == pytest.approx(0.04)


def test_batch(metrics: Metrics) -> None:
    metrics.batch_ran("a", 3, 60, 80, 0.5)
    metrics.batch_ran("a", 1, 20, 20, 0.25)
    assert value(metrics, "batch_size_sum", model="a") == 4
    assert value(metrics, "batch_tokens_sum", model="a") == 80
    assert value(metrics, "padding_waste_ratio_sum", model="a") == pytest.approx(0.25)
    assert value(metrics, "padding_waste_ratio_bucket", model="a", le="0.0") == 1
    assert value(metrics, "run_seconds_sum", model="a") == 0.75
    for name in ("batch_size", "batch_tokens", "padding_waste_ratio", "run_seconds"):
        assert value(metrics, f"{name}_count", model="a") == 2


@pytest.mark.parametrize("sequences", [1, 256, 100_000])
def test_any_batch_size_has_a_bucket(metrics: Metrics, sequences: int) -> None:
    metrics.batch_ran("a", sequences, sequences, sequences, 0.1)
    assert value(metrics, "batch_size_bucket", model="a", le="+Inf") == 1


def test_queue(metrics: Metrics) -> None:
    metrics.set_queue("a", 5, 100)
    metrics.set_queue("a", 2, 40)
    metrics.queue_waited("a", 0.5)
    assert (value(metrics, "queue_depth", model="a"), value(metrics, "queue_tokens", model="a")) == (2, 40)
    assert value(metrics, "queue_seconds_sum", model="a") == 0.5


def test_stages_and_tokens(metrics: Metrics) -> None:
    metrics.tokenized("a", 0.1)
    metrics.postprocessed("a", 0.2)
    metrics.tokens_in("a", 7)
    metrics.tokens_out("a", 3)
    assert value(metrics, "tokenize_seconds_sum", model="a") == 0.1
    assert value(metrics, "post_seconds_sum", model="a") == 0.2
    assert (value(metrics, "tokens_in_total", model="a"), value(metrics, "tokens_out_total", model="a")) == (7, 3)


def test_faults(metrics: Metrics) -> None:
    metrics.rejected("queue_full")
    metrics.cancelled("b")
    metrics.items_failed("b", 2)
    metrics.worker_restarted()
    assert value(metrics, "rejected_total", reason="queue_full") == 1
    assert (value(metrics, "cancelled_total", model="b"), value(metrics, "failed_items_total", model="b")) == (1, 2)
    assert value(metrics, "worker_restarts_total") == 1


def test_no_two_instances_share_anything() -> None:
    first, second = Metrics(tasks=("embed",)), Metrics(tasks=("embed",))
    first.request_finished("embed", "", 200, 0.1)
    assert value(second, "requests_total", task="embed", model="", status="200") is None


def test_series_are_bounded(metrics: Metrics) -> None:
    sizes = set()
    for number in range(3):
        metrics.request_finished(f"task-{number}", f"model-{number}", 404, 0.1)
        metrics.batch_ran(f"model-{number}", 1, 1, 1, 0.1)
        sizes.add(len(metrics.render().splitlines()))
    assert len(sizes) == 1


def test_threads_lose_no_count(metrics: Metrics) -> None:
    def work() -> None:
        for _ in range(500):
            metrics.tokens_in("a", 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "tokens_in_total", model="a") == 2000


def test_exposition_parses(metrics: Metrics) -> None:
    metrics.request_finished("embed", "a", 200, 0.1)
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    assert families["padserve_requests"].type == "counter"
    assert families["padserve_batch_tokens"].type == "histogram"
    assert "process_cpu_seconds" in families
