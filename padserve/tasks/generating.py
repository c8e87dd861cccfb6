"""What the generating tasks share: request fields, and how each input goes on by them and the checkpoint's defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from padserve.core import Emitted, Generated, GenerationOptions, GenerationSpec, ModelSpec, TokenDetails
from padserve.errors import EmptyInput, InputTooLong, InvalidField
from padserve.tasks.base import Plan, Task, TaskRequest, TaskResult, Unit, as_list, plan_each
from padserve.tasks.direction import direct
from padserve.tasks.speculation import speculation_of
from padserve.text.bad_words import bad_word_ids
from padserve.text.detokenize import Detokenizer
from padserve.text.languages import Directed
from padserve.text.stops import StopMatcher, StopStrings
from padserve.text.tokenizer import Tokenizer, Tokens

DEFAULT_NEW_TOKENS = 256
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
LanguageCode = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-100, le=100)]


class GeneratingRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Absent fields take the model's configured value, then the checkpoint's ``generation_config``'s; ``do_sample`` is
    false unless the request or the configuration gives it."""

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
    do_sample: bool | None = None
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
    source_lang: LanguageCode | None = None
    target_lang: LanguageCode | None = None
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
    """A token of a stream. The texts of all events of an output are its text. ``input``: of which input it is."""

    index: int
    text: str
    token_id: int = -1
    logprob: TokenLogprobs | None = None
    input: int = 0


class EndEvent(msgspec.Struct, frozen=True):
    """An output of a stream has all its text."""

    index: int
    finish_reason: Literal["stop", "length"]
    input: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """One input, ready to run."""

    options: GenerationOptions
    input_tokens: int
    truncated: bool
    lead: tuple[int, ...] = ()
    """Tokens whose text stands before what is generated: an echoed prompt, the forced start of the output."""


@dataclass(frozen=True, slots=True)
class Work:
    """One input: what is generated for it, and the texts before, between and behind what comes out."""

    asks: tuple[Ask, ...]
    gaps: tuple[str, ...] = ("", "")  # [len(asks) + 1]


def asked(
    request: GeneratingRequest,
    spec: ModelSpec,
    tokenizer: Tokenizer,
    text: str | Directed,
    forced: Mapping[str, Any],
    checkpoint: Mapping[str, Any] | None = None,
) -> Ask:
    """``forced``: options that the task itself settles; ``checkpoint``: the checkpoint's defaults for this task."""
    directed = text
    if isinstance(directed, str):
        directed = direct(tokenizer, directed, request.source_lang, request.target_lang)
    tokens = tokenizer.fitted(
        directed.text,
        max_length=input_room(spec),
        truncate=request.truncate,
        side=request.truncation_side,
        around=directed.around,
    )
    return asked_of(request, spec, tokenizer, tokens, forced, directed, checkpoint)


def asked_of(
    request: GeneratingRequest,
    spec: ModelSpec,
    tokenizer: Tokenizer,
    tokens: Tokens,
    forced: Mapping[str, Any],
    directed: Directed,
    checkpoint: Mapping[str, Any] | None = None,
) -> Ask:
    """The same of an input that is tokenized, and cut, already. ``directed``: how its output starts."""
    generation = spec.generation
    assert generation is not None
    configured = generation.configured
    defaults = {**generation.defaults, **(checkpoint or {}), **configured}
    stop = configured.get("stop", ()) if request.stop is None else request.stop
    given = tuple(int(token) for token in tokens.input_ids)
    if not given:
        raise EmptyInput("the input has no tokens")
    prefix = tokenizer.target_ids(request.target_prefix)
    settled = _settled(request, defaults)
    if directed.first is not None:
        settled["forced_bos_token_id"] = directed.first
    head = _head(defaults, directed, settled, bool(prefix)) if generation.is_seq2seq else given
    source, prompt = given if generation.is_seq2seq else None, (*head, *prefix)
    new_tokens = _new_tokens(request, defaults, generation, len(prompt))
    end = () if request.ignore_eos else _as_tuple(defaults.get("eos_token_id"))
    options = GenerationOptions(
        prompt=prompt,
        source=source,
        max_new_tokens=new_tokens,
        end_ids=frozenset(end),
        stop_ids=frozenset((*(request.stop_token_ids or ()), *end)),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        patience=request.patience,
        num_beam_groups=request.num_beam_groups,
        diversity_penalty=request.diversity_penalty,
        do_sample=bool(configured.get("do_sample") if request.do_sample is None else request.do_sample),
        seed=request.seed,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        bad_words=_bad_words(request, tokenizer, defaults),
        logit_bias=_logit_bias(request, spec),
        logprobs=request.logprobs,
        **{**settled, **forced},
    )
    _check(options, spec)
    options = replace(options, speculation=speculation_of(request, options, generation))
    echoed = given if request.echo and not generation.is_seq2seq else ()
    return Ask(options, len(given), tokens.truncated, (*echoed, *prefix))


def beams_of(request: GeneratingRequest, spec: ModelSpec) -> int:
    """Where the checkpoint's own number does not count: one unless the request, or the model's owner, gives another."""
    configured = {} if spec.generation is None else spec.generation.configured
    return int(request.num_beams or configured.get("num_beams") or 1)


def input_room(spec: ModelSpec) -> int:
    """Tokens that an input may have: a decoder's window must leave room for one more."""
    assert spec.generation is not None
    return spec.max_length if spec.generation.is_seq2seq else spec.max_length - 1


