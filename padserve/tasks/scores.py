"""Logits to scores, in float64 so that neither sum nor exponent is lost; and the order of results."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from padserve.core import Activation

Scores = npt.NDArray[np.float64]


def softmax(logits: npt.ArrayLike) -> Scores:
    """Over the last axis; safe for logits of any size."""
    values = np.asarray(logits, dtype=np.float64)
    raised = np.exp(values - values.max(-1, keepdims=True))
    scores: Scores = raised / raised.sum(-1, keepdims=True)
    return scores


def sigmoid(logits: npt.ArrayLike) -> Scores:
    values = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(values))
    scores: Scores = np.where(values >= 0, 1.0, small) / (1.0 + small)
    return scores


def activate(logits: npt.ArrayLike, activation: Activation) -> Scores:
    if activation == "softmax":
        return softmax(logits)
    return sigmoid(logits) if activation == "sigmoid" else np.asarray(logits, dtype=np.float64)


def best_first(scores: Scores | Sequence[float]) -> list[int]:
    """Indices by falling score; equal ones keep their order."""
    order: list[int] = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return order


def unit_vector(vector: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The vector at length one; zeros stay zeros (torch's ``normalize`` with its 1e-12)."""
    values = np.asarray(vector, dtype=np.float32)
    length = max(float(np.sqrt(np.square(values, dtype=np.float64).sum())), 1e-12)
    unit: npt.NDArray[np.float32] = (values / length).astype(np.float32)
    return unit


def cosine(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    return float(np.dot(unit_vector(one).astype(np.float64), unit_vector(other).astype(np.float64)))
