"""What the generating tasks share: request fields, and how each input goes on by them and the checkpoint's defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from padserve.core import Emitted, Generated, GenerationOptions, GenerationSpec, ModelSpec, TokenDetails
from padserve.errors import EmptyInput, InputTooLong, InvalidField
from padserve.tasks.base import Plan, Task, TaskRequest, TaskResult, Unit, as_list, plan_each
from padserve.tasks.speculation import speculation_of
from padserve.text.tokenizer import Tokenizer

DEFAULT_NEW_TOKENS = 256
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-100, le=100)]


class GeneratingRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Absent fields take the checkpoint's ``generation_config`` value; ``do_sample`` is false unless given."""

    inputs: str | list[str]
    max_new_tokens: Count | None = None
    min_new_tokens: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None
    stop: list[Text] | Text | None = None
    stop_token_ids: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None
    ignore_eos: bool = False
    num_beams: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    length_penalty: Penalty | None = None
    early_stopping: bool | Literal["never"] | None = None
    num_beam_groups: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    diversity_penalty: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    num_return_sequences: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    patience: Positive = 1.0
    do_sample: bool = False
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1000)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    top_p: Probability | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    typical_p: Probability | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    repetition_penalty: Positive | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    no_repeat_ngram_size: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None
    bad_words: list[Text] | None = None
    logit_bias: dict[str, float] | None = None
    target_prefix: str = ""
    echo: bool = False
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    details: bool = False
    speculation: str = "auto"
    max_draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    stream: bool = False


class LogprobOf(msgspec.Struct, frozen=True):
    token_id: int
    token: str
    logprob: float


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A token of the output, and the most likely ones in its place, best first."""

    token_id: int
    token: str
    logprob: float
    top: list[LogprobOf]


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    score: float | None = None
    logprobs: list[TokenLogprobs] | None = None


class SpeculationCounts(msgspec.Struct, frozen=True):
    """Tokens that were drafted and those of them that the output has, in so many steps of the model."""

    method: str
    drafted: int
    accepted: int
    steps: int


class GeneratingResult(TaskResult, frozen=True, kw_only=True, omit_defaults=True):
    """``outputs``: best first. ``speculation``: where tokens were drafted, or would have been."""

    outputs: list[Output]
    speculation: SpeculationCounts | None = None


class TokenEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token of a stream. The texts of all events of an output are its text."""

    index: int
    text: str
    token_id: int = -1
    logprob: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One input, ready to run."""

    options: GenerationOptions
    input_tokens: int
    truncated: bool
    lead: tuple[int, ...] = ()
    """Tokens whose text stands before what is generated: an echoed prompt, the forced start of the output."""


def asked(
    request: GeneratingRequest, spec: ModelSpec, tokenizer: Tokenizer, text: str, forced: Mapping[str, Any]
) -> Ask:
    """``forced``: options that the task itself settles, such as the target language's token."""
    generation = spec.generation
    assert generation is not None
    defaults = generation.defaults
    tokens = tokenizer.fitted(
        text, max_length=_room(spec, generation), truncate=request.truncate, side=request.truncation_side
    )
    given = tuple(int(token) for token in tokens.input_ids)
    if not given:
        raise EmptyInput("the input has no tokens")
    prefix = tuple(int(token) for token in tokenizer.tokens(request.target_prefix, add_special_tokens=False).input_ids)
    source, prompt = (given, (_start(defaults), *prefix)) if generation.is_seq2seq else (None, (*given, *prefix))
    new_tokens = _new_tokens(request, defaults, generation, len(prompt))
    end = () if request.ignore_eos else _as_tuple(defaults.get("eos_token_id"))
    options = GenerationOptions(
        prompt=prompt,
        source=source,
        max_new_tokens=new_tokens,
        end_ids=frozenset(end),
        stop_ids=frozenset(request.stop_token_ids or ()),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        patience=request.patience,
        num_beam_groups=request.num_beam_groups,
        diversity_penalty=request.diversity_penalty,
        do_sample=request.do_sample,
        seed=request.seed,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        bad_words=_bad_words(request, tokenizer, defaults),
        logit_bias=_logit_bias(request, spec),
        logprobs=request.logprobs,
        **{**_settled(request, defaults), **forced},
    )
    _check(options, spec)
    options = replace(options, speculation=speculation_of(request, options, generation))
    echoed = given if request.echo and not generation.is_seq2seq else ()
    return Ask(options, len(given), tokens.truncated, (*echoed, *prefix))


