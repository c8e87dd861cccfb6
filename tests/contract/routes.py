"""One row a task route: a model that serves it, valid inputs, and the field that carries them."""

from dataclasses import dataclass, field
from typing import Any

from tests.contract.families import MAX_LENGTH


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    model: str
    default_model: str
    wrong_model: str
    items: tuple[Any, ...]
    too_long: Any
    inputs: str = "inputs"
    extra: dict[str, Any] = field(default_factory=dict)

    def body(self, inputs: Any, **options: Any) -> dict[str, Any]:
        if self.inputs == "documents" and isinstance(inputs, str):
            inputs = [inputs]
        return {"model": self.model, self.inputs: inputs, **self.extra, **options}

    @property
    def one(self) -> dict[str, Any]:
        return self.body(self.items[0])

    @property
    def many(self) -> dict[str, Any]:
        return self.body(list(self.items))


LONG = "river " * (2 * MAX_LENGTH)
TEXTS = ("Anna walks to Paris.", "a slow engine", "The kitchen was never quiet, Boris reads.")
MASKED = ("the [MASK] walks", "Anna reads a [MASK] letter [MASK].", "[MASK]")
PAIRS = tuple({"source": text, "sentences": ["a dark winter", "music", text]} for text in TEXTS)

FILL_MASK = Route("/fill-mask", "bert-mlm", "bert-mlm", "bert-cls", MASKED, f"[MASK] {LONG}")
CLASSIFY = Route("/classify", "bert-cls", "bert-cls", "st-mean", TEXTS, LONG)
ZERO_SHOT = Route(
    "/zero-shot", "bert-nli", "bert-nli", "bert-cls", TEXTS, LONG, extra={"labels": ["music", "winter", "travel"]}
)
TOKEN_CLASSIFY = Route("/token-classify", "bert-ner", "bert-ner", "bert-mlm", TEXTS, LONG)
EMBED = Route("/embed", "st-mean", "st-mean", "bert-cross", TEXTS, LONG)
RERANK = Route(
    "/rerank", "bert-cross", "st-mean", "bert-mlm", TEXTS, LONG, "documents", {"query": "who walks to Paris?"}
)
SIMILARITY = Route("/similarity", "st-mean", "st-mean", "bert-cls", PAIRS, {"source": LONG, "sentences": ["a"]})
TOKENIZE = Route("/tokenize", "roberta-cls", "bert-cls", "", TEXTS, LONG)

MODEL_ROUTES = (FILL_MASK, CLASSIFY, ZERO_SHOT, TOKEN_CLASSIFY, EMBED, RERANK, SIMILARITY)
ROUTES = (*MODEL_ROUTES, TOKENIZE)


def name_of(route: Route) -> str:
    return route.path[1:]
