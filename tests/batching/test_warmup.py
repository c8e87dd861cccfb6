"""The batch size beyond which a device gains nothing, with a device whose speed is known."""

from types import SimpleNamespace
from typing import Any

import pytest

from padserve.batching import warmup
from padserve.core import Batch


class Device:
    """Takes ``fixed`` seconds a batch, and 1 µs a token up to ``best``, 3 µs beyond; its clock is its own."""

    def __init__(self, fixed: float, best: int, **spec: Any) -> None:
        self.fixed, self.best, self.now = fixed, best, 0.0
        settings = {"max_length": 512, "max_batch_tokens": 8192, "head": "embedding", "vocab_size": 100}
        self.spec = SimpleNamespace(**(settings | spec))
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> None:
        self.batches.append(batch)
        tokens = batch.total_tokens
        self.now += self.fixed + 1e-6 * (min(tokens, self.best) + 3 * max(tokens - self.best, 0))


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    def measure(device: Device) -> int:
        monkeypatch.setattr(warmup, "time", SimpleNamespace(perf_counter=lambda: device.now))
        target: int = warmup.measure_target_tokens(device)  # type: ignore[arg-type]
        return target

    return measure


@pytest.mark.parametrize("best", [128, 512, 2048])
def test_it_stops_where_larger_batches_stop_paying(best: int, measure: Any) -> None:
    assert measure(Device(1e-9, best)) == 64
    assert measure(Device(best * 0.5e-6, best)) == best


def test_where_only_the_fixed_cost_counts_the_largest_wins(measure: Any) -> None:
    assert measure(Device(10e-3, 10**6)) == 8192


def test_it_never_exceeds_the_limit_and_stays_within_the_vocabulary(measure: Any) -> None:
    device = Device(10e-3, 10**6, max_batch_tokens=256, max_length=16, vocab_size=7, head="masked-lm")
    assert measure(device) == 256
    assert max(batch.total_tokens for batch in device.batches) <= 256
    assert all(batch.max_seqlen <= 16 and batch.input_ids.max() < 7 for batch in device.batches)
    assert all(len(batch.gather) == batch.num_seqs for batch in device.batches)


def test_a_limit_below_the_smallest_size_is_the_target(measure: Any) -> None:
    assert measure(Device(1e-3, 100, max_batch_tokens=48)) == 48


def test_a_slow_device_does_not_stall_the_start(measure: Any) -> None:
    device = Device(1.0, 10**6)
    measure(device)
    assert device.now < 3.5
