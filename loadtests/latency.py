"""Median milliseconds of one idle client over HTTP, and of calling the model in this process, in turn."""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from loadtests.machine import described
from loadtests.measuring import Measured, load, served, undisturbed
from loadtests.peers.ours import Padserve
from loadtests.report import note
from loadtests.tasks import TASKS

OVER_HTTP = "padserve over HTTP"


def latency(options: argparse.Namespace) -> str:
    """One text at a time."""
    import torch
    from sentence_transformers import SentenceTransformer

    task = TASKS["embed"]
    given = task.asked(options.mix, 100)
    kwargs = {"dtype": getattr(torch, options.dtype)}
    model = SentenceTransformer(str(task.model()), device="cpu", model_kwargs=kwargs)
    bare, tokenizer = model[0].auto_model, model.tokenizer

    def forward(text: str) -> None:
        with torch.inference_mode():
            bare(**tokenizer(text, return_tensors="pt", truncation=True, max_length=256))

    calls: dict[str, Callable[[str], Any]] = {"SentenceTransformer.encode": model.encode, "bare module": forward}
    seen: dict[str, list[float]] = {}
    runs: list[Measured] = []
    peer = Padserve()
    with served(peer, task, options.dtype) as base:
        for _ in range(options.rounds):
            measured = undisturbed(partial(load, base, peer, task, given, 1, options.seconds), options.patience)
            seen.setdefault(OVER_HTTP, []).append(measured["p50_ms"])
            runs.append(measured)
            for name, call in calls.items():
                seen.setdefault(name, []).append(median_ms(call, given, options.seconds))
    head = (
        f"one client, {options.dtype}, {options.mix} lengths, medians of {options.rounds} rounds of "
        f"{options.seconds:g} s, torch threads in this process {torch.get_num_threads()}, {described()}"
    )
    return "\n".join([head, "", *rows(seen), note(runs)])


def rows(seen: dict[str, list[float]]) -> list[str]:
    ours = statistics.median(seen[OVER_HTTP])
    lines = [
        f"| {name} | {statistics.median(p50s):.2f} | {min(p50s):.2f}-{max(p50s):.2f} "
        f"| {ours / statistics.median(p50s):.2f} |"
        for name, p50s in seen.items()
    ]
    return ["| way | p50 ms | least-most | padserve / it |", "|---|---|---|---|", *lines]


def median_ms(call: Callable[[str], Any], given: Sequence[str], seconds: float) -> float:
    """Of whole passes over the texts, one at least, until ``seconds`` are over; after a pass that is not counted."""
    for text in given:
        call(text)
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while not taken or time.perf_counter() < until:
        for text in given:
            started = time.perf_counter()
            call(text)
            taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken)
