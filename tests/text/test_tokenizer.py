"""Cutting without shared state equals the tokenizer's own truncation."""

import copy
import threading
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.errors import BadEncoding, InputTooLong
from padserve.text.tokenizer import Tokenizer, windows
from tests.tasks.conftest import CORPUS, KINDS

WORDS = sorted({word for line in CORPUS for word in line.split()})
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
def test_cut_equals_the_tokenizers_own_truncation(kind: str, side: str, strategy: str) -> None:
    hf = KINDS[kind][0]()
    ours = Tokenizer(copy.deepcopy(hf))
    hf.truncation_side = side

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(first=texts, second=texts, limit=st.integers(8, 30))
    def check(first: str, second: str, limit: int) -> None:
        whole = ours.tokens(first, second)
        cut_part = {"only_first": 0, "only_second": 1}.get(strategy)
        if cut_part is not None and len(whole) - whole.parts.count(cut_part) >= limit and len(whole) > limit:
            with pytest.raises(InputTooLong):
                ours.fitted(first, second, max_length=limit, truncate=True, side=side, strategy=strategy)
            return
        got = ours.fitted(first, second, max_length=limit, truncate=True, side=side, strategy=strategy)
        want = hf(first, second, truncation=strategy, max_length=limit)
        assert got.input_ids.tolist() == want["input_ids"]
        assert got.truncated == (len(whole) > limit)
        if got.token_type_ids is not None:
            assert got.token_type_ids.tolist() == want["token_type_ids"]

    check()


def test_too_long_names_both_lengths() -> None:
    tokenizer = Tokenizer(KINDS["wordpiece"][0]())
    with pytest.raises(InputTooLong) as caught:
        tokenizer.fitted("paris " * 50, max_length=20, truncate=False)
    assert caught.value.extra == {"length": 52, "max_length": 20}


def test_threads_with_unlike_truncation_do_not_disturb_each_other() -> None:
    tokenizer, text = Tokenizer(KINDS["wordpiece"][0]()), " ".join(CORPUS)
    wrong: list[int] = []

    def work(limit: int) -> None:
        for _ in range(200):
            length = len(tokenizer.fitted(text, max_length=limit, truncate=True))
            if length != limit:
                wrong.append(length)

    threads = [threading.Thread(target=work, args=(limit,)) for limit in (10, 25, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_lone_surrogates_are_bad_encoding() -> None:
    with pytest.raises(BadEncoding):
        Tokenizer(KINDS["wordpiece"][0]()).tokens("a \ud83d")


def test_windows_cover_everything_and_overlap() -> None:
    tokenizer = Tokenizer(KINDS["wordpiece"][0]())
    tokens = tokenizer.tokens(" ".join(CORPUS))
    spans = windows(tokens, 20, 5)
    assert {index for span in spans for index in span} == set(range(len(tokens)))
    for before, after in pairwise(spans):
        assert len(set(before) & set(after)) - tokens.num_special == 5
    assert all(len(span) <= 20 for span in spans)
