"""From a request's options to the search that carries them out."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from padserve.core import GenerationOptions
from padserve.generate.logits import LogitsOptions, Pipeline, RowState
from padserve.generate.sample import Sampler, SamplingOptions
from padserve.generate.search.base import Search
from padserve.generate.search.beam import BeamOptions, BeamSearch
from padserve.generate.search.plain import PlainSearch
from padserve.generate.sequence import Limits, Row
from padserve.generate.speculate.table import make_speculation
from padserve.text.stops import WatchedText


def make_search(options: GenerationOptions, watch: Callable[[], WatchedText]) -> Callable[[Row], Search]:
    """``watch``: the text before the first generated token, to be watched for stop strings where there are any."""
    sampling = _sampling(options)
    limits = Limits(options.max_new_tokens, options.end_ids | options.stop_ids)
    rules, stops = make_rules(options), TextStops(watch) if options.stop else None

    def start(first: Row) -> Search:
        if options.num_beams > 1:
            beams = BeamOptions(
                options.num_beams,
                options.num_return_sequences,
                options.length_penalty,
                options.early_stopping,
                options.patience,
                options.num_beam_groups,
                options.diversity_penalty,
            )
            kept = max(2, 1 + len(limits.end_ids))
            sampler = None if sampling.greedy else Sampler(replace(sampling, min_tokens_to_keep=kept), options.seed)
            return BeamSearch(first, limits, rules, beams, options.logprobs, stops, sampler)
        indices = range(options.num_return_sequences)
        first.speculation = make_speculation(options)
        chooses = [None if sampling.greedy else Sampler(sampling, options.seed, index) for index in indices]
        return PlainSearch(first, limits, rules, chooses, options.logprobs, stops)

    return start


class PipelineRules:
    """See `padserve.generate.search.base.Rules`. A row's state follows its tokens."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def apply(self, scores: Tensor, row: Row) -> Tensor:
        state: RowState = row.state or self._pipeline.start(row.tokens[: row.prompt])
        for token in row.generated[len(state.generated) :]:
            state.append(token)
        row.state = state
        return self._pipeline.apply(scores, state)


def make_rules(options: GenerationOptions) -> PipelineRules | None:
    """None where nothing changes a score."""
    pipeline = Pipeline(
        LogitsOptions(
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            bad_words=options.bad_words,
            logit_bias=options.logit_bias,
            min_new_tokens=options.min_new_tokens,
            max_length=len(options.prompt) + options.max_new_tokens,
            eos_token_ids=sorted(options.end_ids),
            stop_token_ids=sorted(options.stop_ids),
            forced_bos_token_id=options.forced_bos_token_id,
            forced_eos_token_id=options.forced_eos_token_id,
            suppress_tokens=options.suppress_tokens,
            begin_suppress_tokens=options.begin_suppress_tokens,
            min_length=options.min_length,
        )
    )
    return PipelineRules(pipeline) if pipeline.processors else None


def _sampling(options: GenerationOptions) -> SamplingOptions:
    return SamplingOptions(
        do_sample=options.do_sample,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        typical_p=options.typical_p,
    )


class TextStops:
    """See `padserve.generate.search.base.StopsText`. What is watched follows a row's tokens."""

    def __init__(self, watch: Callable[[], WatchedText]) -> None:
        self._watch = watch

    def __call__(self, row: Row, *more: int) -> bool:
        if row.text is None:
            row.text = self._watch()
        for token in row.tokens[row.prompt + row.text.tokens :]:
            row.text.push(token)
        text = row.text.fork() if more else row.text
        for token in more:
            text.push(token)
        return text.stopped
