"""The nouns that travel from a request to its reply. Imports nothing of ours and holds no tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Head = Literal["masked-lm", "sequence-classification", "token-classification", "embedding"]
Priority = Literal["interactive", "bulk"]
Activation = Literal["softmax", "sigmoid", "none"]
Int64Array = npt.NDArray[np.int64]
Output = npt.NDArray[np.float32]
"""What a model returns for one sequence, always float32.

masked-lm ``[len(gather), vocab_size]`` logits · sequence-classification ``[num_labels]`` logits ·
token-classification ``[length, num_labels]`` logits · embedding ``[dimensions]``, before the model's last Normalize.
"""


@dataclass(frozen=True, slots=True)
class Encoding:
    """One token sequence to run, special tokens included.

    ``gather``: positions whose logits are wanted (masked-lm). ``pooling``: a pooling mode in place of the model's own,
    and ``prompt_tokens``: leading tokens that belong to a prompt (embedding).
    """

    input_ids: Int64Array  # [length]
    token_type_ids: Int64Array | None = None  # [length]; None where the model takes none
    truncated: bool = False
    gather: tuple[int, ...] = ()
    pooling: str | None = None
    prompt_tokens: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """What an embedding model says of itself (sentence-transformers' configuration)."""

    dimensions: int
    pooling: str  # "mean", "cls", "max", "lasttoken", ...
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What tasks and operators may know about a loaded model; no weights."""

    name: str
    source: str
    head: Head
    tasks: tuple[str, ...]  # route names without the slash
    architecture: str  # "BertForMaskedLM"
    family: str  # "bert"
    dtype: str  # the dtype that runs: "float32", "bfloat16"
    device: str  # "cpu", "cuda:0"
    batching: Literal["packed", "padded"]
    max_length: int  # tokens, special tokens included
    max_batch_tokens: int
    vocab_size: int
    labels: tuple[str, ...] = ()  # by class id
    problem_type: str | None = None
    function_to_apply: Activation | None = None  # the checkpoint's own wish for /classify
    rerank_activation: Activation | None = None  # the checkpoint's own wish for /rerank; None: sigmoid for one label
    embedding: EmbeddingSpec | None = None
    default: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """All sequences of one forward pass, concatenated with no padding. Arrays, not tensors: the model moves them.

    ``gather`` holds positions into the packed stream, those of sequence i being
    ``gather[gather_cu_seqlens[i]:gather_cu_seqlens[i + 1]]``.
    """

    input_ids: Int64Array  # [total_tokens]
    position_ids: Int64Array  # [total_tokens], from 0 in each sequence
    token_type_ids: Int64Array | None  # [total_tokens]
    cu_seqlens: Int64Array  # [num_seqs + 1]
    max_seqlen: int
    gather: Int64Array  # [total_gathered]
    gather_cu_seqlens: Int64Array  # [num_seqs + 1]
    poolings: tuple[str | None, ...]  # [num_seqs]
    prompt_tokens: tuple[int, ...]  # [num_seqs]

    @property
    def num_seqs(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def total_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> Int64Array:
        return np.diff(self.cu_seqlens)


@dataclass(slots=True)
class Timings:
    """Seconds spent in each stage; a request of several sequences reports its slowest one."""

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    run_s: float = 0.0
    post_s: float = 0.0
    batch_tokens: int = 0  # of the last batch that the request rode in
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 0
    output_tokens: int | None = None  # None where nothing is generated
