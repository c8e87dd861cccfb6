"""Reading /metrics as a scraper does."""

from collections.abc import Iterator

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def samples(client: httpx.Client) -> list[Sample]:
    reply = client.get("/metrics")
    assert reply.status_code == 200
    families = list(text_string_to_metric_families(reply.text))
    return [sample for family in families for sample in family.samples]


def matching(found: list[Sample], name: str, **labels: str) -> Iterator[Sample]:
    for sample in found:
        if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items()):
            yield sample


def total(client: httpx.Client, name: str, **labels: str) -> float:
    """Sum of the samples with this name and these labels; 0 when there are none yet."""
    return sum(sample.value for sample in matching(samples(client), name, **labels))