def _room(spec: ModelSpec, generation: GenerationSpec) -> int:
    """Tokens that an input may have: a decoder's window must leave room for one more."""
    return spec.max_length if generation.is_seq2seq else spec.max_length - 1


def _start(defaults: Mapping[str, Any]) -> int:
    start = defaults.get("decoder_start_token_id", defaults.get("pad_token_id"))
    if start is None:
        raise InvalidField("the checkpoint does not say with which token its decoder starts")
    return int(start)


def _new_tokens(
    request: GeneratingRequest, defaults: Mapping[str, Any], generation: GenerationSpec, prompt: int
) -> int:
    """What is asked for, else the checkpoint's, else 256; never more than the window leaves."""
    wanted = request.max_new_tokens or defaults.get("max_new_tokens") or DEFAULT_NEW_TOKENS
    if generation.window is None:
        return int(wanted)
    room = generation.window - prompt
    if room < 1:
        raise InputTooLong(prompt, generation.window - 1, "nothing could be generated after it")
    return min(int(wanted), room)


OPTIONAL = (
    "min_new_tokens",
    "length_penalty",
    "early_stopping",
    "num_return_sequences",
    "num_beams",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
)
OF_THE_CHECKPOINT = ("forced_bos_token_id", "forced_eos_token_id")