def _head(
    defaults: Mapping[str, Any], directed: Directed, settled: Mapping[str, Any], has_prefix: bool
) -> tuple[int, ...]:
    """What a decoder starts with. A forced first token stands before a target prefix."""
    start = _start(defaults) if directed.start is None else directed.start
    first = settled.get("forced_bos_token_id") if has_prefix else None
    return (start,) if first is None else (start, first)


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
    """The checkpoint's, and those of the request's strings."""
    words = [_as_tuple(word) for word in defaults.get("bad_words_ids") or ()]
    return (*words, *bad_word_ids(tokenizer.target_ids, request.bad_words or ()))


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
    if beams == 1 and outputs > 1 and not options.do_sample:
        raise InvalidField(
            "greedy search has one output; set do_sample or num_beams for more", field="num_return_sequences"
        )
    if beams % options.num_beam_groups:
        raise InvalidField(
            f"num_beams {beams} is no multiple of num_beam_groups {options.num_beam_groups}", field="num_beam_groups"
        )
    wrong = [token for token in options.stop_ids - options.end_ids if token >= spec.vocab_size]
    if wrong:
        raise InvalidField(f"stop_token_ids: {wrong[0]} is no token id of this model", field="stop_token_ids")


def text_of(output: Generated, ask: Ask, tokenizer: Tokenizer) -> str:
    """The text of an output, up to a stop string or a stop token."""
    tokens: Sequence[int] = output.tokens
    if tokens and tokens[-1] in ask.options.stop_ids:
        tokens = tokens[:-1]
    text = tokenizer.decode([*ask.lead, *tokens], skip_special_tokens=True)
    if not ask.options.stop:
        return text
    start = len(Detokenizer(tokenizer).push(*ask.lead))
    matcher = StopMatcher(StopStrings(ask.options.stop))
    return text[:start] + matcher.push(text[start:]) + matcher.finish()


TokenText = Callable[[int], str]


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


def logprobs_of(details: TokenDetails, text: TokenText) -> TokenLogprobs:
    """``text``: how a token is shown."""
    top = [LogprobOf(one.token_id, text(one.token_id), one.logprob) for one in details.top]
    return TokenLogprobs(details.token_id, text(details.token_id), details.logprob, top)


class StreamedText:
    """The text of one output as its tokens come: what is certain, no sooner; its parts add up to `text_of`."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer) -> None:
        self._ask, self._tokenizer = ask, tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._lead = self._detokenizer.push(*ask.lead)
        self._matcher = StopMatcher(StopStrings(ask.options.stop))
        self._sent = 0

    def push(self, emitted: Emitted) -> str:
        """Text that has become certain with a token."""
        if emitted.token_id in self._ask.options.stop_ids:
            return ""
        lead = "" if self._sent else self._lead
        return self._send(lead + self._matcher.push(self._detokenizer.push(emitted.token_id)))

    def finish(self, output: Generated) -> str:
        """The rest."""
        return self._send(text_of(output, self._ask, self._tokenizer)[self._sent :])

    def _send(self, text: str) -> str:
        self._sent += len(text)
        return text


RequestT = TypeVar("RequestT", bound=GeneratingRequest)


class GeneratingTask(Task[RequestT]):
    """Plans `Work` for each input, as the state of a unit without encodings; its outputs are `Generated`."""

    result_type = GeneratingResult

    def ask(self, request: RequestT, spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Ask:
        raise NotImplementedError

    def work(self, request: RequestT, spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Work:
        return Work((self.ask(request, spec, tokenizer, text),))

    def plan(self, request: RequestT, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        inputs = as_list(request.inputs)
        if request.stream and isinstance(request.inputs, list):
            raise InvalidField("a stream takes one input, not a list", field="stream")
        return plan_each(inputs, lambda text: Unit((), self.work(request, spec, tokenizer, text)))

    def opening(self, ask: Ask, token_id: int, tokenizer: Tokenizer) -> str:
        """What stands before the text of an output that begins with this token."""
        return ""

    def token_text(self, ask: Ask, before: Sequence[int], tokenizer: Tokenizer) -> TokenText:
        """How the tokens that may stand after those generated ``before`` are shown in log probabilities."""
        return tokenizer.id_to_token

    def part(self, request: RequestT, ask: Ask, outputs: Sequence[Generated], tokenizer: Tokenizer) -> GeneratingResult:
        return GeneratingResult(
            tokens=ask.input_tokens,
            truncated=ask.truncated,
            outputs=[self._output(request, ask, output, tokenizer) for output in outputs],
            speculation=counts_of(outputs),
        )

    def _output(self, request: RequestT, ask: Ask, output: Generated, tokenizer: Tokenizer) -> Output:
        logprobs = [
            logprobs_of(one, self.token_text(ask, output.tokens[:place], tokenizer))
            for place, one in enumerate(output.details)
        ]
        opening = self.opening(ask, output.tokens[0], tokenizer) if output.tokens else ""
        return Output(
            text=opening + text_of(output, ask, tokenizer),
            finish_reason=output.reason,
            token_ids=list(output.tokens) if request.details else None,
            score=output.score,
            logprobs=None if request.logprobs is None else logprobs,
        )

    def result(
        self, request: RequestT, work: Work, outputs: Sequence[Sequence[Generated]], tokenizer: Tokenizer
    ) -> GeneratingResult:
        """``outputs``: of each ask."""
        return self.part(request, work.asks[0], outputs[0], tokenizer)
