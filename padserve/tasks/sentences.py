"""Texts as an embedding model's input: prompts, pooling, length, as sentence-transformers' ``encode`` treats them."""

from padserve.core import EmbeddingSpec, Encoding, ModelSpec
from padserve.errors import InvalidField
from padserve.tasks.base import TaskRequest
from padserve.text.tokenizer import Tokenizer

QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")


def embedding_of(spec: ModelSpec) -> EmbeddingSpec:
    if spec.embedding is None:
        raise ValueError(f"model {spec.name!r} has no embedding head")
    return spec.embedding


def named_prompt(spec: ModelSpec, name: str | None) -> str:
    """A prompt of the model by name; its default one for None. Errors: `InvalidField` lists the known names."""
    embedding = embedding_of(spec)
    name = embedding.default_prompt_name if name is None else name
    if name is None:
        return ""
    if name not in embedding.prompts:
        known = ", ".join(sorted(embedding.prompts)) or "none"
        raise InvalidField(f"model {spec.name!r} has no prompt {name!r}; it has {known}", field="prompt_name")
    return embedding.prompts[name]


def role_prompt(spec: ModelSpec, role: tuple[str, ...]) -> str:
    """The prompt for queries or documents: the first of the role's names that the model has, else its default."""
    prompts = embedding_of(spec).prompts
    return named_prompt(spec, next((name for name in role if name in prompts), None))


def sentence_encoding(
    text: str, prompt: str, request: TaskRequest, spec: ModelSpec, tokenizer: Tokenizer, pooling: str | None = None
) -> Encoding:
    """Errors: `InputTooLong`, `BadEncoding`."""
    tokens = tokenizer.fitted(
        prompt + text, max_length=spec.max_length, truncate=request.truncate, side=request.truncation_side
    )
    skipped = 0 if embedding_of(spec).include_prompt or not prompt else prompt_tokens(prompt, tokenizer)
    return tokens.encoding(pooling=pooling, prompt_tokens=skipped)


def prompt_tokens(prompt: str, tokenizer: Tokenizer) -> int:
    """Tokens of the prompt, the leading special ones included and a closing one not."""
    ids = tokenizer.tokens(prompt).input_ids.tolist()
    return len(ids) - (1 if ids and ids[-1] in tokenizer.all_special_ids else 0)