def _settled(request: GeneratingRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that are given, else the checkpoint's; what neither has stays at its neutral value."""
    settled = {}
    for name in OPTIONAL:
        value = getattr(request, name)
        value = defaults.get(name) if value is None else value
        if value is not None:
            settled[name] = value
    for name in OF_THE_CHECKPOINT:
        if defaults.get(name) is not None:
            settled[name] = _as_tuple(defaults[name])[0]
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        if defaults.get(name):
            settled[name] = tuple(defaults[name])
    if defaults.get("min_length"):
        settled["min_length"] = int(defaults["min_length"])
    return settled


def _as_tuple(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return (int(value),) if isinstance(value, int) else tuple(int(one) for one in value)


def _bad_words(
    request: GeneratingRequest, tokenizer: Tokenizer, defaults: Mapping[str, Any]
) -> tuple[tuple[int, ...], ...]:
    """The checkpoint's, and the request's strings, both as they stand and after a space."""
    words = [tuple(int(token) for token in word) for word in defaults.get("bad_words_ids") or ()]
    for word in request.bad_words or ():
        for text in (word, f" {word}"):
            ids = tokenizer.tokens(text, add_special_tokens=False).input_ids
            words.append(tuple(int(token) for token in ids))
    return tuple(dict.fromkeys(word for word in words if word))


def _logit_bias(request: GeneratingRequest, spec: ModelSpec) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (request.logit_bias or {}).items():
        if not key.isdigit() or int(key) >= spec.vocab_size:
            raise InvalidField(
                f"logit_bias: {key!r} is no token id; they go from 0 to {spec.vocab_size - 1}", field="logit_bias"
            )
        bias[int(key)] = value
    return bias


def _check(options: GenerationOptions, spec: ModelSpec) -> None:
    """Options that exclude each other. Errors: `InvalidField`."""
    beams, outputs = options.num_beams, options.num_return_sequences
    if beams > 1 and outputs > beams:
        raise InvalidField(f"num_return_sequences is {outputs}, there are {beams} beams", field="num_return_sequences")
    if beams > 1 and options.do_sample:
        raise InvalidField("beams cannot sample in this version: give num_beams or do_sample", field="do_sample")
    if beams == 1 and outputs > 1 and not options.do_sample:
        raise InvalidField(
            "greedy search has one output; set do_sample or num_beams for more", field="num_return_sequences"
        )
    if beams % options.num_beam_groups:
        raise InvalidField(
            f"num_beams {beams} is no multiple of num_beam_groups {options.num_beam_groups}", field="num_beam_groups"
        )
    wrong = [token for token in options.stop_ids if token >= spec.vocab_size]
    if wrong:
        raise InvalidField(f"stop_token_ids: {wrong[0]} is no token id of this model", field="stop_token_ids")


def text_of(output: Generated, ask: Ask, tokenizer: Tokenizer) -> str:
    """The text of an output, up to a stop string or a stop token."""
    tokens: Sequence[int] = output.tokens
    if tokens and tokens[-1] in ask.options.stop_ids:
        tokens = tokens[:-1]
    return before_stop(tokenizer.decode([*ask.lead, *tokens], skip_special_tokens=True), ask, tokenizer)


def before_stop(text: str, ask: Ask, tokenizer: Tokenizer) -> str:
    """What stands before the first stop string in the generated part of a text."""
    if not ask.options.stop:
        return text
    start = len(tokenizer.decode(ask.lead, skip_special_tokens=True)) if ask.lead else 0
    ends = [place for place in (text.find(string, start) for string in ask.options.stop) if place >= 0]
    return text[: min(ends)] if ends else text


def output_of(request: GeneratingRequest, ask: Ask, output: Generated, tokenizer: Tokenizer) -> Output:
    return Output(
        text=text_of(output, ask, tokenizer),
        finish_reason=output.reason,
        token_ids=list(output.tokens) if request.details else None,
        score=output.score,
        logprobs=None if request.logprobs is None else [logprobs_of(one, tokenizer) for one in output.details],
    )


def counts_of(outputs: Sequence[Generated]) -> SpeculationCounts | None:
    """What speculation came to in all outputs together."""
    counts = [output.speculation for output in outputs if output.speculation is not None]
    if not counts:
        return None
    return SpeculationCounts(
        counts[0].method,
        sum(one.drafted for one in counts),
        sum(one.accepted for one in counts),
        sum(one.steps for one in counts),
    )


def logprobs_of(details: TokenDetails, tokenizer: Tokenizer) -> TokenLogprobs:
    top = [LogprobOf(one.token_id, tokenizer.id_to_token(one.token_id), one.logprob) for one in details.top]
    return TokenLogprobs(details.token_id, tokenizer.id_to_token(details.token_id), details.logprob, top)


class StreamedText:
    """The text of one output as its tokens come: what is certain, no sooner; its parts add up to `text_of`."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer) -> None:
        self._ask, self._tokenizer = ask, tokenizer
        self._tokens: list[int] = []
        self._sent = 0
        self._held = max((len(string) for string in ask.options.stop), default=1) - 1

    def push(self, emitted: Emitted) -> str:
        """Text that has become certain with a token."""
        self._tokens.append(emitted.token_id)
        if emitted.token_id in self._ask.options.stop_ids:
            return ""
        whole = self._tokenizer.decode([*self._ask.lead, *self._tokens], skip_special_tokens=True)
        text = before_stop(whole, self._ask, self._tokenizer)
        if len(text) < len(whole):
            return self._send(text)
        certain = text.rstrip("\ufffd")
        return self._send(certain[: max(len(certain) - self._held, 0)] if self._held else certain)

    def finish(self, output: Generated) -> str:
        """The rest."""
        return self._send(text_of(output, self._ask, self._tokenizer))

    def _send(self, text: str) -> str:
        new = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return new


RequestT = TypeVar("RequestT", bound=GeneratingRequest)


class GeneratingTask(Task[RequestT]):
    """Plans an `Ask` for each input, as the state of a unit without encodings; its outputs are `Generated`."""

    result_type = GeneratingResult

    def ask(self, request: RequestT, spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Ask:
        raise NotImplementedError

    def plan(self, request: RequestT, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        inputs = as_list(request.inputs)
        if request.stream and isinstance(request.inputs, list):
            raise InvalidField("a stream takes one input, not a list", field="stream")
        return plan_each(inputs, lambda text: Unit((), self.ask(request, spec, tokenizer, text)))

    def result(
        self, request: RequestT, ask: Ask, outputs: Sequence[Generated], tokenizer: Tokenizer
    ) -> GeneratingResult:
        return GeneratingResult(
            tokens=ask.input_tokens,
            truncated=ask.truncated,
            outputs=[output_of(request, ask, output, tokenizer) for output in outputs],
            speculation=counts_of(outputs),
        )
