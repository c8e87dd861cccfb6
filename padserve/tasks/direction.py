"""From which language to which an input goes, and what its checkpoint says of such a task."""

from typing import Any

from padserve.core import ModelSpec
from padserve.errors import InvalidField
from padserve.text.languages import Directed
from padserve.text.tokenizer import Tokenizer


def direct(tokenizer: Tokenizer, text: str, source: str | None, target: str | None) -> Directed:
    """The input with the languages that a request gives. Errors: `UnknownLanguage`, `InvalidField`."""
    if tokenizer.languages is not None:
        return tokenizer.languages.direct(text, source, target)
    for field, given in (("source_lang", source), ("target_lang", target)):
        if given is not None:
            raise InvalidField(f"{field}: the checkpoint does not say that it has languages; leave it out", field=field)
    return Directed(text)


def task_defaults(spec: ModelSpec, *keys: str | None) -> dict[str, Any]:
    """What the checkpoint's ``task_specific_params`` say under the first of these keys that they have."""
    tasks = {} if spec.generation is None else spec.generation.tasks
    params = dict(next((tasks[key] for key in keys if key is not None and key in tasks), {}))
    if params.get("max_length"):
        params["max_new_tokens"] = params["max_length"] - 1  # it counts the decoder's start too
    return params
