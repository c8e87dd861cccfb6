"""Which model serves which task: from the tasks' own word on each model, and the configuration's choice."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from padserve.config.structs import ModelConfig
from padserve.core import GenerationSpec, ModelSpec
from padserve.errors import ConfigError, UnknownModel, WrongTask
from padserve.tasks.table import TASKS, all_tasks, get_task


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before its weights are loaded."""

    architecture: str
    family: str
    head: str
    tasks: tuple[str, ...]
    max_length: int
    dtype: str
    batching: str
    why: str


def with_tasks(spec: ModelSpec, model: ModelConfig) -> ModelSpec:
    """The spec with the tasks that it serves: those configured, else all that the checkpoint can do.

    Every model serves /tokenize. Errors: `ConfigError` when a configured task cannot be served by this checkpoint.
    """
    check_task_names(model)
    able = [task for task in all_tasks() if task.supports(spec) is None]
    if not model.tasks:
        return replace(spec, tasks=tuple(task.name for task in able))
    for name in model.tasks:
        reason = get_task(name).supports(spec)
        if reason is not None:
            raise ConfigError(f"models.{model.name}.tasks: {reason}")
    return replace(spec, tasks=tuple(dict.fromkeys((*model.tasks, "tokenize"))))


def check_task_names(model: ModelConfig) -> None:
    """Errors: `ConfigError` for a name that no task has."""
    for name in model.tasks:
        if name not in TASKS:
            raise ConfigError(f"models.{model.name}.tasks: no task is named {name!r}; known are {', '.join(TASKS)}")


def check_models(models: Iterable[ModelConfig]) -> None:
    """What can be told at once, before anything listens or loads. Errors: `ConfigError`."""
    from padserve.models.checkpoint import locate

    for model in models:
        check_task_names(model)
        locate(model)


def select(specs: Iterable[ModelSpec], task: str, wanted: str | None, names: Iterable[str]) -> ModelSpec:
    """The model that answers a request: by name, else the first default one that serves the task, else the first.

    Errors: `UnknownModel` (404), `WrongTask` (422).
    """
    known = list(specs)
    if wanted is None:
        able = [spec for spec in known if task in spec.tasks]
        if not able:
            raise WrongTask(f"no served model can do /{task}; served are {_served(known)}")
        return next((spec for spec in able if spec.default), able[0])
    for spec in known:
        if spec.name == wanted:
            if task not in spec.tasks:
                raise WrongTask(f"model {wanted!r} does not serve /{task}; it serves {', '.join(spec.tasks)}")
            return spec
    raise UnknownModel(f"no model is named {wanted!r}; served are {', '.join(names) or 'none'}")


def _served(specs: list[ModelSpec]) -> str:
    return ", ".join(f"{spec.name} ({', '.join(spec.tasks)})" for spec in specs) or "none"


def describe(model: ModelConfig) -> ModelFacts:
    """Facts of a model from its configuration and tokenizer. Errors: `ConfigError`."""
    import torch

    from padserve.models.checkpoint import checkpoint_tokenizer, draft_spec, max_length, read_checkpoint
    from padserve.models.families.table import find_family
    from padserve.text.multilingual import languages_of

    checkpoint = read_checkpoint(model)
    tokenizer = checkpoint_tokenizer(model, checkpoint)
    family = find_family(checkpoint.config.model_type)
    offset = 0 if family is None else family.position_offset(checkpoint.config)
    limit = max_length(checkpoint.config, checkpoint.sentence_max_length or tokenizer.model_max_length, offset)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    draft = draft_spec(checkpoint, model, device, limit)
    if draft.head == "seq2seq-lm":
        languages = languages_of(tokenizer, checkpoint.config, {})
        codes = () if languages is None else languages.codes
        draft = replace(draft, generation=GenerationSpec(True, None, languages=codes))
    spec = with_tasks(draft, model)
    if spec.head in ("causal-lm", "seq2seq-lm"):
        batching, why = "packed", "one continuous batch; its logits are checked against the stock model's at load"
    elif model.batching == "padded" or family is None:
        batching, why = "padded", "padded in length buckets; by equal lengths if padding changes its results"
    else:
        batching, why = "packed", "packed if that equals the stock model run alone, which is checked at load"
    if family is None and model.batching != "padded" and batching == "padded":
        why = f"{checkpoint.config.model_type} has no packed family; {why}"
    return ModelFacts(spec.architecture, spec.family, spec.head, spec.tasks, spec.max_length, spec.dtype, batching, why)
