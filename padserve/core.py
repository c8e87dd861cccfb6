"""The nouns that travel from a request to its reply. Imports nothing of ours and holds no tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Head = Literal["masked-lm", "sequence-classification", "token-classification", "embedding", "causal-lm", "seq2seq-lm"]
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
    generation: "GenerationSpec | None" = None
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


FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenDetails:
    """A token that was chosen, and the most likely ones in its place, best first."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Speculated:
    """What speculation came to. ``drafted``: tokens that were guessed, ``accepted``: those of them that the output has,
    ``steps``: of the model that it took."""

    method: str
    drafted: int = 0
    accepted: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished output. ``tokens``: generated ones only, the end token included. ``score``: of a beam."""

    tokens: tuple[int, ...]
    reason: FinishReason
    score: float | None = None
    details: tuple[TokenDetails, ...] = ()
    speculation: Speculated | None = None


@dataclass(frozen=True, slots=True)
class Emitted:
    """A token of output ``index``, as soon as it is certain."""

    index: int
    token_id: int
    details: TokenDetails | None = None


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How one input is to be continued, every default settled. ``prompt``: what the decoder starts with."""

    prompt: tuple[int, ...]
    source: tuple[int, ...] | None = None  # what the encoder reads, None for decoders
    max_new_tokens: int = 256
    min_new_tokens: int = 0
    end_ids: frozenset[int] = frozenset()  # the end tokens that the checkpoint has
    stop_ids: frozenset[int] = frozenset()  # and those that the request adds
    stop: tuple[str, ...] = ()
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    patience: float = 1.0
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    min_length: int = 0  # of the decoder's tokens, prompt included
    logprobs: int | None = None
    speculation: "SpeculationSpec | None" = None


@dataclass(frozen=True, slots=True)
class SpeculationSpec:
    """A way to guess the next tokens, and how many at most in a step. ``reads_source``: an encoder-decoder's source has
    the ids of its output, so that guesses can be taken from it."""

    method: str
    max_draft_tokens: int
    reads_source: bool = False


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """What a generating model says of itself. ``window``: tokens that a sequence may have, None for no limit."""

    is_seq2seq: bool
    window: int | None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # the checkpoint's generation_config
    languages: tuple[str, ...] = ()  # the model's own codes
    needs_source: bool = False  # what the encoder reads depends on the source language
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the checkpoint's task_specific_params
    chat_template: bool = False  # whether the tokenizer has one
    speculation: SpeculationSpec | None = None  # as configured
    configured: Mapping[str, Any] = field(default_factory=dict)  # request fields that the model's owner sets
