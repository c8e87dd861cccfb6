"""The configuration, as frozen Structs. API names of the TOML file."""

from typing import Annotated, Literal

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
DType = Literal["", "float32", "bfloat16", "float16", "int8", "auto"]
Batching = Literal["auto", "packed", "padded"]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``workers``, ``threads``: 0 is from the CPU limit and a measurement. ``uds``: a Unix socket, not the port."""

    host: str = "127.0.0.1"
    port: Port = 8000
    uds: str = ""
    api_keys_file: str = ""
    max_body_bytes: Positive = 2_000_000
    max_queue_tokens: Positive = 200_000
    drain_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    workers: Natural = 0
    threads: Natural = 0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"


class SpeculationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a generating model's next tokens are guessed. ``draft``: the model that guesses, where the method has one."""

    method: Literal["ngram"]
    draft: str = ""
    max_draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8

    def __post_init__(self) -> None:
        if self.draft:
            raise ValueError(f"{self.method} guesses from the text itself and takes no draft, got {self.draft!r}")


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of request fields, before the checkpoint's own. None: the checkpoint's."""

    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    min_new_tokens: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None
    stop: str | tuple[Text, ...] | None = None
    num_beams: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    length_penalty: Annotated[float, msgspec.Meta(ge=-100, le=100)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    num_return_sequences: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1000)] | None = None
    top_k: Natural | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None
    no_repeat_ngram_size: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys and values of a generating model. ``block_size``: tokens of a block. ``memory_gb``: 10^9 bytes each; 0: as
    much as 32,768 tokens need. ``prefix_caching``: keep prompts that came before."""

    block_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    memory_gb: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 0.0
    prefix_caching: bool = True


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``dtype`` "": float32 on a CPU, bfloat16 on a GPU. ``tasks`` empty: what the checkpoint can do."""

    source: Text
    name: str = ""
    revision: str = ""
    tasks: tuple[str, ...] = ()
    dtype: DType = ""
    batching: Batching = "auto"
    max_batch_tokens: Positive = 8192
    buckets: Literal["auto"] | tuple[Positive, ...] = "auto"
    max_wait_ms: Annotated[float, msgspec.Meta(ge=0, le=60_000)] = 0.0
    default: bool = False
    trust_remote_code: bool = False
    generation: GenerationConfig = GenerationConfig()
    cache: CacheConfig = CacheConfig()
    speculation: SpeculationConfig | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: ServerConfig = ServerConfig()
    models: tuple[ModelConfig, ...] = ()
