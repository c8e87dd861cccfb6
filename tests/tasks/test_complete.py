"""Texts that go on from a prompt, and those that stand by themselves, for tokenizers of every kind."""

import pytest

from padserve.core import Generated, GenerationOptions, TokenDetails, TokenLogprob
from padserve.tasks.complete import Complete, CompleteRequest
from padserve.tasks.converse import Converse, ConverseRequest
from padserve.tasks.generating import Ask
from padserve.text.tokenizer import Tokenizer
from tests.tasks.conftest import KINDS

PROMPT, REST = "the", " quick brown fox"


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(KINDS[request.param][0]())


def split(tokenizer: Tokenizer) -> tuple[Ask, Generated]:
    """A prompt, and an output that goes on to the whole text."""
    ids = [int(one) for one in tokenizer.tokens(PROMPT + REST, add_special_tokens=False).input_ids]
    given = next(count for count in range(1, len(ids)) if tokenizer.decode(ids[:count]) == PROMPT)
    details = tuple(TokenDetails(one, -0.5, (TokenLogprob(one, -0.5),)) for one in ids[given:])
    return Ask(GenerationOptions(tuple(ids[:given])), given, False), Generated(
        tuple(ids[given:]), "length", None, details
    )


def test_prompt_and_completion_are_the_whole_text(tokenizer: Tokenizer) -> None:
    ask, output = split(tokenizer)
    result = Complete().part(CompleteRequest(inputs=PROMPT, logprobs=1), ask, [output], tokenizer)
    [found] = result.outputs
    assert found.text == REST
    assert found.logprobs is not None
    assert "".join(one.token for one in found.logprobs) == REST
    assert [one.top[0].token for one in found.logprobs] == [one.token for one in found.logprobs]


def test_a_message_is_a_text_by_itself(tokenizer: Tokenizer) -> None:
    ask, output = split(tokenizer)
    [found] = Converse().part(ConverseRequest(messages=[]), ask, [output], tokenizer).outputs
    assert found.text == tokenizer.decode(output.tokens)
