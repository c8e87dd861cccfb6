"""A bad sequence fails alone, whatever way it is bad."""

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.batching.execute import execute
from padserve.core import Batch, Output
from padserve.errors import InternalError, InvalidField, NonfiniteOutput
from padserve.models.pack import pack


def echo(batch: Batch) -> list[Output]:
    """Each sequence's length, so that an output tells whose it is."""
    return [np.array([length], dtype=np.float32) for length in batch.lengths]


@settings(max_examples=60, deadline=None)
@given(bad=st.lists(st.booleans(), min_size=1, max_size=17))
def test_only_the_bad_ones_fail_and_the_others_keep_their_own_output(bad: list[bool], make_entry: Any) -> None:
    entries = [make_entry(index + 1) for index in range(len(bad))]
    poisoned = {index + 1 for index, is_bad in enumerate(bad) if is_bad}

    def run(batch: Batch) -> list[Output]:
        if poisoned & set(batch.lengths.tolist()):
            raise InvalidField("bad")
        return echo(batch)

    outcomes = execute(run, entries)
    for index, (outcome, is_bad) in enumerate(zip(outcomes, bad, strict=True)):
        if is_bad:
            assert isinstance(outcome, InvalidField)
        else:
            assert outcome.tolist() == [index + 1]


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), ValueError(), KeyError("x")])
def test_any_exception_becomes_an_internal_error_of_its_own_entry(
    error: Exception, make_entry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def run(batch: Batch) -> list[Output]:
        if 3 in batch.lengths:
            raise error
        return echo(batch)

    with caplog.at_level(logging.ERROR):
        outcomes = execute(run, [make_entry(length) for length in (1, 2, 3, 4, 5)])
    assert [isinstance(outcome, InternalError) for outcome in outcomes] == [False, False, True, False, False]
    assert type(error).__name__ in str(outcomes[2])
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_lost_output_is_not_given_to_a_neighbour(make_entry: Any) -> None:
    """A model that returns N - 1 outputs for N sequences: alone each gets its own, and one that gets none an error."""

    def run(batch: Batch) -> list[Output]:
        return [output for output in echo(batch) if output[0] != 2]

    outcomes = execute(run, [make_entry(length) for length in (1, 2, 3)])
    assert [getattr(outcome, "tolist", lambda: None)() for outcome in outcomes] == [[1], None, [3]]
    assert isinstance(outcomes[1], InternalError)


def test_too_many_outputs_are_an_error_too(make_entry: Any) -> None:
    outcomes = execute(lambda batch: echo(batch) * 2, [make_entry(1)])
    assert isinstance(outcomes[0], InternalError)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_nonfinite_output_fails_its_own_entry_and_runs_once(value: float, make_entry: Any) -> None:
    calls = []

    def run(batch: Batch) -> list[Output]:
        calls.append(batch.num_seqs)
        outputs = echo(batch)
        outputs[1] = np.array([1.0, value], dtype=np.float32)
        return outputs

    outcomes = execute(run, [make_entry(length) for length in (1, 2, 3)])
    assert [isinstance(outcome, NonfiniteOutput) for outcome in outcomes] == [False, True, False]
    assert calls == [3]


def test_an_empty_sequence_never_reaches_the_model(make_entry: Any) -> None:
    seen: list[int] = []

    def run(batch: Batch) -> list[Output]:
        seen.extend(batch.lengths.tolist())
        return echo(batch)

    outcomes = execute(run, [make_entry(length) for length in (4, 0, 2)])
    assert isinstance(outcomes[1], InternalError)
    assert sorted(seen) == [2, 4]


def test_a_batch_packed_ahead_is_the_one_that_runs(make_entry: Any) -> None:
    entries = [make_entry(length) for length in (2, 3)]
    packed = pack([entry.encoding for entry in entries])
    seen = []

    def run(batch: Batch) -> list[Output]:
        seen.append(batch)
        return echo(batch)

    execute(run, entries, packed)
    assert seen[0] is packed


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_is_not_caught_here(death: type[BaseException], make_entry: Any) -> None:
    def run(batch: Batch) -> list[Output]:
        raise death

    with pytest.raises(death):
        execute(run, [make_entry(1), make_entry(2)])
